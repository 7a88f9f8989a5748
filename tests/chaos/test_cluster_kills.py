"""Kills on a standalone cluster while two batches of an ingest are in flight, with source and table in S3.

The executors' Python lacks Penstock, which ships itself. The driver is killed at every step, an executor and a worker
while both batches run, with speculation and task retries, and at random moments. Each kill of a driver checks that two
batches were in flight. The oracle reads the table's log without the library that wrote it, see `tests.chaos.oracle`.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.chaos import cluster_transforms, transforms
from tests.chaos.cluster_transforms import FAULTS, WORKER
from tests.chaos.oracle import check_done, check_meanwhile, read_quarantine, read_table
from tests.chaos.overlap import (
    DEATHS,
    OPTIONS,
    Death,
    add_two_batches,
    attempts_of,
    check_numbers,
    committed_in_pairs,
    finish,
    kill_beside_a_run,
    kill_in_turn,
    left_open,
    open_gate,
    two_in_flight,
)
from tests.chaos.runs import FORMATS, KILLED, Running
from tests.chaos.s3_case import S3Case
from tests.services.aws_server import AwsServer
from tests.services.bare_python import bare_python
from tests.services.jvm import QUICK_JVM
from tests.services.spark_cluster import FROM_DRIVER, SPECULATION, SparkCluster
from tests.services.spark_events import SparkEvents, logged_to

from penstock.messaging.steps import Step
from penstock.pipeline.spark.requirements import FOR_S3, REQUIRED

pytestmark = pytest.mark.spark

SEED = 20261125
MOMENTS = 8
ROUNDS = 3
HELD = ("--transform", "transforms:held_by_name")
FAULTY = ("--transform", "cluster_transforms:faulty_together")


@dataclass
class Record:
    """The kills of one test."""

    kills: Counter[str] = field(default_factory=Counter)

    def text(self, case: S3Case) -> str:
        """Return the figures of a table that is finished."""
        table = case.mirror()
        lines, bad = Counter(place for place, _ in read_table(table).rows), read_quarantine(table).rows
        lost, twice = case.truth().good.keys() - lines.keys(), lines.total() - len(lines)
        kills = ", ".join(f"{name} {number}" for name, number in sorted(self.kills.items()))
        return (
            f"\n{self.kills.total()} kills ({kills}); {check_numbers(table)} batches, of which "
            f"{committed_in_pairs(table)} overlapped with another committed one; "
            f"{len(lines):,} lines and {len(bad):,} in the quarantine, {len(lost)} lost, {twice} twice"
        )


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python that has what tasks need, and no Penstock."""
    return bare_python(tmp_path_factory.mktemp("executors") / "python", [*REQUIRED, *FOR_S3])


class ClusterCase(S3Case):
    """A case whose ingests run on the cluster, two batches at a time, with the executors' own Python."""

    def __init__(self, folder: Path, server: AwsServer, cluster: SparkCluster, python: Path, *, scheme: str) -> None:
        self.cluster = cluster
        self.conf = {
            **FROM_DRIVER,
            "spark.pyspark.python": str(python),
            "spark.executor.extraJavaOptions": QUICK_JVM,
            "spark.task.maxFailures": "4",
        }
        super().__init__(
            folder,
            server,
            by_queue=False,
            scheme=scheme,
            spark_master=cluster.url,
            spark_conf=json.dumps(self.conf),
            objects_max_retry_wait=1,
            objects_batches_in_flight=2,
        )
        for module in (transforms, cluster_transforms):
            shutil.copy(str(module.__file__), folder)

    def start_with(self, *options: str, **conf: str) -> Running:
        """Start an ingest with more settings of Spark."""
        return self.start(*OPTIONS, *options, spark_conf=json.dumps({**self.conf, **conf}))


@pytest.fixture
def case(tmp_path: Path, cluster: SparkCluster, moto: AwsServer, bare: Path, scheme: str) -> Iterator[ClusterCase]:
    with closing(ClusterCase(tmp_path, moto, cluster, bare, scheme=scheme)) as made:
        yield made


def strike(case: ClusterCase, monkeypatch: pytest.MonkeyPatch, record: Record) -> None:
    """Ingest two batches at once while a task fails, an executor and a worker are killed, and a task hangs.

    Fails unless Spark recorded each fault and both batches were committed in their first attempt.
    """
    faults, events = (case.folder / f"{name}-{record.kills.total()}" for name in ("faults", "events"))
    faults.mkdir()
    events.mkdir()
    monkeypatch.setenv(FAULTS, str(faults))
    before = len(attempts_of(case.table))
    running = case.start_with(*FAULTY, **SPECULATION, **logged_to(events))
    running.wait_until(lambda: (faults / WORKER).exists() and (faults / WORKER).read_text() != "")
    number = case.cluster.number_of((faults / WORKER).read_text())
    both_open = left_open(case.table)
    case.cluster.kill_worker(number)
    case.cluster.start_worker(number)
    running.end().expect(0)
    seen = SparkEvents.of(events)
    assert len(both_open) == 2, f"one batch only: {both_open}"
    assert seen.tasks_failed == 1, f"not one task failed: {seen}"
    assert seen.tasks_done_again >= 1, f"the task that failed was not tried again: {seen}"
    assert any("137" in reason for reason in seen.executors_removed), f"no executor was killed: {seen}"
    assert seen.executors_removed.total() >= 2, f"the worker took no executor with it: {seen}"
    assert seen.copies_done >= 1, f"no speculative copy was quicker than its task: {seen}"
    ended = [attempt for attempt in attempts_of(case.table)[before:] if attempt.state != "abandoned"]
    assert {attempt.id for attempt in ended} == {attempt.id for attempt in both_open}, "Spark did not recover"
    record.kills.update({"executor": 1, "worker": 1, "task (failed)": 1})
    check_done(case.truth(), case.mirror())


@pytest.mark.parametrize("scheme", FORMATS)
def test_deaths_with_two_batches_in_flight_lose_and_double_no_line(
    case: ClusterCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record()
    add_two_batches(case, 0)
    kill_beside_a_run(case, Death(step=Step.RECORDED), *HELD)
    record.kills["driver"] += 1
    open_gate(case)
    strike(case, monkeypatch, record)
    print(record.text(case))  # noqa: T201 - shown when the test fails


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_a_driver_killed_at_every_step_beside_another_batch_loses_and_doubles_no_line(
    case: ClusterCase, capsys: pytest.CaptureFixture[str]
) -> None:
    record = Record(Counter(f"driver at {death.kill_at}" for death in DEATHS))
    kill_in_turn(case, DEATHS, *HELD)
    with capsys.disabled():
        print(record.text(case))  # noqa: T201 - the figures of a long run


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_faults_in_two_batches_at_once_lose_and_double_no_line(
    case: ClusterCase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record, number = Record(), 0
    for _ in range(ROUNDS):
        number = add_two_batches(case, number)
        strike(case, monkeypatch, record)
    assert committed_in_pairs(case.table) == 2 * ROUNDS
    with capsys.disabled():
        print(record.text(case))  # noqa: T201 - the figures of a long run


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_kills_at_random_moments_lose_and_double_no_line(case: ClusterCase, capsys: pytest.CaptureFixture[str]) -> None:
    """Each ingest has two new batches, and all that the killed ones before it left. A moment that lay after an end
    bounds the ones that follow."""
    record, chance, number = Record(), random.Random(SEED), add_two_batches(case, 0)
    measured = case.start_with(**SPECULATION)
    measured.wait_until(lambda: "batch of" in measured.log())
    began_at = time.monotonic()
    measured.end().expect(0)
    duration_seconds, beside = time.monotonic() - began_at, 0
    for _ in range(MOMENTS):
        number = add_two_batches(case, number)
        victim, seconds = chance.choice(("driver", "executor", "worker")), chance.uniform(0.0, duration_seconds)
        running = case.start_with(**SPECULATION)
        running.wait_until(lambda running=running: "batch of" in running.log())  # type: ignore[misc]
        if ended_within(running, seconds):
            duration_seconds = min(duration_seconds, seconds)  # the measured one was slower, as its cluster was cold
            continue
        beside += two_in_flight(case.table)
        record.kills[victim] += kill(case.cluster, running, victim, chance.randrange(case.cluster.workers))
        running.end().expect(KILLED if victim == "driver" else 0)
        check_meanwhile(case.truth(), case.mirror())
    finish(case)
    with capsys.disabled():
        print(f"{record.text(case)}; seed {SEED}; {beside} kills with two batches in flight")  # noqa: T201
    assert record.kills.total() >= MOMENTS // 2, "most moments must lie before the end, or they prove nothing"
    assert beside, "no kill met two batches in flight"


def ended_within(running: Running, seconds: float) -> bool:
    """Wait, and return True if the ingest ended meanwhile, which must be with success."""
    try:
        running.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    running.end().expect(0)
    return True


def kill(cluster: SparkCluster, running: Running, victim: str, number: int) -> int:
    """Kill the driver's processes, a worker with its executors, or one executor. Return the number of kills."""
    if victim == "driver":
        running.send_group(signal.SIGKILL)
        return 1
    if victim == "worker":
        cluster.kill_worker(number)
        cluster.start_worker(number)
        return 1
    executors = cluster.executors(number)[:1]
    for pid in executors:
        os.kill(pid, signal.SIGKILL)
    return len(executors)
