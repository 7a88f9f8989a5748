"""Crashes at every step and lost responses, on every database."""

import contextlib

import pytest
from sqlalchemy.exc import OperationalError, ProgrammingError
from tests.conformance.ledger.desk import OVER, PIPELINE, Desk, candidate, candidates, object_id_of, outcome
from tests.conformance.ledger.lost import replies_lost

from penstock.errors import ClaimLost, ConfigurationError, PenstockError, TemporaryError
from penstock.ledger import Ledger
from penstock.ledger.records import AttemptFailure, ObjectState
from penstock.messaging.steps import Step

A = object_id_of("a")
ALWAYS = 1_000


class Crash(BaseException):
    """Stands for the end of the process."""


def crashing_at(desk: Desk, step: Step) -> Ledger:
    """Return a ledger on the same database whose process dies at a step."""

    def probe(reached: Step) -> None:
        if reached is step:
            raise Crash(step)

    return Ledger(desk.ledger.database, probe)


# Crashes


def test_steps_are_reached_in_order(desk: Desk) -> None:
    steps: list[Step] = []
    ledger = Ledger(desk.ledger.database, steps.append)
    spied = Desk(ledger, desk.numbers)
    spied.process("a")
    spied.claim(candidates("b"), attempt="b")
    ledger.abandon("b", reason="", outcome="given_back", uncounted=True, unattributed=False)
    opened = [Step.OBJECTS_REGISTERED, Step.ATTEMPT_OPENED]
    assert steps == [*opened, Step.COMMITTING, Step.COMMITTED, *opened, Step.ABANDONED]


def test_a_crash_after_registering_keeps_new_objects_claimed_until_the_lease_ends(desk: Desk) -> None:
    desk.fail(AttemptFailure.RETRY, candidate("known"), "known")
    with pytest.raises(Crash):
        Desk(crashing_at(desk, Step.OBJECTS_REGISTERED)).claim(
            candidates("a", "known"), attempt="crashed", lease_seconds=OVER
        )
    assert (desk.state("a"), desk.state("known")) == (ObjectState.PROCESSING, ObjectState.UNPROCESSED)
    assert desk.claim(candidates("a", "known"), attempt="next").claimed[A].attempts == 2
    assert desk.ledger.abandoned_attempts(PIPELINE)[-1] == "crashed"


def test_a_claim_fails_if_its_attempt_is_abandoned_between_its_two_parts(desk: Desk) -> None:
    desk.fail(AttemptFailure.RETRY, candidate("known"), "known")

    def give_up(step: Step) -> None:
        if step is Step.OBJECTS_REGISTERED:
            assert desk.ledger.abandon("lost", reason="", outcome="expired", uncounted=False, unattributed=False)

    hasty = Desk(Ledger(desk.ledger.database, give_up), desk.numbers)
    with pytest.raises(TemporaryError, match="attempt lost was abandoned while it claimed"):
        hasty.claim(candidates("a", "known"), attempt="lost")
    assert (desk.state("a"), desk.state("known")) == (ObjectState.UNPROCESSED, ObjectState.UNPROCESSED)
    assert desk.ledger.open_attempts(PIPELINE) == []


def test_a_lease_starts_at_the_last_part_of_a_claim() -> None:
    moments = [1_000.0]

    def slow(step: Step) -> None:
        if step is Step.OBJECTS_REGISTERED:
            moments.append(1_050.0)

    ledger = Ledger.open("sqlite://", probe=slow, now=lambda: moments[-1])
    ledger.ensure_pipeline(PIPELINE)
    desk = Desk(ledger)
    desk.fail(AttemptFailure.RETRY, candidate("known"), "known")
    moments.append(1_000.0)
    desk.claim(candidates("a", "known"), attempt="slow", lease_seconds=60.0)
    attempt = ledger.attempt("slow")
    ledger.close()
    assert attempt is not None
    assert (attempt.started_at, attempt.lease_until) == (1_000.0, 1_110.0)


@pytest.mark.parametrize("error", [TemporaryError, ConfigurationError])
def test_a_claim_that_fails_between_its_two_parts_holds_nothing(desk: Desk, error: type[PenstockError]) -> None:
    desk.fail(AttemptFailure.RETRY, candidate("known"), "known")

    def away(step: Step) -> None:
        if step is Step.OBJECTS_REGISTERED:
            raise error("the ledger is away")

    with pytest.raises(error, match="away"):
        Desk(Ledger(desk.ledger.database, away), desk.numbers).claim(candidates("a", "known"))
    assert desk.ledger.open_attempts(PIPELINE) == []
    assert desk.claim(candidates("a")).claimed[A].attempts == 1, "the broken one is not counted"


def test_after_a_crash_with_an_open_attempt_the_expired_lease_frees_its_objects(desk: Desk) -> None:
    with pytest.raises(Crash):
        Desk(crashing_at(desk, Step.ATTEMPT_OPENED)).claim(candidates("a"), attempt="crashed", lease_seconds=OVER)
    assert desk.state("a") is ObjectState.PROCESSING
    assert desk.claim(candidates("a"), attempt="next").claimed[A].attempts == 2
    assert desk.ledger.abandoned_attempts(PIPELINE) == ["crashed"]


def test_a_crash_before_commit_changes_nothing(desk: Desk) -> None:
    claim = desk.claim(candidates("a"))
    before = desk.everything()
    with pytest.raises(Crash):
        crashing_at(desk, Step.COMMITTING).commit(outcome(claim))
    assert desk.everything() == before
    assert desk.ledger.commit(outcome(claim)) == 1


def test_a_crash_after_commit_loses_nothing(desk: Desk) -> None:
    claim = desk.claim(candidates("a"))
    with pytest.raises(Crash):
        crashing_at(desk, Step.COMMITTED).commit(outcome(claim))
    assert desk.state("a") is ObjectState.PROCESSED
    assert desk.ledger.commit(outcome(claim)) == 1
    assert len(desk.ledger.batches(PIPELINE)) == 1


def test_a_crash_after_abandoning_leaves_the_objects_free(desk: Desk) -> None:
    desk.claim(candidates("a"), attempt="first")
    with pytest.raises(Crash):
        crashing_at(desk, Step.ABANDONED).abandon(
            "first", reason="", outcome="given_back", uncounted=False, unattributed=False
        )
    assert desk.state("a") is ObjectState.UNPROCESSED


# Lost responses


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("times", [1, 3])
def test_a_commit_whose_response_is_lost_counts_once(desk: Desk, committed: bool, times: int) -> None:
    claim = desk.claim(candidates("a", "b"))
    with replies_lost(desk.ledger.database.engine, times=times, committed=committed):
        assert desk.ledger.commit(outcome(claim, failed={"b": AttemptFailure.DEAD})) == 1
    assert [batch.attempt_id for batch in desk.ledger.batches(PIPELINE)] == [claim.attempt_id]
    assert (desk.state("a"), desk.state("b")) == (ObjectState.PROCESSED, ObjectState.DEAD)
    assert desk.process("c") == 2


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_without_a_batch_whose_response_is_lost_counts_once(desk: Desk, committed: bool) -> None:
    failed = outcome(desk.claim(candidates("a")), failed={"a": AttemptFailure.RETRY}, uncounted=True)
    with replies_lost(desk.ledger.database.engine, times=1, committed=committed):
        assert desk.ledger.commit(failed) is None
    assert desk.claim(candidates("a")).claimed[A].attempts == 1, "uncounted once"


def test_a_commit_that_never_gets_a_response_can_be_repeated(desk: Desk) -> None:
    claim = desk.claim(candidates("a"))
    with (
        replies_lost(desk.ledger.database.engine, times=ALWAYS, committed=False),
        pytest.raises(TemporaryError, match=claim.attempt_id),
    ):
        desk.ledger.commit(outcome(claim))
    assert desk.ledger.commit(outcome(claim)) == 1


def test_a_claim_lost_while_a_commit_waits_for_its_response_raises_claim_lost(shared_desk: Desk) -> None:
    claim = shared_desk.claim(candidates("a"), lease_seconds=OVER)
    other = Ledger.open(shared_desk.url)
    with (
        replies_lost(
            shared_desk.ledger.database.engine,
            times=1,
            committed=False,
            meanwhile=lambda: other.abandon_expired(PIPELINE),
        ),
        pytest.raises(ClaimLost),
    ):
        shared_desk.ledger.commit(outcome(claim))
    other.close()
    assert shared_desk.ledger.batches(PIPELINE) == []


@pytest.mark.parametrize("committed", [True, False])
def test_a_claim_whose_response_is_lost_holds_nothing(desk: Desk, committed: bool) -> None:
    desk.fail(
        AttemptFailure.RETRY, candidate("a"), "a"
    )  # registered, so that the next COMMIT that matters is the claim's
    engine = desk.ledger.database.engine
    with contextlib.ExitStack() as stack:

        def lose(step: Step) -> None:
            if step is Step.OBJECTS_REGISTERED:
                stack.enter_context(replies_lost(engine, times=1, committed=committed))

        with pytest.raises(TemporaryError):
            Desk(Ledger(desk.ledger.database, lose), desk.numbers).claim(candidates("a"), attempt="unknown")
    assert desk.ledger.open_attempts(PIPELINE) == []
    assert desk.claim(candidates("a")).claimed[A].attempts == 2, "the unknown one is not counted"


def test_an_error_in_a_transaction_rolls_back_and_the_connection_stays_usable(desk: Desk) -> None:
    before = desk.everything()
    missing = (OperationalError, ProgrammingError)
    with pytest.raises(missing), desk.ledger.database.writing() as connection:  # noqa: PT012 - the block is it
        connection.exec_driver_sql("UPDATE pipelines SET next_seq = 99")
        connection.exec_driver_sql("SELECT nonsense FROM nowhere")
    assert desk.everything() == before
    assert desk.process("a") == 1
