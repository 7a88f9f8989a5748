"""Signals: work in flight is finished or released within the stop timeout, and another ingest continues at once."""

import signal
from pathlib import Path

import pytest
from tests.chaos import transforms
from tests.chaos.oracle import attempts, check_done, check_meanwhile, messages, messages_held, objects, truth
from tests.chaos.runs import STOPPED, Case, Running, write_objects

OBJECTS = 40
ONE_BATCH = ("--max-batch-objects", str(OBJECTS))
STOP_TIMEOUT_SECONDS = 12.0  # far less than the gate holds a run
LATE_SECONDS = 30.0  # allowance for a busy machine; still less than the gate holds a run


@pytest.fixture
def gated(case: Case) -> Case:
    """Return a case with objects, whose runs wait at the gate."""
    return shut_gate(case)


def shut_gate(case: Case) -> Case:
    write_objects(case.source, range(OBJECTS))
    (case.folder / transforms.GATE).touch()
    return case


def at_gate(case: Case, *options: str) -> Running:
    """Start an ingest and wait until its run is held at the gate."""
    running = case.start(*options)
    running.wait_until((case.folder / transforms.AT_GATE).exists)
    return running


def open_gate(case: Case) -> None:
    (case.folder / transforms.GATE).unlink()


def check_nothing_is_held(table: Path) -> None:
    assert attempts(table)["open"] == 0
    assert messages_held(table) == 0
    assert {state for state, _, _ in objects(table).values()} <= {"unprocessed"}


def test_sigterm_releases_within_the_budget_and_the_next_ingest_continues_at_once(gated: Case) -> None:
    whole = truth(gated.source)
    running = at_gate(gated, *ONE_BATCH, "--stop-timeout", f"{STOP_TIMEOUT_SECONDS:g}")
    running.send(signal.SIGTERM)
    ended = running.end(seconds=STOP_TIMEOUT_SECONDS + LATE_SECONDS).expect(STOPPED)
    assert ended.report["stopped"]
    assert ended.report["objects_unfinished"] == OBJECTS
    check_nothing_is_held(gated.table)
    assert messages(gated.table) == OBJECTS
    check_meanwhile(whole, gated.table)

    (gated.folder / transforms.AT_GATE).unlink()
    # Leases are far longer than the test, so this ingest does not wait for one.
    running = at_gate(gated, *ONE_BATCH, "--stop-timeout", "300")
    running.send(signal.SIGTERM)
    open_gate(gated)  # work in flight can finish while the worker drains
    report = running.end().expect(0).report
    assert not report["stopped"]
    assert report["objects_processed"] == OBJECTS
    check_done(whole, gated.table)
    assert {count for _, count, _ in objects(gated.table).values()} == {1}, "a release counts no attempt"
