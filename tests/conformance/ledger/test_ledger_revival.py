"""Dead objects, their carriers, and the messages that give them another life."""

import pytest
from tests.conformance.ledger.desk import AFTER, BEFORE, PIPELINE, Desk, candidate, object_id_of

from penstock.ledger.records import Carrier, Failure, ObjectState

A = object_id_of("a")


def die(desk: Desk, *, message: str = "m-1", replay: str | None = None, enqueued_at: float = BEFORE) -> None:
    wanted = candidate("a", message=message, replay=replay, enqueued_at=enqueued_at)
    desk.fail(Failure.DEAD, wanted, "a")
    assert desk.state("a") is ObjectState.DEAD


@pytest.mark.parametrize(
    ("message", "replay", "enqueued_at", "revived"),
    [
        pytest.param("m-1", None, BEFORE, False, id="its carrier, redelivered"),
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
    expected = Carrier(message_id=message, enqueued_at=enqueued_at, replay_id=replay)
    assert not revived or claim.claimed[A].carrier == expected


def test_a_replay_revives_once(desk: Desk) -> None:
    die(desk)
    die(desk, message="m-2", replay="r-1")
    redelivered = desk.claim([candidate("a", message="m-2", replay="r-1")])
    assert redelivered.ended[A].carrier == Carrier(message_id="m-2", enqueued_at=BEFORE, replay_id="r-1")
    die(desk, message="m-3", replay="r-2")
    spent = desk.claim([candidate("a", message="m-2", replay="r-1")])
    assert set(spent.ended) == {A}, "r-1 had its life; r-2 being the last one does not make it new"


def test_a_carrier_whose_broker_is_ahead_of_the_database_does_not_revive_what_it_carried(desk: Desk) -> None:
    die(desk, message="m-1", enqueued_at=AFTER)
    assert set(desk.claim([candidate("a", message="m-1", enqueued_at=AFTER)]).ended) == {A}


def test_of_several_messages_the_first_that_may_revives_and_carries(desk: Desk) -> None:
    die(desk)
    claim = desk.claim([candidate("a", message="m-1"), candidate("a", message="m-2", replay="r-1")])
    carrier = claim.claimed[A].carrier
    assert carrier is not None
    assert carrier.message_id == "m-2"
    (row,) = desk.ledger.objects(PIPELINE)
    assert row.carrier == carrier


def test_a_revived_object_counts_its_attempts_anew_and_keeps_its_history(desk: Desk) -> None:
    desk.fail(Failure.RETRY, candidate("a"), "a")
    die(desk)
    claim = desk.claim([candidate("a", replay="r-1")])
    assert claim.claimed[A].attempts == 1
    assert [outcome for _, outcome, _ in desk.timeline("a")] == ["retry", "dead", "open"]


def test_a_revival_given_back_can_be_claimed_by_any_message(desk: Desk) -> None:
    die(desk)
    claim = desk.claim([candidate("a", replay="r-1")])
    desk.ledger.abandon(claim.attempt_id, reason="", outcome="given_back", refund=True, unattributed=False)
    assert set(desk.claim([candidate("a", message="m-3")]).claimed) == {A}


@pytest.mark.parametrize("failure", [Failure.GONE, Failure.SUPERSEDED])
def test_only_the_dead_are_revived(desk: Desk, failure: Failure) -> None:
    desk.fail(failure, candidate("a"), "a")
    assert set(desk.claim([candidate("a", replay="r-1", enqueued_at=AFTER)]).ended) == {A}


def test_a_processed_object_is_not_revived(desk: Desk) -> None:
    desk.process("a")
    assert set(desk.claim([candidate("a", replay="r-1", enqueued_at=AFTER)]).ended) == {A}
