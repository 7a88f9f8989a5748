"""Signals: what is in flight is finished or given back within the budget, and another ingest goes on at once."""

import shutil
import signal
import time
from pathlib import Path

import pytest
from tests.chaos import transforms
from tests.chaos.oracle import attempts, check_done, check_meanwhile, messages, messages_held, objects, truth
from tests.chaos.runs import INTERRUPTED, STOPPED, Case, Ended, Running, write_objects

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

OBJECTS = 40
HELD = ("--max-objects", str(OBJECTS), "--transform", "transforms:held")
AT_ONCE_SECONDS = 6.0  # release, flush and the end of Spark, without any drain


@pytest.fixture
def gated(case: Case) -> Case:
    """A case whose runs wait at the gate, with its objects."""
    shutil.copy(transforms.__file__, case.folder / "transforms.py")
    write_objects(case.source, range(OBJECTS))
    shut(case)
    return case


def shut(case: Case) -> None:
    (case.folder / transforms.GATE).touch()
    (case.folder / transforms.AT_GATE).unlink(missing_ok=True)


def at_gate(case: Case, *options: str) -> Running:
    """An ingest whose Spark run has begun and cannot end."""
    running = case.start(*HELD, *options)
    running.wait_until((case.folder / transforms.AT_GATE).exists)
    return running


def open_gate(case: Case) -> None:
    (case.folder / transforms.GATE).unlink()


def ended_within(running: Running, seconds: float) -> Ended:
    """It ends within that time from now."""
    told_at = time.monotonic()
    ended = running.end(seconds=seconds + 20)
    took_seconds = time.monotonic() - told_at
    assert took_seconds < seconds, f"it took {took_seconds:.1f} s to leave:\n{ended.err}"
    return ended


def nothing_is_held(table: Path) -> None:
    assert attempts(table)["open"] == 0
    assert messages_held(table) == 0
    assert {state for state, _, _ in objects(table).values()} <= {"unprocessed"}


def test_sigterm_gives_back_within_the_budget_and_the_next_ingest_goes_on_at_once(gated: Case) -> None:
    whole = truth(gated.source)
    running = at_gate(gated, "--stop-timeout", "12")
    running.send(signal.SIGTERM)
    ended = ended_within(running, 12.0).but(STOPPED)
    assert ended.report["stopped"]
    assert ended.report["objects_unfinished"] == OBJECTS
    nothing_is_held(gated.table)
    assert messages(gated.table) == OBJECTS
    check_meanwhile(whole, gated.table)

    (gated.folder / transforms.AT_GATE).unlink()
    running = at_gate(gated)  # with leases far longer than the test: it need not wait for any
    running.send(signal.SIGTERM)
    open_gate(gated)  # what is in flight can end while the worker drains
    report = ended_within(running, 30.0).but(0).report
    assert not report["stopped"]
    assert report["objects_processed"] == OBJECTS
    check_done(whole, gated.table)
    assert {count for _, count, _ in objects(gated.table).values()} == {1}, "being given back costs no attempt"


def test_sigterm_while_spark_starts(gated: Case) -> None:
    running = gated.start(*HELD)
    running.wait_until(lambda: "to do" in running.said())
    running.send(signal.SIGTERM)
    ended = ended_within(running, 12.0).but(STOPPED)
    assert "Spark started" not in ended.err or "batch of" not in ended.err
    assert ended.report["objects_unfinished"] == OBJECTS
    nothing_is_held(gated.table)


def test_a_second_ctrl_c_gives_back_at_once(gated: Case) -> None:
    """A terminal sends it to the whole process group; Spark must outlive it until its run is given back."""
    running = at_gate(gated)  # 20 s of drain, by the default stop timeout
    running.send_group(signal.SIGINT)
    running.wait_until(lambda: "stopping" in running.said())
    running.send_group(signal.SIGINT)
    ended_within(running, AT_ONCE_SECONDS).but(INTERRUPTED)
    nothing_is_held(gated.table)
    assert messages(gated.table) == OBJECTS
