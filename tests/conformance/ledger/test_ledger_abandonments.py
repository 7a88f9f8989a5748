"""Abandoning attempts, on every database."""

import pytest
from tests.conformance.ledger.desk import OVER, PIPELINE, Desk, candidates, object_id_of, outcome

from penstock.ledger.records import AttemptState, ObjectState

A = object_id_of("a")


def abandon(desk: Desk, attempt: str, *, uncounted: bool = False, unattributed: bool = False) -> bool:
    return desk.ledger.abandon(
        attempt, reason="the worker stops", outcome="given_back", uncounted=uncounted, unattributed=unattributed
    )


def test_an_abandoned_attempt_frees_its_objects_and_records_the_reason(desk: Desk) -> None:
    desk.claim(candidates("a", "b"), attempt="first")
    assert abandon(desk, "first")
    assert [desk.state(name) for name in "ab"] == [ObjectState.UNPROCESSED] * 2
    attempt = desk.ledger.attempt("first")
    assert attempt is not None
    assert (attempt.state, attempt.reason) == (AttemptState.ABANDONED, "the worker stops")
    assert attempt.ended_at is not None
    assert desk.timeline("a") == [("first", "given_back", "the worker stops")]
    assert set(desk.claim(candidates("a", "b")).claimed) == {A, object_id_of("b")}


@pytest.mark.parametrize(
    ("uncounted", "unattributed", "attempts", "failures"),
    [(False, False, 2, 0), (True, False, 1, 0), (False, True, 2, 1)],
)
def test_abandoned_attempts_count_unless_uncounted_and_unattributed_failures_are_recorded(
    desk: Desk, uncounted: bool, unattributed: bool, attempts: int, failures: int
) -> None:
    desk.claim(candidates("a"), attempt="first")
    abandon(desk, "first", uncounted=uncounted, unattributed=unattributed)
    claimed = desk.claim(candidates("a")).claimed[A]
    assert (claimed.attempts, claimed.unattributed_failures) == (attempts, failures)
    assert desk.ledger.unattributed_failures(PIPELINE, [A, b"?" * 16]) == {A: failures, b"?" * 16: 0}


def test_an_attempt_is_abandoned_once(desk: Desk) -> None:
    desk.claim(candidates("a"), attempt="first")
    assert [abandon(desk, "first", uncounted=True) for _ in range(2)] == [True, False]
    assert desk.claim(candidates("a")).claimed[A].attempts == 1


def test_a_committed_or_unknown_attempt_cannot_be_abandoned(desk: Desk) -> None:
    desk.ledger.commit(outcome(desk.claim(candidates("a"), attempt="committed")))
    before = desk.everything()
    assert [abandon(desk, attempt) for attempt in ("committed", "never heard of")] == [False, False]
    assert desk.everything() == before


def test_abandoning_a_stale_attempt_leaves_objects_of_another_attempt_alone(desk: Desk) -> None:
    desk.claim(candidates("a"), attempt="slow", lease_seconds=OVER)
    desk.claim(candidates("a"), attempt="next")
    assert not abandon(desk, "slow")
    assert desk.state("a") is ObjectState.PROCESSING
    assert desk.claim(candidates("a")).claimed == {}


def test_expired_attempts_are_abandoned_and_counted_and_running_ones_are_not(desk: Desk) -> None:
    desk.claim(candidates("b"), attempt="runs")
    desk.claim(candidates("a"), attempt="expired", lease_seconds=OVER)
    assert desk.ledger.abandon_expired(PIPELINE) == ["expired"]
    assert desk.ledger.abandon_expired(PIPELINE) == []
    assert desk.claim(candidates("a")).claimed[A].attempts == 2
    assert desk.state("b") is ObjectState.PROCESSING


def test_a_dead_workers_attempts_are_abandoned_regardless_of_their_lease(desk: Desk) -> None:
    for name, worker in (("a", "dead"), ("b", "dead"), ("c", "alive")):
        desk.claim(candidates(name), attempt=f"{name} by {worker}", worker=worker)
    assert sorted(desk.ledger.abandon_worker(PIPELINE, "dead")) == ["a by dead", "b by dead"]
    assert desk.timeline("a") == [("a by dead", "worker_died", "worker dead died")]
    assert [attempt.worker for attempt in desk.ledger.open_attempts(PIPELINE)] == ["alive"]
    assert desk.claim(candidates("a")).claimed[A].attempts == 2


def test_abandoned_attempts_are_listed_on_every_call(desk: Desk) -> None:
    for name in ("b", "a"):
        desk.claim(candidates("x"), attempt=name)
        abandon(desk, name)
    desk.process("x")
    assert [desk.ledger.abandoned_attempts(PIPELINE) for _ in range(2)] == [["a", "b"]] * 2


def test_abandoning_is_limited_to_one_pipeline(desk: Desk) -> None:
    desk.ledger.ensure_pipeline("other")
    desk.claim(candidates("a"), attempt="other's", worker="dead", lease_seconds=OVER, pipeline="other")
    assert desk.ledger.abandon_expired(PIPELINE) == []
    assert desk.ledger.abandon_worker(PIPELINE, "dead") == []
    assert desk.ledger.abandoned_attempts("other") == []
