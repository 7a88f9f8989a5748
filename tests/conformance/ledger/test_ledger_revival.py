"""Dead objects, their carriers, and the messages that give them another life."""

import pytest
from tests.conformance.ledger.crowd import once_after
from tests.conformance.ledger.desk import AFTER, BEFORE, PIPELINE, Desk, candidate, object_id_of, outcome

from penstock.ledger.records import AttemptFailure, ObjectClaims, ObjectRow, ObjectState, OriginalMessage

REPLAYS_LOOKED_UP = "object_attempts.replay_id ... IS NOT NULL"  # of objects seen dead
A = object_id_of("a")
REVIVER = OriginalMessage(message_id="m-2", enqueued_at=BEFORE, replay_id="r-1")


def die(desk: Desk, *, message: str = "m-1", replay: str | None = None, enqueued_at: float = BEFORE) -> None:
    wanted = candidate("a", message=message, replay=replay, enqueued_at=enqueued_at)
    desk.fail(AttemptFailure.DEAD, wanted, "a")
    assert desk.state("a") is ObjectState.DEAD


def live_again(desk: Desk, *, message: str = "m-2", replay: str = "r-1") -> None:
    """Revived, failed once, and free between two attempts."""
    desk.fail(AttemptFailure.RETRY, candidate("a", message=message, replay=replay), "a")
    assert desk.state("a") is ObjectState.UNPROCESSED


def give_back(desk: Desk, claim: ObjectClaims) -> None:
    desk.ledger.abandon(claim.attempt_id, reason="", outcome="given_back", uncounted=True, unattributed=False)


def row_of(desk: Desk) -> ObjectRow:
    (row,) = desk.ledger.objects(PIPELINE)
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
def test_what_revives(desk: Desk, message: str, replay: str | None, enqueued_at: float, revived: bool) -> None:
    die(desk)
    claim = desk.claim([candidate("a", message=message, replay=replay, enqueued_at=enqueued_at)])
    assert (set(claim.claimed), set(claim.ended)) == (({A}, set()) if revived else (set(), {A}))
    expected = OriginalMessage(message_id=message, enqueued_at=enqueued_at, replay_id=replay)
    assert not revived or claim.claimed[A].original_message == expected


def test_a_replay_revives_once(desk: Desk) -> None:
    die(desk)
    die(desk, message="m-2", replay="r-1")
    redelivered = desk.claim([candidate("a", message="m-2", replay="r-1")])
    assert redelivered.ended[A].original_message == OriginalMessage(
        message_id="m-2", enqueued_at=BEFORE, replay_id="r-1"
    )
    die(desk, message="m-3", replay="r-2")
    spent = desk.claim([candidate("a", message="m-2", replay="r-1")])
    assert set(spent.ended) == {A}, "r-1 had its life; r-2 being the last one does not make it new"


def test_a_carrier_whose_broker_is_ahead_of_the_database_does_not_revive_what_it_carried(desk: Desk) -> None:
    die(desk, message="m-1", enqueued_at=AFTER)
    assert set(desk.claim([candidate("a", message="m-1", enqueued_at=AFTER)]).ended) == {A}


def test_the_first_message_that_may_revive_the_object_claims_it(desk: Desk) -> None:
    die(desk)
    claim = desk.claim([candidate("a", message="m-1"), candidate("a", message="m-2", replay="r-1")])
    assert claim.claimed[A].original_message == REVIVER == row_of(desk).original_message


def test_a_revived_object_counts_attempts_from_zero_and_keeps_its_history(desk: Desk) -> None:
    desk.fail(AttemptFailure.RETRY, candidate("a"), "a")
    die(desk)
    claim = desk.claim([candidate("a", replay="r-1")])
    assert claim.claimed[A].attempts == 1
    assert [outcome for _, outcome, _ in desk.timeline("a")] == ["retry", "dead", "open"]


def test_a_released_revival_can_be_claimed_by_any_message(desk: Desk) -> None:
    die(desk)
    claim = desk.claim([candidate("a", message="m-2", replay="r-1")])
    give_back(desk, claim)
    again = desk.claim([candidate("a", message="m-3")])
    assert again.claimed[A].original_message == REVIVER, "who claims it need not be who carries it"


# A second life, and a message of before the death that somebody slept over


def test_a_message_of_before_the_death_takes_part_in_the_next_life_and_does_not_carry_it(desk: Desk) -> None:
    die(desk)
    live_again(desk)
    slept = desk.claim([candidate("a", message="m-1")])
    assert slept.claimed[A].original_message == REVIVER
    desk.ledger.commit(outcome(slept, failed={"a": AttemptFailure.DEAD}))
    for message, replay in (("m-1", None), ("m-2", "r-1")):
        found = desk.claim([candidate("a", message=message, replay=replay)])
        assert found.ended[A].original_message == REVIVER, "so the one is acked, and the other is the letter"


@pytest.mark.parametrize("failure", [AttemptFailure.RETRY, AttemptFailure.DEAD])
def test_an_object_that_never_failed_belongs_to_the_latest_claim(desk: Desk, failure: AttemptFailure) -> None:
    desk.fail(AttemptFailure.RETRY, candidate("a", message="m-1", enqueued_at=AFTER), "a")
    claim = desk.claim([candidate("a", message="m-2")])
    assert claim.claimed[A].original_message.message_id == "m-2"
    desk.ledger.commit(outcome(claim, failed={"a": failure}))
    assert row_of(desk).original_message == OriginalMessage(message_id="m-2", enqueued_at=BEFORE)


@pytest.mark.parametrize(
    ("message", "replay", "enqueued_at"),
    [
        pytest.param("m-3", "r-2", BEFORE, id="a replay of the dead letter that its original message became"),
        pytest.param("m-3", None, AFTER, id="sent after the death, by a reconcile or a console"),
        pytest.param("m-3", "r-1", AFTER, id="the replay sent a second time"),
    ],
)
def test_a_message_that_may_have_revived_it_takes_it_over(
    desk: Desk, message: str, replay: str | None, enqueued_at: float
) -> None:
    die(desk)
    live_again(desk)
    newer = candidate("a", message=message, replay=replay, enqueued_at=enqueued_at)
    claim = desk.claim([candidate("a", message="m-1"), newer])
    assert claim.claimed[A].original_message == newer.original_message == row_of(desk).original_message
    desk.ledger.commit(outcome(claim, failed={"a": AttemptFailure.RETRY}))
    old = desk.claim([candidate("a", message="m-1")])
    assert old.claimed[A].original_message == newer.original_message


def test_a_third_life_belongs_to_a_message_allowed_by_the_second_death(desk: Desk) -> None:
    die(desk)
    die(desk, message="m-2", replay="r-1")
    live_again(desk, message="m-3", replay="r-2")
    spent = desk.claim([candidate("a", message="m-2", replay="r-1")])
    assert spent.claimed[A].original_message == OriginalMessage(message_id="m-3", enqueued_at=BEFORE, replay_id="r-2")


def test_a_replay_that_did_not_carry_is_not_spent(desk: Desk) -> None:
    die(desk)
    live_again(desk)
    both = desk.claim([candidate("a", message="m-3", replay="r-2"), candidate("a", message="m-4", replay="r-3")])
    desk.ledger.commit(outcome(both, failed={"a": AttemptFailure.DEAD}))
    assert set(desk.claim([candidate("a", message="m-4", replay="r-3")]).claimed) == {A}


def test_lives_of_several_objects_of_a_claim_are_carried_each_by_its_own(desk: Desk) -> None:
    die(desk)
    live_again(desk)
    desk.fail(AttemptFailure.RETRY, candidate("b"), "b")
    claim = desk.claim([candidate(name, message="m-9") for name in "abc"])
    original_messages = {name: claim.claimed[object_id_of(name)].original_message.message_id for name in "abc"}
    assert original_messages == {"a": "m-2", "b": "m-9", "c": "m-9"}


# Between two statements of a claim


def test_a_claimer_that_slept_over_a_life_by_the_same_replay_gives_no_other(server_desk: Desk) -> None:
    die(server_desk)
    with once_after(
        server_desk.ledger, REPLAYS_LOOKED_UP, lambda: die(server_desk, message="m-2", replay="r-1")
    ) as done:
        claim = server_desk.claim([candidate("a", message="m-2", replay="r-1")])
    assert done, "the claim has such a statement"
    assert set(claim.ended) == {A}
    assert claim.ended[A].original_message == REVIVER


def test_a_claimer_that_slept_over_a_revival_does_not_carry_it(server_desk: Desk) -> None:
    die(server_desk)
    with once_after(server_desk.ledger, REPLAYS_LOOKED_UP, lambda: live_again(server_desk)) as done:
        claim = server_desk.claim([candidate("a", message="m-1")])
    assert done
    assert claim.claimed[A].original_message == REVIVER == row_of(server_desk).original_message


def test_a_processed_object_is_not_revived(desk: Desk) -> None:
    desk.process("a")
    assert set(desk.claim([candidate("a", replay="r-1", enqueued_at=AFTER)]).ended) == {A}
