"""The process group is killed from outside at random moments; running the same command again must recover.

CI runs this without Spark, to have time for many moments; the slow tests kill Spark.
"""

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.chaos.oracle import Truth, check_done, check_meanwhile, truth
from tests.chaos.runs import FORMATS, KILLED, Case, Running, write_objects

pytestmark = pytest.mark.timeout(1_800)

OBJECTS = 40
OPTIONS = ("--max-batch-objects", "10")  # four batches
ROUNDS = 10
SEED = 20260101


def killed_after(case: Case, whole: Truth, running: Running, seconds: float) -> bool:
    """Kill the process after that time, and return True if it had not ended before."""
    try:
        running.process.wait(seconds)
    except subprocess.TimeoutExpired:
        running.send_group(signal.SIGKILL)
    ended = running.end()
    assert ended.code in (0, KILLED), ended.err
    found = check_meanwhile(whole, case.table)
    print(f"{'killed' if ended.code == KILLED else 'done before'} {seconds:.2f} s: {found}")  # noqa: T201 - shown when the test fails
    return ended.code == KILLED


def at_work(case: Case) -> Running:
    """Start an ingest and wait until it has scanned its source: before that, little can go wrong."""
    running = case.start(*OPTIONS)
    running.wait_until(lambda: "to do" in running.log())
    return running


@pytest.mark.parametrize("scheme", FORMATS)
def test_ten_kills_in_a_row_lose_nothing(case: Case) -> None:
    """Every process has four new batches, and the unfinished ones of the process before."""
    case.add_objects(range(OBJECTS))
    measured, began_at = at_work(case), time.monotonic()
    measured.end().expect(0)
    duration_seconds = time.monotonic() - began_at
    moments = random.Random(SEED)
    deaths = 0
    for number in range(1, ROUNDS + 1):
        case.add_objects(range(number * OBJECTS, (number + 1) * OBJECTS))
        deaths += killed_after(case, case.truth(), at_work(case), moments.uniform(0.0, duration_seconds))
    assert deaths >= ROUNDS // 2, "most moments must lie before the end, or they prove nothing"
    case.ingest(*OPTIONS)
    check_done(case.truth(), case.table)


@pytest.mark.spark
@pytest.mark.slow
def test_a_kill_at_any_of_twelve_moments_loses_nothing(tmp_path: Path) -> None:
    """Each kill has its own folder; the moments are uniform over the duration of a measured run."""
    measured = new_case(tmp_path, "measured")
    duration_seconds = measured.ingest(*OPTIONS).seconds
    moments = random.Random(SEED)
    deaths = 0
    for number in range(12):
        case = new_case(tmp_path, f"moment-{number}")
        whole = truth(case.source)
        deaths += killed_after(case, whole, case.start(*OPTIONS), moments.uniform(0.0, duration_seconds))
        case.ingest(*OPTIONS)
        check_done(whole, case.table)
        case.close()
    assert deaths >= 6, "most moments must lie before the end, or they prove nothing"


def new_case(tmp_path: Path, name: str) -> Case:
    folder = tmp_path / name
    folder.mkdir()
    case = Case(folder)
    write_objects(case.source, range(OBJECTS))
    return case
