"""Objects that were deleted or replaced before they were read, and the messages that restore them."""

import pytest
from tests.conformance.ledger.concurrency import once_after
from tests.conformance.ledger.ledger_harness import (
    AFTER,
    BEFORE,
    PIPELINE,
    LedgerHarness,
    candidate,
    candidates,
    object_id_of,
    outcome,
)

from penstock.ledger.records import AttemptFailure, BatchOutcome, Candidate, FailedObject, ObjectClaims, ObjectState

A, B = object_id_of("a"), object_id_of("b")
REPLAYS_LOOKED_UP = "object_attempts.replay_id ... IS NOT NULL"  # of objects that have ended
UNREAD = (AttemptFailure.DELETED, AttemptFailure.SUPERSEDED)
FIRST, SECOND, THIRD = "0061", "0062", "0063"


def of_key(name: str, sequencer: str | None, *, message: str = "m-1", enqueued_at: float = BEFORE) -> Candidate:
    """Return a version of the one key, in a bucket that keeps no versions."""
    return candidate(name, message=message, enqueued_at=enqueued_at, key=b"k", sequencer=sequencer)


def overtake(harness: LedgerHarness) -> None:
    """Read b, which replaced a, first: a was superseded unread."""
    harness.ledger.commit(outcome(harness.claim([of_key("b", SECOND)])))
    assert harness.claim([of_key("a", FIRST)]).ended[A].state is ObjectState.SUPERSEDED


def miss(harness: LedgerHarness, wanted: Candidate) -> ObjectClaims:
    """Check for an object that is not found, in a check that is not the last."""
    claim = harness.claim([wanted])
    failed = FailedObject(
        object_id=wanted.object_id, failure=AttemptFailure.RETRY, reason="missing", uncounted=True, missing=True
    )
    harness.ledger.commit(BatchOutcome(pipeline=PIPELINE, attempt_id=claim.attempt_id, processed=[], failed=[failed]))
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
    harness: LedgerHarness,
    failure: AttemptFailure,
    message: str,
    replay: str | None,
    enqueued_at: float,
    restored: bool,
) -> None:
    harness.fail(failure, candidate("a"), "a")
    claim = harness.claim([candidate("a", message=message, replay=replay, enqueued_at=enqueued_at)])
    assert (set(claim.claimed), set(claim.ended)) == (({A}, set()) if restored else (set(), {A}))
    if restored:
        assert (claim.claimed[A].attempts, claim.claimed[A].missing_seconds) == (1, None)
        assert claim.claimed[A].original_message.message_id == message
        harness.ledger.commit(outcome(claim))
        assert harness.state("a") is ObjectState.PROCESSED


@pytest.mark.parametrize("failure", UNREAD)
def test_the_original_message_never_restores_an_unread_object_even_if_its_brokers_clock_is_ahead(
    harness: LedgerHarness, failure: AttemptFailure
) -> None:
    harness.fail(failure, candidate("a", enqueued_at=AFTER), "a")
    assert set(harness.claim([candidate("a", enqueued_at=AFTER)]).ended) == {A}


@pytest.mark.parametrize("failure", [*UNREAD, None], ids=["deleted", "superseded", "missing once"])
def test_the_message_that_restored_an_object_is_its_original_message(
    harness: LedgerHarness, failure: AttemptFailure | None
) -> None:
    """Otherwise the same message would restore it again and again if its broker's clock is ahead of the database's."""
    if failure is None:
        miss(harness, candidate("a"))
    else:
        harness.fail(failure, candidate("a"), "a")
    old, new = candidate("a"), candidate("a", message="m-2", enqueued_at=AFTER)
    claim = harness.claim([old, new])
    assert claim.claimed[A].original_message.message_id == "m-2"
    harness.ledger.commit(outcome(claim, failed={"a": AttemptFailure.DELETED}))
    assert set(harness.claim([old, new]).ended) == {A}


def test_processed_objects_are_never_claimed_again(harness: LedgerHarness) -> None:
    harness.process("a")
    again = harness.claim([candidate("a", message="m-2", replay="r-1", enqueued_at=AFTER, sequencer=THIRD)])
    assert again.ended[A].state is ObjectState.PROCESSED


@pytest.mark.parametrize("failure", UNREAD)
def test_two_notifications_of_one_life_are_read_once(harness: LedgerHarness, failure: AttemptFailure) -> None:
    harness.fail(failure, candidate("a"), "a")
    both = [candidate("a", message=name, enqueued_at=AFTER) for name in ("m-2", "m-3")]
    claim = harness.claim(both[:1])
    assert set(harness.claim(both[1:]).busy) == {A}
    harness.ledger.commit(outcome(claim))
    for late in both:
        assert harness.claim([late]).ended[A].state is ObjectState.PROCESSED


@pytest.mark.parametrize("failure", UNREAD)
def test_a_claim_that_missed_another_life_begins_none(server_harness: LedgerHarness, failure: AttemptFailure) -> None:
    server_harness.fail(failure, candidate("a"), "a")
    ends = candidate("a", message="m-3", enqueued_at=AFTER)
    with once_after(server_harness.ledger, REPLAYS_LOOKED_UP, lambda: server_harness.fail(failure, ends, "a")) as done:
        claim = server_harness.claim([candidate("a", message="m-2", enqueued_at=AFTER)])
    assert done, "the claim has such a statement"
    assert set(claim.ended) == {A}


def test_checks_that_miss_an_object_are_remembered_until_one_finds_it(harness: LedgerHarness) -> None:
    assert miss(harness, candidate("a")).claimed[A].missing_seconds is None
    again = miss(harness, candidate("a")).claimed[A]
    assert (again.attempts, again.missing_seconds is not None) == (1, True)
    harness.fail(AttemptFailure.RETRY, candidate("a"), "a")  # found, and failed for another reason
    assert miss(harness, candidate("a")).claimed[A].missing_seconds is None


def test_a_check_before_a_notification_does_not_count_after_it(harness: LedgerHarness) -> None:
    miss(harness, candidate("a"))
    old = harness.claim([candidate("a", message="m-2")])
    assert old.claimed[A].missing_seconds is not None
    harness.ledger.abandon(old.attempt_id, reason="", outcome="given_back", uncounted=True, unattributed=False)
    claim = harness.claim([candidate("a", message="m-3", enqueued_at=AFTER)])
    assert claim.claimed[A].missing_seconds is None


def test_an_attempt_that_never_checked_keeps_the_time_of_the_first_miss(harness: LedgerHarness) -> None:
    miss(harness, candidate("a"))
    claim = harness.claim([candidate("a")])
    harness.ledger.abandon(claim.attempt_id, reason="", outcome="given_back", uncounted=True, unattributed=False)
    assert harness.claim([candidate("a")]).claimed[A].missing_seconds is not None


# Content that was replaced and put back, in a bucket without versions


def test_a_later_event_of_a_superseded_object_is_read(harness: LedgerHarness) -> None:
    overtake(harness)
    for old in (of_key("a", FIRST), of_key("a", FIRST, message="m-2", enqueued_at=AFTER)):
        assert set(harness.claim([old]).ended) == {A}, "the same event, however often it is delivered"
    claim = harness.claim([of_key("a", THIRD, message="m-3")])
    assert set(claim.claimed) == {A}, "put back later than B, though sent before the end was recorded"
    harness.ledger.commit(outcome(claim))
    assert harness.state("a") is ObjectState.PROCESSED


def test_a_later_event_of_a_waiting_object_is_not_superseded(harness: LedgerHarness) -> None:
    harness.fail(AttemptFailure.RETRY, of_key("a", FIRST), "a")
    harness.ledger.commit(outcome(harness.claim([of_key("b", SECOND)])))
    assert set(harness.claim([of_key("a", THIRD, message="m-2")]).claimed) == {A}


@pytest.mark.parametrize("names", [("a", "a"), ("a", "b", "a")])
def test_the_latest_event_of_one_claim_counts(harness: LedgerHarness, names: tuple[str, ...]) -> None:
    harness.ledger.commit(outcome(harness.claim([of_key("b", SECOND)])))
    events = [of_key("a", FIRST), of_key("a", THIRD, message="m-3")]
    assert set(harness.claim(events if len(names) == 2 else [events[0], of_key("b", SECOND), events[1]]).claimed) == {A}


def test_a_later_event_that_is_superseded_too_stays_superseded(harness: LedgerHarness) -> None:
    overtake(harness)
    harness.ledger.commit(outcome(harness.claim([of_key("c", "0064")])))
    for _ in range(2):
        assert harness.claim([of_key("a", THIRD, message="m-3")]).ended[A].state is ObjectState.SUPERSEDED


def test_a_listing_of_a_superseded_object_is_checked_in_the_store_once(harness: LedgerHarness) -> None:
    overtake(harness)
    claim = harness.claim([of_key("a", None, message="m-2")])
    assert set(claim.claimed) == {A}, "a listing has no place in the order of events: the store decides"
    harness.ledger.commit(outcome(claim, failed={"a": AttemptFailure.SUPERSEDED}))
    for message in ("m-2", "m-3"):
        assert set(harness.claim([of_key("a", None, message=message)]).ended) == {A}
    assert set(harness.claim([of_key("a", None, message="m-4", enqueued_at=AFTER)]).claimed) == {A}


def test_a_failed_objects_later_event_is_not_superseded(harness: LedgerHarness) -> None:
    harness.fail(AttemptFailure.DEAD, of_key("a", FIRST), "a")
    harness.ledger.commit(outcome(harness.claim([of_key("b", SECOND)])))
    assert set(harness.claim([of_key("a", THIRD, message="m-2", enqueued_at=AFTER)]).claimed) == {A}


def test_in_the_life_after_an_unread_end_any_claiming_message_is_the_original_message(harness: LedgerHarness) -> None:
    harness.fail(AttemptFailure.DEAD, candidate("a"), "a")
    harness.fail(AttemptFailure.DELETED, candidate("a", message="m-2", replay="r-1"), "a")
    claim = harness.claim([candidate("a", message="m-3", enqueued_at=AFTER)])
    harness.ledger.commit(outcome(claim, failed={"a": AttemptFailure.RETRY}))
    claim = harness.claim([candidate("a", message="m-4")])
    assert claim.claimed[A].original_message.message_id == "m-4"


def test_unread_objects_report_when_they_ended(harness: LedgerHarness) -> None:
    harness.process("c")
    harness.fail(AttemptFailure.DEAD, candidate("d"), "d")
    for name, failure in zip("ab", UNREAD, strict=True):
        harness.fail(failure, candidate(name), name)
    harness.claim(candidates("e"))
    ends = harness.ledger.unread(PIPELINE, [object_id_of(name) for name in "abcdef"])
    assert set(ends) == {A, B}
    assert ends == {row.object_id: row.ended_at for row in harness.ledger.objects(PIPELINE) if row.object_id in ends}
