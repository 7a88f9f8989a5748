"""The process group is killed from outside, at any moment; the same command again must make it good."""

import random
import signal
import subprocess
from pathlib import Path

import pytest
from tests.chaos.oracle import Truth, check_done, check_meanwhile, truth
from tests.chaos.runs import KILLED, Case, write_objects

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_800)]

OBJECTS = 40
OPTIONS = ("--max-objects", "10")  # four batches
SEED = 20260101


def killed_after(case: Case, whole: Truth, seconds: float, *, of_spark: bool = False) -> bool:
    """Kill it that long after its start, or after Spark's; answers whether that was before its end."""
    running = case.start(*OPTIONS)
    if of_spark:
        running.wait_until(lambda: "Spark started" in running.said())
    try:
        running.process.wait(seconds)
    except subprocess.TimeoutExpired:
        running.send_group(signal.SIGKILL)
    ended = running.end()
    assert ended.code in (0, KILLED), ended.err
    found = check_meanwhile(whole, case.table)
    print(f"{'killed' if ended.code == KILLED else 'done before'} {seconds:.2f} s: {found}")  # noqa: T201 - shown when the test fails
    return ended.code == KILLED


def test_killed_three_times_in_a_row_at_any_moment(case: Case) -> None:
    """Of the seconds in which the protocol works: before Spark is there, little can go wrong."""
    write_objects(case.source, range(OBJECTS))
    whole = truth(case.source)
    moments = random.Random(SEED)
    deaths = 0
    while deaths < 3 and killed_after(case, whole, moments.uniform(0.0, 5.0), of_spark=True):
        deaths += 1
    assert deaths >= 1
    case.ingest(*OPTIONS)
    check_done(whole, case.table)


@pytest.mark.slow
def test_killed_at_fifty_moments(tmp_path: Path) -> None:
    """Every moment on a folder of its own, drawn evenly over a run's duration as measured first."""
    measured = fresh(tmp_path, "measured")
    duration_seconds = measured.ingest(*OPTIONS).seconds
    moments = random.Random(SEED)
    deaths = 0
    for number in range(50):
        case = fresh(tmp_path, f"moment-{number}")
        whole = truth(case.source)
        deaths += killed_after(case, whole, moments.uniform(0.0, duration_seconds))
        case.ingest(*OPTIONS)
        check_done(whole, case.table)
        case.close()
    assert deaths >= 25, "most moments must lie before the end, or they prove nothing"


def fresh(tmp_path: Path, name: str) -> Case:
    folder = tmp_path / name
    folder.mkdir()
    case = Case(folder)
    write_objects(case.source, range(OBJECTS))
    return case
