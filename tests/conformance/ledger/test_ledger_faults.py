"""Crashes at every step and lost responses, on every database."""

import contextlib

import pytest
from sqlalchemy.exc import OperationalError, ProgrammingError
from tests.conformance.ledger.ledger_harness import (
    OVER,
    PIPELINE,
    LedgerHarness,
    candidate,
    candidates,
    object_id_of,
    outcome,
)
from tests.conformance.ledger.lost_responses import responses_lost

from penstock.errors import ClaimLost, ConfigurationError, PenstockError, TemporaryError
from penstock.ledger import Ledger
from penstock.ledger.records import AttemptFailure, Committed, ObjectState
from penstock.messaging.steps import Step

A = object_id_of("a")
ALWAYS = 1_000


class Crash(BaseException):
    """Simulates the death of the process."""


def crashing_at(harness: LedgerHarness, step: Step) -> Ledger:
    """Return a ledger on the same database whose process dies at a step."""

    def probe(reached: Step) -> None:
        if reached is step:
            raise Crash(step)

    return Ledger(harness.ledger.database, probe)


# Crashes


def test_steps_are_reached_in_order(harness: LedgerHarness) -> None:
    steps: list[Step] = []
    ledger = Ledger(harness.ledger.database, steps.append)
    spied = LedgerHarness(ledger, harness.numbers)
    spied.process("a")
    spied.claim(candidates("b"), attempt="b")
    ledger.abandon("b", reason="", outcome="given_back", uncounted=True, unattributed=False)
    opened = [Step.OBJECTS_REGISTERED, Step.ATTEMPT_OPENED]
    assert steps == [*opened, Step.COMMITTING, Step.COMMITTED, *opened, Step.ABANDONED]


def test_a_crash_after_registering_keeps_new_objects_claimed_until_the_lease_ends(harness: LedgerHarness) -> None:
    harness.fail(AttemptFailure.RETRY, candidate("known"), "known")
    with pytest.raises(Crash):
        LedgerHarness(crashing_at(harness, Step.OBJECTS_REGISTERED)).claim(
            candidates("a", "known"), attempt="crashed", lease_seconds=OVER
        )
    assert (harness.state("a"), harness.state("known")) == (ObjectState.PROCESSING, ObjectState.UNPROCESSED)
    assert harness.claim(candidates("a", "known"), attempt="next").claimed[A].attempts == 2
    assert harness.ledger.abandoned_attempts(PIPELINE)[-1] == "crashed"


def test_a_claim_fails_if_its_attempt_is_abandoned_between_its_two_parts(harness: LedgerHarness) -> None:
    harness.fail(AttemptFailure.RETRY, candidate("known"), "known")

    def give_up(step: Step) -> None:
        if step is Step.OBJECTS_REGISTERED:
            assert harness.ledger.abandon("lost", reason="", outcome="expired", uncounted=False, unattributed=False)

    hasty = LedgerHarness(Ledger(harness.ledger.database, give_up), harness.numbers)
    with pytest.raises(TemporaryError, match="attempt lost was abandoned while it claimed"):
        hasty.claim(candidates("a", "known"), attempt="lost")
    assert (harness.state("a"), harness.state("known")) == (ObjectState.UNPROCESSED, ObjectState.UNPROCESSED)
    assert harness.ledger.open_attempts(PIPELINE) == []


def test_a_lease_starts_at_the_last_part_of_a_claim() -> None:
    moments = [1_000.0]

    def slow(step: Step) -> None:
        if step is Step.OBJECTS_REGISTERED:
            moments.append(1_050.0)

    ledger = Ledger.open("sqlite://", probe=slow, now=lambda: moments[-1])
    ledger.ensure_pipeline(PIPELINE)
    harness = LedgerHarness(ledger)
    harness.fail(AttemptFailure.RETRY, candidate("known"), "known")
    moments.append(1_000.0)
    harness.claim(candidates("a", "known"), attempt="slow", lease_seconds=60.0)
    attempt = ledger.attempt("slow")
    ledger.close()
    assert attempt is not None
    assert (attempt.started_at, attempt.lease_until) == (1_000.0, 1_110.0)


@pytest.mark.parametrize("error", [TemporaryError, ConfigurationError])
def test_a_claim_that_fails_between_its_two_parts_holds_nothing(
    harness: LedgerHarness, error: type[PenstockError]
) -> None:
    harness.fail(AttemptFailure.RETRY, candidate("known"), "known")

    def fail(step: Step) -> None:
        if step is Step.OBJECTS_REGISTERED:
            raise error("the ledger is away")

    with pytest.raises(error, match="away"):
        LedgerHarness(Ledger(harness.ledger.database, fail), harness.numbers).claim(candidates("a", "known"))
    assert harness.ledger.open_attempts(PIPELINE) == []
    assert harness.claim(candidates("a")).claimed[A].attempts == 1, "the broken one is not counted"


def test_after_a_crash_with_an_open_attempt_the_expired_lease_frees_its_objects(harness: LedgerHarness) -> None:
    with pytest.raises(Crash):
        LedgerHarness(crashing_at(harness, Step.ATTEMPT_OPENED)).claim(
            candidates("a"), attempt="crashed", lease_seconds=OVER
        )
    assert harness.state("a") is ObjectState.PROCESSING
    assert harness.claim(candidates("a"), attempt="next").claimed[A].attempts == 2
    assert harness.ledger.abandoned_attempts(PIPELINE) == ["crashed"]


def test_a_crash_before_commit_changes_nothing(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a"))
    before = harness.everything()
    with pytest.raises(Crash):
        crashing_at(harness, Step.COMMITTING).commit(outcome(claim))
    assert harness.everything() == before
    assert harness.ledger.commit(outcome(claim)) == Committed(seq=1)


def test_a_crash_after_commit_loses_nothing(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a"))
    with pytest.raises(Crash):
        crashing_at(harness, Step.COMMITTED).commit(outcome(claim))
    assert harness.state("a") is ObjectState.PROCESSED
    assert harness.ledger.commit(outcome(claim)) == Committed(seq=1)
    assert len(harness.ledger.batches(PIPELINE)) == 1


def test_a_crash_after_abandoning_leaves_the_objects_free(harness: LedgerHarness) -> None:
    harness.claim(candidates("a"), attempt="first")
    with pytest.raises(Crash):
        crashing_at(harness, Step.ABANDONED).abandon(
            "first", reason="", outcome="given_back", uncounted=False, unattributed=False
        )
    assert harness.state("a") is ObjectState.UNPROCESSED


# Lost responses


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("times", [1, 3])
def test_a_commit_whose_response_is_lost_counts_once(harness: LedgerHarness, committed: bool, times: int) -> None:
    claim = harness.claim(candidates("a", "b"))
    with responses_lost(harness.ledger.database.engine, times=times, committed=committed):
        assert harness.ledger.commit(outcome(claim, failed={"b": AttemptFailure.DEAD})) == Committed(seq=1)
    assert [batch.attempt_id for batch in harness.ledger.batches(PIPELINE)] == [claim.attempt_id]
    assert (harness.state("a"), harness.state("b")) == (ObjectState.PROCESSED, ObjectState.DEAD)
    assert harness.process("c") == 2


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_without_a_batch_whose_response_is_lost_counts_once(harness: LedgerHarness, committed: bool) -> None:
    failed = outcome(harness.claim(candidates("a")), failed={"a": AttemptFailure.RETRY}, uncounted=True)
    with responses_lost(harness.ledger.database.engine, times=1, committed=committed):
        assert harness.ledger.commit(failed) is None
    assert harness.claim(candidates("a")).claimed[A].attempts == 1, "uncounted once"


def test_a_commit_that_never_gets_a_response_can_be_repeated(harness: LedgerHarness) -> None:
    claim = harness.claim(candidates("a"))
    with (
        responses_lost(harness.ledger.database.engine, times=ALWAYS, committed=False),
        pytest.raises(TemporaryError, match=claim.attempt_id),
    ):
        harness.ledger.commit(outcome(claim))
    assert harness.ledger.commit(outcome(claim)) == Committed(seq=1)


def test_a_claim_lost_while_a_commit_waits_for_its_response_raises_claim_lost(shared_harness: LedgerHarness) -> None:
    claim = shared_harness.claim(candidates("a"), lease_seconds=OVER)
    other = Ledger.open(shared_harness.url)
    with (
        responses_lost(
            shared_harness.ledger.database.engine,
            times=1,
            committed=False,
            meanwhile=lambda: other.abandon_expired(PIPELINE),
        ),
        pytest.raises(ClaimLost),
    ):
        shared_harness.ledger.commit(outcome(claim))
    other.close()
    assert shared_harness.ledger.batches(PIPELINE) == []


@pytest.mark.parametrize("committed", [True, False])
def test_a_claim_whose_response_is_lost_holds_nothing(harness: LedgerHarness, committed: bool) -> None:
    harness.fail(
        AttemptFailure.RETRY, candidate("a"), "a"
    )  # registered, so that the next COMMIT that matters is the claim's
    engine = harness.ledger.database.engine
    with contextlib.ExitStack() as stack:

        def lose(step: Step) -> None:
            if step is Step.OBJECTS_REGISTERED:
                stack.enter_context(responses_lost(engine, times=1, committed=committed))

        with pytest.raises(TemporaryError):
            LedgerHarness(Ledger(harness.ledger.database, lose), harness.numbers).claim(
                candidates("a"), attempt="unknown"
            )
    assert harness.ledger.open_attempts(PIPELINE) == []
    assert harness.claim(candidates("a")).claimed[A].attempts == 2, "the unknown one is not counted"


def test_an_error_in_a_transaction_rolls_back_and_the_connection_stays_usable(harness: LedgerHarness) -> None:
    before = harness.everything()
    missing = (OperationalError, ProgrammingError)
    with pytest.raises(missing), harness.ledger.database.writing() as connection:  # noqa: PT012 - the block is it
        connection.exec_driver_sql("UPDATE pipelines SET next_seq = 99")
        connection.exec_driver_sql("SELECT nonsense FROM nowhere")
    assert harness.everything() == before
    assert harness.process("a") == 1
