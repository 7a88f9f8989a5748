"""Abandoning attempts, on every database."""

import pytest
from tests.conformance.ledger.ledger_harness import OVER, PIPELINE, LedgerHarness, candidates, object_id_of, outcome

from penstock.ledger.records import AttemptState, ObjectState

A = object_id_of("a")


def abandon(harness: LedgerHarness, attempt: str, *, uncounted: bool = False, unattributed: bool = False) -> bool:
    return harness.ledger.abandon(
        attempt, reason="the worker stops", outcome="given_back", uncounted=uncounted, unattributed=unattributed
    )


def test_an_abandoned_attempt_frees_its_objects_and_records_the_reason(harness: LedgerHarness) -> None:
    harness.claim(candidates("a", "b"), attempt="first")
    assert abandon(harness, "first")
    assert [harness.state(name) for name in "ab"] == [ObjectState.UNPROCESSED] * 2
    attempt = harness.ledger.attempt("first")
    assert attempt is not None
    assert (attempt.state, attempt.reason) == (AttemptState.ABANDONED, "the worker stops")
    assert attempt.ended_at is not None
    assert harness.timeline("a") == [("first", "given_back", "the worker stops")]
    assert set(harness.claim(candidates("a", "b")).claimed) == {A, object_id_of("b")}


@pytest.mark.parametrize(
    ("uncounted", "unattributed", "attempts", "failures"),
    [(False, False, 2, 0), (True, False, 1, 0), (False, True, 2, 1)],
)
def test_abandoned_attempts_count_unless_uncounted_and_unattributed_failures_are_recorded(
    harness: LedgerHarness, uncounted: bool, unattributed: bool, attempts: int, failures: int
) -> None:
    harness.claim(candidates("a"), attempt="first")
    abandon(harness, "first", uncounted=uncounted, unattributed=unattributed)
    claimed = harness.claim(candidates("a")).claimed[A]
    assert (claimed.attempts, claimed.unattributed_failures) == (attempts, failures)
    assert harness.ledger.unattributed_failures(PIPELINE, [A, b"?" * 16]) == {A: failures, b"?" * 16: 0}


def test_an_attempt_is_abandoned_once(harness: LedgerHarness) -> None:
    harness.claim(candidates("a"), attempt="first")
    assert [abandon(harness, "first", uncounted=True) for _ in range(2)] == [True, False]
    assert harness.claim(candidates("a")).claimed[A].attempts == 1


def test_a_committed_or_unknown_attempt_cannot_be_abandoned(harness: LedgerHarness) -> None:
    harness.ledger.commit(outcome(harness.claim(candidates("a"), attempt="committed")))
    before = harness.everything()
    assert [abandon(harness, attempt) for attempt in ("committed", "never heard of")] == [False, False]
    assert harness.everything() == before


def test_abandoning_a_stale_attempt_leaves_objects_of_another_attempt_alone(harness: LedgerHarness) -> None:
    harness.claim(candidates("a"), attempt="slow", lease_seconds=OVER)
    harness.claim(candidates("a"), attempt="next")
    assert not abandon(harness, "slow")
    assert harness.state("a") is ObjectState.PROCESSING
    assert harness.claim(candidates("a")).claimed == {}


def test_expired_attempts_are_abandoned_and_counted_and_running_ones_are_not(harness: LedgerHarness) -> None:
    harness.claim(candidates("b"), attempt="runs")
    harness.claim(candidates("a"), attempt="expired", lease_seconds=OVER)
    assert harness.ledger.abandon_expired(PIPELINE) == ["expired"]
    assert harness.ledger.abandon_expired(PIPELINE) == []
    assert harness.claim(candidates("a")).claimed[A].attempts == 2
    assert harness.state("b") is ObjectState.PROCESSING


def test_a_dead_workers_attempts_are_abandoned_regardless_of_their_lease(harness: LedgerHarness) -> None:
    for name, worker in (("a", "dead"), ("b", "dead"), ("c", "alive")):
        harness.claim(candidates(name), attempt=f"{name} by {worker}", worker=worker)
    assert sorted(harness.ledger.abandon_worker(PIPELINE, "dead")) == ["a by dead", "b by dead"]
    assert harness.timeline("a") == [("a by dead", "worker_died", "worker dead died")]
    assert [attempt.worker for attempt in harness.ledger.open_attempts(PIPELINE)] == ["alive"]
    assert harness.claim(candidates("a")).claimed[A].attempts == 2


def test_abandoned_attempts_are_listed_on_every_call(harness: LedgerHarness) -> None:
    for name in ("b", "a"):
        harness.claim(candidates("x"), attempt=name)
        abandon(harness, name)
    harness.process("x")
    assert [harness.ledger.abandoned_attempts(PIPELINE) for _ in range(2)] == [["a", "b"]] * 2


def test_abandoning_is_limited_to_one_pipeline(harness: LedgerHarness) -> None:
    harness.ledger.ensure_pipeline("other")
    harness.claim(candidates("a"), attempt="other's", worker="dead", lease_seconds=OVER, pipeline="other")
    assert harness.ledger.abandon_expired(PIPELINE) == []
    assert harness.ledger.abandon_worker(PIPELINE, "dead") == []
    assert harness.ledger.abandoned_attempts("other") == []
