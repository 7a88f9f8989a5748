"""Failed objects, their original messages, and the messages that revive them."""

import pytest
from tests.conformance.ledger.concurrency import once_after
from tests.conformance.ledger.ledger_harness import (
    AFTER,
    BEFORE,
    PIPELINE,
    LedgerHarness,
    candidate,
    object_id_of,
    outcome,
)

from penstock.ledger.records import AttemptFailure, ObjectClaims, ObjectRow, ObjectState, OriginalMessage

REPLAYS_LOOKED_UP = "object_attempts.replay_id ... IS NOT NULL"  # of objects seen as dead
A = object_id_of("a")
REVIVER = OriginalMessage(message_id="m-2", enqueued_at=BEFORE, replay_id="r-1")


def die(
    harness: LedgerHarness, *, message: str = "m-1", replay: str | None = None, enqueued_at: float = BEFORE
) -> None:
    wanted = candidate("a", message=message, replay=replay, enqueued_at=enqueued_at)
    harness.fail(AttemptFailure.DEAD, wanted, "a")
    assert harness.state("a") is ObjectState.DEAD


def live_again(harness: LedgerHarness, *, message: str = "m-2", replay: str = "r-1") -> None:
    """Revive the object, fail it once, and leave it free between two attempts."""
    harness.fail(AttemptFailure.RETRY, candidate("a", message=message, replay=replay), "a")
    assert harness.state("a") is ObjectState.UNPROCESSED


def release(harness: LedgerHarness, claim: ObjectClaims) -> None:
    harness.ledger.abandon(claim.attempt_id, reason="", outcome="given_back", uncounted=True, unattributed=False)


def row_of(harness: LedgerHarness) -> ObjectRow:
    (row,) = harness.ledger.objects(PIPELINE)
    return row


@pytest.mark.parametrize(
    ("message", "replay", "enqueued_at", "revived"),
    [
        pytest.param("m-1", None, BEFORE, False, id="its original message, redelivered"),
        pytest.param("m-2", None, BEFORE, False, id="another message of before"),
        pytest.param("m-2", None, AFTER, True, id="sent back from a console: enqueued after the death"),
        pytest.param("m-1", None, AFTER, True, id="the same, keeping its message id"),
        pytest.param("m-2", "r-1", BEFORE, True, id="a replay"),
    ],
)
def test_a_failed_object_is_revived_by_a_replay_or_a_message_sent_after_its_death(
    harness: LedgerHarness, message: str, replay: str | None, enqueued_at: float, revived: bool
) -> None:
    die(harness)
    claim = harness.claim([candidate("a", message=message, replay=replay, enqueued_at=enqueued_at)])
    assert (set(claim.claimed), set(claim.ended)) == (({A}, set()) if revived else (set(), {A}))
    expected = OriginalMessage(message_id=message, enqueued_at=enqueued_at, replay_id=replay)
    assert not revived or claim.claimed[A].original_message == expected


def test_a_replay_revives_once(harness: LedgerHarness) -> None:
    die(harness)
    die(harness, message="m-2", replay="r-1")
    redelivered = harness.claim([candidate("a", message="m-2", replay="r-1")])
    assert redelivered.ended[A].original_message == OriginalMessage(
        message_id="m-2", enqueued_at=BEFORE, replay_id="r-1"
    )
    die(harness, message="m-3", replay="r-2")
    spent = harness.claim([candidate("a", message="m-2", replay="r-1")])
    assert set(spent.ended) == {A}, "r-1 had its life; r-2 being the last one does not make it new"


def test_the_original_message_revives_nothing_even_if_its_brokers_clock_is_ahead_of_the_databases(
    harness: LedgerHarness,
) -> None:
    die(harness, message="m-1", enqueued_at=AFTER)
    assert set(harness.claim([candidate("a", message="m-1", enqueued_at=AFTER)]).ended) == {A}


def test_the_first_message_that_can_revive_an_object_becomes_its_original_message(harness: LedgerHarness) -> None:
    die(harness)
    claim = harness.claim([candidate("a", message="m-1"), candidate("a", message="m-2", replay="r-1")])
    assert claim.claimed[A].original_message == REVIVER == row_of(harness).original_message


def test_a_revived_object_counts_attempts_from_zero_and_keeps_its_history(harness: LedgerHarness) -> None:
    harness.fail(AttemptFailure.RETRY, candidate("a"), "a")
    die(harness)
    claim = harness.claim([candidate("a", replay="r-1")])
    assert claim.claimed[A].attempts == 1
    assert [outcome for _, outcome, _ in harness.timeline("a")] == ["retry", "dead", "open"]


def test_a_released_revival_can_be_claimed_by_any_message(harness: LedgerHarness) -> None:
    die(harness)
    claim = harness.claim([candidate("a", message="m-2", replay="r-1")])
    release(harness, claim)
    again = harness.claim([candidate("a", message="m-3")])
    assert again.claimed[A].original_message == REVIVER, "the message that claims it need not be the original message"


# A second life, and a message sent before the death that a worker held meanwhile


def test_a_message_sent_before_the_death_can_claim_the_next_life_but_is_not_its_original_message(
    harness: LedgerHarness,
) -> None:
    die(harness)
    live_again(harness)
    late = harness.claim([candidate("a", message="m-1")])
    assert late.claimed[A].original_message == REVIVER
    harness.ledger.commit(outcome(late, failed={"a": AttemptFailure.DEAD}))
    for message, replay in (("m-1", None), ("m-2", "r-1")):
        found = harness.claim([candidate("a", message=message, replay=replay)])
        assert found.ended[A].original_message == REVIVER, "so m-1 is acked, and m-2 is dead-lettered"


@pytest.mark.parametrize("failure", [AttemptFailure.RETRY, AttemptFailure.DEAD])
def test_the_latest_claim_sets_the_original_message_of_an_object_that_never_died(
    harness: LedgerHarness, failure: AttemptFailure
) -> None:
    harness.fail(AttemptFailure.RETRY, candidate("a", message="m-1", enqueued_at=AFTER), "a")
    claim = harness.claim([candidate("a", message="m-2")])
    assert claim.claimed[A].original_message.message_id == "m-2"
    harness.ledger.commit(outcome(claim, failed={"a": failure}))
    assert row_of(harness).original_message == OriginalMessage(message_id="m-2", enqueued_at=BEFORE)


@pytest.mark.parametrize(
    ("message", "replay", "enqueued_at"),
    [
        pytest.param("m-3", "r-2", BEFORE, id="a replay of the dead letter that its original message became"),
        pytest.param("m-3", None, AFTER, id="sent after the death, by a reconcile or a console"),
        pytest.param("m-3", "r-1", AFTER, id="the replay sent a second time"),
    ],
)
def test_a_message_that_could_have_revived_an_object_becomes_its_original_message(
    harness: LedgerHarness, message: str, replay: str | None, enqueued_at: float
) -> None:
    die(harness)
    live_again(harness)
    newer = candidate("a", message=message, replay=replay, enqueued_at=enqueued_at)
    claim = harness.claim([candidate("a", message="m-1"), newer])
    assert claim.claimed[A].original_message == newer.original_message == row_of(harness).original_message
    harness.ledger.commit(outcome(claim, failed={"a": AttemptFailure.RETRY}))
    old = harness.claim([candidate("a", message="m-1")])
    assert old.claimed[A].original_message == newer.original_message


def test_a_third_life_keeps_the_original_message_that_the_second_death_allowed(harness: LedgerHarness) -> None:
    die(harness)
    die(harness, message="m-2", replay="r-1")
    live_again(harness, message="m-3", replay="r-2")
    spent = harness.claim([candidate("a", message="m-2", replay="r-1")])
    assert spent.claimed[A].original_message == OriginalMessage(message_id="m-3", enqueued_at=BEFORE, replay_id="r-2")


def test_a_replay_that_was_not_the_original_message_can_still_revive(harness: LedgerHarness) -> None:
    die(harness)
    live_again(harness)
    both = harness.claim([candidate("a", message="m-3", replay="r-2"), candidate("a", message="m-4", replay="r-3")])
    harness.ledger.commit(outcome(both, failed={"a": AttemptFailure.DEAD}))
    assert set(harness.claim([candidate("a", message="m-4", replay="r-3")]).claimed) == {A}


def test_each_object_of_a_claim_has_its_own_original_message(harness: LedgerHarness) -> None:
    die(harness)
    live_again(harness)
    harness.fail(AttemptFailure.RETRY, candidate("b"), "b")
    claim = harness.claim([candidate(name, message="m-9") for name in "abc"])
    original_messages = {name: claim.claimed[object_id_of(name)].original_message.message_id for name in "abc"}
    assert original_messages == {"a": "m-2", "b": "m-9", "c": "m-9"}


# Between two statements of a claim


def test_a_claim_that_missed_a_life_of_the_same_replay_revives_nothing(server_harness: LedgerHarness) -> None:
    die(server_harness)
    with once_after(
        server_harness.ledger, REPLAYS_LOOKED_UP, lambda: die(server_harness, message="m-2", replay="r-1")
    ) as done:
        claim = server_harness.claim([candidate("a", message="m-2", replay="r-1")])
    assert done, "the claim has such a statement"
    assert set(claim.ended) == {A}
    assert claim.ended[A].original_message == REVIVER


def test_a_claim_that_missed_a_revival_keeps_its_original_message(server_harness: LedgerHarness) -> None:
    die(server_harness)
    with once_after(server_harness.ledger, REPLAYS_LOOKED_UP, lambda: live_again(server_harness)) as done:
        claim = server_harness.claim([candidate("a", message="m-1")])
    assert done
    assert claim.claimed[A].original_message == REVIVER == row_of(server_harness).original_message


def test_a_processed_object_is_not_revived(harness: LedgerHarness) -> None:
    harness.process("a")
    assert set(harness.claim([candidate("a", replay="r-1", enqueued_at=AFTER)]).ended) == {A}
