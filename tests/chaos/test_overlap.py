"""Two batches of one ingest in flight, killed, stopped, and at the end of their work. Only a slow test needs Spark.

`test_cluster_kills.py` has the same kills on a cluster with S3.
"""

import shutil
import signal
from pathlib import Path

import pytest
from tests.chaos import transforms
from tests.chaos.oracle import attempts, check_done, check_meanwhile, messages, messages_held, objects, query
from tests.chaos.overlap import (
    BATCH_OBJECTS,
    DEATHS,
    OPTIONS,
    add_two_batches,
    attempts_of,
    check_numbers,
    committed_in_pairs,
    finish,
    is_held,
    kill_in_turn,
    left_open,
    open_gate,
    shut_gate,
    two_in_flight,
)
from tests.chaos.runs import STOPPED, Case
from tests.chaos.test_kill_steps import AFTER_A_DEATH, ONCE, STORY

from penstock.messaging.steps import Step

pytestmark = pytest.mark.timeout(900)

QUICK = {Step.ATTEMPT_OPENED, Step.WRITTEN, Step.COMMITTING, Step.COMMITTED, Step.SETTLING}
STOP_TIMEOUT_SECONDS = 12.0  # far less than the gate holds a run
LEASE_SECONDS = 3.0  # the shortest
LATE_SECONDS = 30.0  # allowance for a busy machine


@pytest.fixture
def two(case: Case) -> Case:
    """Return a case with the objects of two full batches."""
    add_two_batches(case, 0)
    return case


def test_every_step_that_a_batch_reaches_beside_another_one_has_a_kill() -> None:
    assert {death.step for death in DEATHS} == set(STORY) - ONCE - AFTER_A_DEATH


def test_kills_of_a_batch_beside_one_that_runs_lose_nothing(case: Case) -> None:
    kill_in_turn(case, [death for death in DEATHS if death.step in QUICK])


@pytest.mark.slow
def test_kills_at_every_step_of_a_batch_beside_one_that_runs_lose_nothing(case: Case) -> None:
    kill_in_turn(case, DEATHS)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_kills_at_every_step_of_a_batch_beside_one_that_runs_on_spark_lose_nothing(spark_case: Case) -> None:
    shutil.copy(transforms.__file__, spark_case.folder / "transforms.py")
    kill_in_turn(spark_case, DEATHS, "--transform", "transforms:held_by_name")


def test_a_later_batch_is_committed_and_visible_first_and_the_ingest_waits_for_the_older_one(two: Case) -> None:
    shut_gate(two)
    running = two.start(*OPTIONS)
    running.wait_until(lambda: is_held(two) and messages(two.table) == BATCH_OBJECTS)  # those of the second are acked
    assert two_in_flight(two.table)
    seen = check_meanwhile(two.truth(), two.table)
    assert seen.rows == seen.missing, "the second batch is visible, and the first is not"
    held = left_open(two.table)[0].id
    open_gate(two)
    report = running.end().expect(0).report
    assert (report["batches"], report["objects_processed"]) == (2, 2 * BATCH_OBJECTS)
    check_done(two.truth(), two.table)
    assert query(two.table, "SELECT attempt_id FROM batches WHERE seq = 2") == [(held,)]
    assert check_numbers(two.table) == 2


def test_batches_that_outlast_their_leases_keep_messages_and_claims_of_both(two: Case) -> None:
    """A third batch waits with its messages leased."""
    two.add_objects(range(2 * BATCH_OBJECTS, 3 * BATCH_OBJECTS))
    shut_gate(two, None)
    running = two.start(*OPTIONS, worker_lease=LEASE_SECONDS)
    running.wait_until(lambda: len(left_open(two.table)) == 2 and messages_held(two.table) == 3 * BATCH_OBJECTS)
    first_leases = leases(two.table)
    assert len(first_leases) == 2
    running.wait_until(
        lambda: all(leases(two.table)[id] > until + 2 * LEASE_SECONDS for id, until in first_leases.items())
    )
    assert messages_held(two.table) == 3 * BATCH_OBJECTS
    open_gate(two)
    running.end().expect(0)
    check_done(two.truth(), two.table)
    assert attempts(two.table) == {"committed": 3}
    assert {attempt for (attempt,) in query(two.table, "SELECT charged - refunds FROM objects")} == {1}


def leases(table: Path) -> dict[str, float]:
    """Return the ends of the leases of open attempts."""
    return dict(query(table, "SELECT id, lease_until FROM attempts WHERE state = 'open'"))  # type: ignore[arg-type]


def test_sigterm_with_two_batches_in_flight_releases_both_within_the_budget(two: Case) -> None:
    shut_gate(two, None)
    running = two.start(*OPTIONS, "--stop-timeout", f"{STOP_TIMEOUT_SECONDS:g}")
    running.wait_until(lambda: len(left_open(two.table)) == 2)
    running.send(signal.SIGTERM)
    ended = running.end(seconds=STOP_TIMEOUT_SECONDS + LATE_SECONDS).expect(STOPPED)
    assert ended.report["objects_unfinished"] == 2 * BATCH_OBJECTS
    assert (left_open(two.table), messages_held(two.table)) == ([], 0)
    assert {count for _, count, _ in objects(two.table).values()} == {0}, "a release counts no attempt"
    finish(two)


def test_sigterm_lets_two_batches_in_flight_end_and_both_are_committed(two: Case) -> None:
    shut_gate(two, None)
    running = two.start(*OPTIONS, "--stop-timeout", "300")  # nearly all of it for draining
    running.wait_until(lambda: len(left_open(two.table)) == 2)
    running.send(signal.SIGTERM)
    running.wait_until(lambda: "stopping" in running.log())
    open_gate(two)
    report = running.end().expect(0).report
    assert (report["stopped"], report["batches"]) == (False, 2)
    check_done(two.truth(), two.table)
    assert committed_in_pairs(two.table) == 2


def test_a_stop_keeps_the_batch_that_ended_in_time_and_releases_the_other_one(two: Case) -> None:
    shut_gate(two)
    running = two.start(*OPTIONS, "--stop-timeout", f"{STOP_TIMEOUT_SECONDS:g}")
    running.wait_until(lambda: is_held(two) and messages(two.table) == BATCH_OBJECTS)
    running.send(signal.SIGTERM)
    ended = running.end(seconds=STOP_TIMEOUT_SECONDS + LATE_SECONDS).expect(STOPPED)
    assert (ended.report["objects_processed"], ended.report["objects_unfinished"]) == (BATCH_OBJECTS, BATCH_OBJECTS)
    seen = check_meanwhile(two.truth(), two.table)
    assert seen.rows == seen.missing, "one of the two batches is visible"
    finish(two)


def test_watching_commits_a_later_batch_beside_one_that_runs_and_ends_both_at_a_stop(two: Case) -> None:
    shut_gate(two)
    running = two.start(*OPTIONS, "--watch", "--settle", "0.1")
    running.wait_until(lambda: is_held(two) and check_numbers(two.table) == 1)
    two.add_objects(range(2 * BATCH_OBJECTS, 3 * BATCH_OBJECTS))
    running.wait_until(lambda: check_numbers(two.table) == 2)
    assert [attempt.state for attempt in attempts_of(two.table)].count("open") == 1
    running.send(signal.SIGTERM)
    running.wait_until(lambda: "stopping" in running.log())
    open_gate(two)
    running.end().expect(0)
    check_done(two.truth(), two.table)
    assert check_numbers(two.table) == 3
