"""Ingests from S3 through SQS into a table in S3, killed at every step; running the same command again must recover."""

import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.chaos.oracle import Truth, abandoned_folders, attempts, check_done, check_meanwhile
from tests.chaos.runs import FORMATS, IN_PROCESS, KILLED, write_objects
from tests.chaos.s3_case import S3Case
from tests.chaos.test_kill_steps import STORY
from tests.services.aws_server import AwsServer
from tests.services.plugin import StartAws

from penstock.messaging.steps import Step

pytestmark = pytest.mark.timeout(3_600)

OBJECTS = 40
OPTIONS = ("--max-batch-objects", "20")  # two batches
SEED = 20261121

BY_QUEUE = [step for step in STORY if step is not Step.ANNOUNCED]  # S3 sends the notifications
BY_LISTING = [Step.ANNOUNCED, Step.WRITTEN, Step.COMMITTED, Step.SETTLING]  # the rest is as with a queue


@pytest.fixture
def case(tmp_path: Path, moto: AwsServer, scheme: str) -> Iterator[S3Case]:
    made = S3Case(tmp_path, moto, module=IN_PROCESS, scheme=scheme)
    yield made
    made.close()


def prepared(case: S3Case) -> Truth:
    case.upload(write_objects(case.source, range(OBJECTS)))
    return case.truth()


def kill_and_check(case: S3Case, whole: Truth, kill_at: str) -> None:
    ended = case.ingest(*OPTIONS, code=KILLED, kill_at=kill_at)
    found = check_meanwhile(whole, case.mirror())
    print(f"killed at {kill_at} after {ended.seconds:.1f} s: {found}")  # noqa: T201 - shown when the test fails


def finish_and_check(case: S3Case, whole: Truth) -> None:
    report = case.ingest(*OPTIONS).report
    check_done(whole, case.mirror())
    assert report["objects_dead"] == 0
    assert case.waiting() == 0, "messages are left in the queue"
    assert abandoned_folders(case.table) == []


@pytest.mark.parametrize("scheme", FORMATS)
def test_kills_at_every_step_in_turn_lose_nothing(case: S3Case) -> None:
    whole = prepared(case)
    for step in BY_QUEUE:
        kill_and_check(case, whole, step.value)
    finish_and_check(case, whole)
    assert attempts(case.table)["abandoned"] >= 5, "each death in a claim leaves an abandoned attempt"


def test_kills_while_listing_lose_nothing(tmp_path: Path, moto: AwsServer) -> None:
    with closing(S3Case(tmp_path, moto, module=IN_PROCESS, by_queue=False)) as case:
        whole = prepared(case)
        for step in BY_LISTING:
            kill_and_check(case, whole, step.value)
        finish_and_check(case, whole)


@pytest.mark.spark
@pytest.mark.slow
def test_a_kill_at_any_of_twelve_moments_loses_nothing(tmp_path: Path, start_moto: StartAws) -> None:
    """Each kill has its own buckets; the moments are uniform over the duration of a measured run."""
    moments, deaths, duration_seconds = random.Random(SEED), 0, 0.0
    for number in range(13):
        folder = tmp_path / f"moment-{number}"
        folder.mkdir()
        server = start_moto()
        case = S3Case(folder, server)
        whole = prepared(case)
        if not duration_seconds:
            duration_seconds = case.ingest(*OPTIONS).seconds
        else:
            deaths += killed_after(case, whole, moments.uniform(0.0, duration_seconds))
            finish_and_check(case, whole)
        case.close()
        server.close()
    assert deaths >= 6, "most moments must lie before the end, or they prove nothing"


def killed_after(case: S3Case, whole: Truth, seconds: float) -> bool:
    running = case.start(*OPTIONS)
    try:
        running.process.wait(seconds)
    except subprocess.TimeoutExpired:
        running.send_group(signal.SIGKILL)
    ended = running.end()
    assert ended.code in (0, KILLED), ended.err
    check_meanwhile(whole, case.mirror())
    return ended.code == KILLED
