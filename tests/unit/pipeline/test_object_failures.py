"""The outcome of objects that their attempt did not process."""

from dataclasses import replace

import pytest

from penstock.ledger.records import AttemptFailure, ClaimedObject, FailedObject, OriginalMessage
from penstock.messaging.failure import FailureDetails
from penstock.pipeline.engine import ReadFailure, RunBroken
from penstock.pipeline.failures import FailureStreak
from penstock.pipeline.notifications import (
    DELETED_AFTER_SECONDS,
    ObjectDead,
    ObjectDone,
    ObjectLater,
    classify_broken_run,
    classify_failure,
    failure_outcome,
    recheck_seconds,
    timed_out,
)

ORIGINAL_MESSAGE = OriginalMessage(message_id="m1", enqueued_at=1.0)
LATER = ObjectLater(delay_seconds=7.0)


def claimed(attempts: int = 1, name: bytes = b"a") -> ClaimedObject:
    return ClaimedObject(object_id=name, attempts=attempts, unattributed_failures=0, original_message=ORIGINAL_MESSAGE)


@pytest.mark.parametrize(
    ("failure", "attempts", "expected"),
    [
        (AttemptFailure.RETRY, 1, AttemptFailure.RETRY),
        (AttemptFailure.RETRY, 3, AttemptFailure.DEAD),
        (AttemptFailure.SUPERSEDED, 1, AttemptFailure.SUPERSEDED),
        (AttemptFailure.DEAD, 1, AttemptFailure.DEAD),
    ],
)
def test_a_failure_is_classified_by_the_attempts_of_its_object(
    failure: AttemptFailure, attempts: int, expected: AttemptFailure
) -> None:
    judged = classify_failure(claimed(attempts), ReadFailure(failure=failure, reason="no"), attempts_max=3)
    assert judged == FailedObject(object_id=b"a", failure=expected, reason="no")


@pytest.mark.parametrize(
    ("attempts", "missing_seconds", "expected"),
    [
        pytest.param(1, None, AttemptFailure.RETRY, id="first-check"),
        pytest.param(3, None, AttemptFailure.RETRY, id="first-check-at-the-last-attempt"),
        pytest.param(2, DELETED_AFTER_SECONDS - 0.1, AttemptFailure.RETRY, id="two-checks-in-one-outage"),
        pytest.param(1, DELETED_AFTER_SECONDS, AttemptFailure.DELETED, id="two-checks-apart"),
    ],
)
def test_a_missing_object_is_deleted_after_two_checks_some_time_apart(
    attempts: int, missing_seconds: float | None, expected: AttemptFailure
) -> None:
    one = replace(claimed(attempts), missing_seconds=missing_seconds)
    judged = classify_failure(one, ReadFailure(failure=AttemptFailure.DELETED, reason="no"), attempts_max=3)
    uncounted = expected is AttemptFailure.RETRY
    assert judged == FailedObject(object_id=b"a", failure=expected, reason="no", uncounted=uncounted, missing=True)
    assert recheck_seconds(one) == max(0.0, DELETED_AFTER_SECONDS - (missing_seconds or 0.0))


def test_an_uncounted_failure_is_not_counted_at_the_last_attempt_either() -> None:
    failure = ReadFailure(failure=AttemptFailure.RETRY, reason="denied", uncounted=True)
    judged = classify_failure(claimed(3), failure, attempts_max=3)
    assert (judged.failure, judged.uncounted) == (AttemptFailure.RETRY, True)


@pytest.mark.parametrize(("names", "expected"), [([b"a"], AttemptFailure.DEAD), ([b"a", b"b"], AttemptFailure.RETRY)])
def test_a_broken_run_is_final_only_for_a_lone_object(names: list[bytes], expected: AttemptFailure) -> None:
    streak = FailureStreak()
    streak.clear()  # a run has succeeded
    suspects = [claimed(3, name) for name in names]
    broken = RunBroken("no", fingerprint="no")
    assert classify_broken_run(suspects, broken, streak, attempts_max=3, worked_before=lambda: True) is expected


def test_a_timeout_of_a_lone_object_counts_as_an_attempt() -> None:
    [first] = timed_out([claimed(1)], "late", attempts_max=2, first=True)
    [last] = timed_out([claimed(2)], "late", attempts_max=2, first=True)
    assert (first.failure, first.uncounted, first.reason) == (AttemptFailure.RETRY, False, "late")
    assert (last.failure, last.reason) == (AttemptFailure.DEAD, "late")


def test_a_timeout_after_other_objects_used_the_time_is_not_counted() -> None:
    [judged] = timed_out([claimed(2)], "late", attempts_max=2, first=False)
    assert (judged.failure, judged.uncounted) == (AttemptFailure.RETRY, True)


def test_a_timeout_of_several_objects_makes_them_suspects() -> None:
    judged = timed_out([claimed(1, b"a"), claimed(2, b"b")], "late", attempts_max=2, first=True)
    assert [(one.failure, one.uncounted, one.unattributed) for one in judged] == [
        (AttemptFailure.RETRY, False, True),
        (AttemptFailure.RETRY, True, True),  # it keeps its last attempt for a run without others
    ]


def test_a_cause_may_set_the_delay_and_the_exception() -> None:
    retry = FailedObject(object_id=b"a", failure=AttemptFailure.RETRY, reason="no")
    dead = FailedObject(object_id=b"a", failure=AttemptFailure.DEAD, reason="no")
    raised = FailureDetails(error_type="ValueError", error="no", traceback="where")
    cause = ReadFailure(failure=AttemptFailure.RETRY, reason="no", delay_seconds=0.0, raised=raised)
    assert failure_outcome(retry, claimed(), later=LATER, cause=cause) == ObjectLater(delay_seconds=0.0)
    assert failure_outcome(retry, claimed(), later=LATER) == LATER
    assert failure_outcome(dead, claimed(), later=LATER, cause=cause) == ObjectDead(
        reason="no", original_message_id="m1", exception="ValueError: no", traceback="where"
    )
    deleted = FailedObject(object_id=b"a", failure=AttemptFailure.DELETED, reason="no")
    assert failure_outcome(deleted, claimed(), later=LATER) == ObjectDone()
