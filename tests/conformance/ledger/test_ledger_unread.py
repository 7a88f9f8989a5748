"""Objects that were deleted or replaced before they were read, and the messages that restore them."""

import pytest
from tests.conformance.ledger.crowd import once_after
from tests.conformance.ledger.desk import AFTER, BEFORE, PIPELINE, Desk, candidate, candidates, object_id_of, outcome

from penstock.ledger.records import AttemptFailure, BatchOutcome, Candidate, FailedObject, ObjectClaims, ObjectState

A, B = object_id_of("a"), object_id_of("b")
REPLAYS_LOOKED_UP = "object_attempts.replay_id ... IS NOT NULL"  # of objects that have ended
UNREAD = (AttemptFailure.DELETED, AttemptFailure.SUPERSEDED)
FIRST, SECOND, THIRD = "0061", "0062", "0063"


def of_key(name: str, sequencer: str | None, *, message: str = "m-1", enqueued_at: float = BEFORE) -> Candidate:
    """Return a version of the one key, in a bucket that keeps no versions."""
    return candidate(name, message=message, enqueued_at=enqueued_at, key=b"k", sequencer=sequencer)


def overtake(desk: Desk) -> None:
    """Read b, which replaced a, first: a was superseded unread."""
    desk.ledger.commit(outcome(desk.claim([of_key("b", SECOND)])))
    assert desk.claim([of_key("a", FIRST)]).ended[A].state is ObjectState.SUPERSEDED


def miss(desk: Desk, wanted: Candidate) -> ObjectClaims:
    """Check for an object that is not found, in a check that is not the last."""
    claim = desk.claim([wanted])
    failed = FailedObject(
        object_id=wanted.object_id, failure=AttemptFailure.RETRY, reason="missing", uncounted=True, missing=True
    )
    desk.ledger.commit(BatchOutcome(pipeline=PIPELINE, attempt_id=claim.attempt_id, processed=[], failed=[failed]))
    return claim


@pytest.mark.parametrize("failure", UNREAD)
@pytest.mark.parametrize(
    ("message", "replay", "enqueued_at", "restored"),
    [
        pytest.param("m-1", None, BEFORE, False, id="its message, redelivered"),
        pytest.param("m-2", None, BEFORE, False, id="another notification of the same life"),
        pytest.param("m-2", None, AFTER, True, id="a notification since the check"),
        pytest.param("m-1", None, AFTER, True, id="the same, keeping its message id"),
        pytest.param("m-2", "r-1", BEFORE, True, id="a manual retry"),
    ],
)
def test_an_unread_object_is_restored_by_a_retry_or_a_later_notification(
    desk: Desk, failure: AttemptFailure, message: str, replay: str | None, enqueued_at: float, restored: bool
) -> None:
    desk.fail(failure, candidate("a"), "a")
    claim = desk.claim([candidate("a", message=message, replay=replay, enqueued_at=enqueued_at)])
    assert (set(claim.claimed), set(claim.ended)) == (({A}, set()) if restored else (set(), {A}))
    if restored:
        assert (claim.claimed[A].attempts, claim.claimed[A].missing_seconds) == (1, None)
        assert claim.claimed[A].original_message.message_id == message
        desk.ledger.commit(outcome(claim))
        assert desk.state("a") is ObjectState.PROCESSED


@pytest.mark.parametrize("failure", UNREAD)
def test_the_original_message_never_restores_an_unread_object_even_if_its_brokers_clock_is_ahead(
    desk: Desk, failure: AttemptFailure
) -> None:
    desk.fail(failure, candidate("a", enqueued_at=AFTER), "a")
    assert set(desk.claim([candidate("a", enqueued_at=AFTER)]).ended) == {A}


@pytest.mark.parametrize("failure", [*UNREAD, None], ids=["deleted", "superseded", "missing once"])
def test_the_message_that_restored_an_object_is_its_original_message(
    desk: Desk, failure: AttemptFailure | None
) -> None:
    """Otherwise the same message would restore it again and again if its broker's clock is ahead of the database's."""
    if failure is None:
        miss(desk, candidate("a"))
    else:
        desk.fail(failure, candidate("a"), "a")
    old, new = candidate("a"), candidate("a", message="m-2", enqueued_at=AFTER)
    claim = desk.claim([old, new])
    assert claim.claimed[A].original_message.message_id == "m-2"
    desk.ledger.commit(outcome(claim, failed={"a": AttemptFailure.DELETED}))
    assert set(desk.claim([old, new]).ended) == {A}


def test_processed_objects_are_never_claimed_again(desk: Desk) -> None:
    desk.process("a")
    again = desk.claim([candidate("a", message="m-2", replay="r-1", enqueued_at=AFTER, sequencer=THIRD)])
    assert again.ended[A].state is ObjectState.PROCESSED


@pytest.mark.parametrize("failure", UNREAD)
def test_two_notifications_of_one_life_are_read_once(desk: Desk, failure: AttemptFailure) -> None:
    desk.fail(failure, candidate("a"), "a")
    both = [candidate("a", message=name, enqueued_at=AFTER) for name in ("m-2", "m-3")]
    claim = desk.claim(both[:1])
    assert set(desk.claim(both[1:]).busy) == {A}
    desk.ledger.commit(outcome(claim))
    for late in both:
        assert desk.claim([late]).ended[A].state is ObjectState.PROCESSED


@pytest.mark.parametrize("failure", UNREAD)
def test_a_claim_that_missed_another_life_begins_none(server_desk: Desk, failure: AttemptFailure) -> None:
    server_desk.fail(failure, candidate("a"), "a")
    ends = candidate("a", message="m-3", enqueued_at=AFTER)
    with once_after(server_desk.ledger, REPLAYS_LOOKED_UP, lambda: server_desk.fail(failure, ends, "a")) as done:
        claim = server_desk.claim([candidate("a", message="m-2", enqueued_at=AFTER)])
    assert done, "the claim has such a statement"
    assert set(claim.ended) == {A}


def test_checks_that_miss_an_object_are_remembered_until_one_finds_it(desk: Desk) -> None:
    assert miss(desk, candidate("a")).claimed[A].missing_seconds is None
    again = miss(desk, candidate("a")).claimed[A]
    assert (again.attempts, again.missing_seconds is not None) == (1, True)
    desk.fail(AttemptFailure.RETRY, candidate("a"), "a")  # found, and failed for another reason
    assert miss(desk, candidate("a")).claimed[A].missing_seconds is None


def test_a_check_before_a_notification_does_not_count_after_it(desk: Desk) -> None:
    miss(desk, candidate("a"))
    old = desk.claim([candidate("a", message="m-2")])
    assert old.claimed[A].missing_seconds is not None
    desk.ledger.abandon(old.attempt_id, reason="", outcome="given_back", uncounted=True, unattributed=False)
    claim = desk.claim([candidate("a", message="m-3", enqueued_at=AFTER)])
    assert claim.claimed[A].missing_seconds is None


def test_an_attempt_that_never_checked_keeps_the_time_of_the_first_miss(desk: Desk) -> None:
    miss(desk, candidate("a"))
    claim = desk.claim([candidate("a")])
    desk.ledger.abandon(claim.attempt_id, reason="", outcome="given_back", uncounted=True, unattributed=False)
    assert desk.claim([candidate("a")]).claimed[A].missing_seconds is not None


# Content that was replaced and put back, in a bucket without versions


def test_a_later_event_of_a_superseded_object_is_read(desk: Desk) -> None:
    overtake(desk)
    for old in (of_key("a", FIRST), of_key("a", FIRST, message="m-2", enqueued_at=AFTER)):
        assert set(desk.claim([old]).ended) == {A}, "the same event, however often it is delivered"
    claim = desk.claim([of_key("a", THIRD, message="m-3")])
    assert set(claim.claimed) == {A}, "put back later than B, though sent before the end was recorded"
    desk.ledger.commit(outcome(claim))
    assert desk.state("a") is ObjectState.PROCESSED


def test_a_later_event_of_a_waiting_object_is_not_superseded(desk: Desk) -> None:
    desk.fail(AttemptFailure.RETRY, of_key("a", FIRST), "a")
    desk.ledger.commit(outcome(desk.claim([of_key("b", SECOND)])))
    assert set(desk.claim([of_key("a", THIRD, message="m-2")]).claimed) == {A}


@pytest.mark.parametrize("names", [("a", "a"), ("a", "b", "a")])
def test_the_latest_event_of_one_claim_counts(desk: Desk, names: tuple[str, ...]) -> None:
    desk.ledger.commit(outcome(desk.claim([of_key("b", SECOND)])))
    events = [of_key("a", FIRST), of_key("a", THIRD, message="m-3")]
    assert set(desk.claim(events if len(names) == 2 else [events[0], of_key("b", SECOND), events[1]]).claimed) == {A}


def test_a_later_event_that_is_superseded_too_stays_superseded(desk: Desk) -> None:
    overtake(desk)
    desk.ledger.commit(outcome(desk.claim([of_key("c", "0064")])))
    for _ in range(2):
        assert desk.claim([of_key("a", THIRD, message="m-3")]).ended[A].state is ObjectState.SUPERSEDED


def test_a_listing_of_a_superseded_object_is_checked_in_the_store_once(desk: Desk) -> None:
    overtake(desk)
    claim = desk.claim([of_key("a", None, message="m-2")])
    assert set(claim.claimed) == {A}, "the order of events says nothing of a listing: the store decides"
    desk.ledger.commit(outcome(claim, failed={"a": AttemptFailure.SUPERSEDED}))
    for message in ("m-2", "m-3"):
        assert set(desk.claim([of_key("a", None, message=message)]).ended) == {A}
    assert set(desk.claim([of_key("a", None, message="m-4", enqueued_at=AFTER)]).claimed) == {A}


def test_a_failed_objects_later_event_is_not_superseded(desk: Desk) -> None:
    desk.fail(AttemptFailure.DEAD, of_key("a", FIRST), "a")
    desk.ledger.commit(outcome(desk.claim([of_key("b", SECOND)])))
    assert set(desk.claim([of_key("a", THIRD, message="m-2", enqueued_at=AFTER)]).claimed) == {A}


def test_in_the_life_after_an_unread_end_any_claiming_message_is_the_original_message(desk: Desk) -> None:
    desk.fail(AttemptFailure.DEAD, candidate("a"), "a")
    desk.fail(AttemptFailure.DELETED, candidate("a", message="m-2", replay="r-1"), "a")
    claim = desk.claim([candidate("a", message="m-3", enqueued_at=AFTER)])
    desk.ledger.commit(outcome(claim, failed={"a": AttemptFailure.RETRY}))
    claim = desk.claim([candidate("a", message="m-4")])
    assert claim.claimed[A].original_message.message_id == "m-4"


def test_unread_objects_report_when_they_ended(desk: Desk) -> None:
    desk.process("c")
    desk.fail(AttemptFailure.DEAD, candidate("d"), "d")
    for name, failure in zip("ab", UNREAD, strict=True):
        desk.fail(failure, candidate(name), name)
    desk.claim(candidates("e"))
    ends = desk.ledger.unread(PIPELINE, [object_id_of(name) for name in "abcdef"])
    assert set(ends) == {A, B}
    assert ends == {row.object_id: row.ended_at for row in desk.ledger.objects(PIPELINE) if row.object_id in ends}
