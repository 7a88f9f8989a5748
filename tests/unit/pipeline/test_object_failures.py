"""What becomes of objects that their attempt did not process."""

from dataclasses import replace

import pytest

from penstock.ledger.records import AttemptFailure, ClaimedObject, FailedObject, OriginalMessage
from penstock.messaging.failure import FailureDetails as Raised
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

CARRIER = OriginalMessage(message_id="m1", enqueued_at=1.0)
LATER = ObjectLater(delay_seconds=7.0)


def claimed(attempts: int = 1, name: bytes = b"a") -> ClaimedObject:
    return ClaimedObject(object_id=name, attempts=attempts, unattributed_failures=0, original_message=CARRIER)


@pytest.mark.parametrize(
    ("failure", "attempts", "expected"),
    [
        (AttemptFailure.RETRY, 1, AttemptFailure.RETRY),
        (AttemptFailure.RETRY, 3, AttemptFailure.DEAD),
        (AttemptFailure.SUPERSEDED, 1, AttemptFailure.SUPERSEDED),
        (AttemptFailure.DEAD, 1, AttemptFailure.DEAD),
    ],
)
def test_an_object_is_judged_by_its_own_attempts(
    failure: AttemptFailure, attempts: int, expected: AttemptFailure
) -> None:
    judged = classify_failure(claimed(attempts), ReadFailure(failure=failure, reason="no"), attempts_max=3)
    assert judged == FailedObject(object_id=b"a", failure=expected, reason="no")


@pytest.mark.parametrize(
    ("attempts", "missing_seconds", "expected"),
    [
        pytest.param(1, None, AttemptFailure.RETRY, id="the first look"),
        pytest.param(
            3, None, AttemptFailure.RETRY, id="the first look, after failures of another kind, at the last attempt"
        ),
        pytest.param(2, DELETED_AFTER_SECONDS - 0.1, AttemptFailure.RETRY, id="two looks in one outage"),
        pytest.param(1, DELETED_AFTER_SECONDS, AttemptFailure.DELETED, id="two looks apart"),
    ],
)
def test_a_missing_object_is_gone_after_two_looks_apart(
    attempts: int, missing_seconds: float | None, expected: AttemptFailure
) -> None:
    one = replace(claimed(attempts), missing_seconds=missing_seconds)
    judged = classify_failure(one, ReadFailure(failure=AttemptFailure.DELETED, reason="no"), attempts_max=3)
    uncounted = expected is AttemptFailure.RETRY
    assert judged == FailedObject(object_id=b"a", failure=expected, reason="no", uncounted=uncounted, missing=True)
    assert recheck_seconds(one) == max(0.0, DELETED_AFTER_SECONDS - (missing_seconds or 0.0))


def test_a_failure_that_is_probably_not_the_object_s_fault_is_not_counted_also_at_its_last_attempt() -> None:
    failure = ReadFailure(failure=AttemptFailure.RETRY, reason="denied", uncounted=True)
    judged = classify_failure(claimed(3), failure, attempts_max=3)
    assert (judged.failure, judged.uncounted) == (AttemptFailure.RETRY, True)


@pytest.mark.parametrize(("names", "expected"), [([b"a"], AttemptFailure.DEAD), ([b"a", b"b"], AttemptFailure.RETRY)])
def test_an_object_dies_of_a_broken_run_only_alone(names: list[bytes], expected: AttemptFailure) -> None:
    streak = FailureStreak()
    streak.clear()  # a run has succeeded
    suspects = [claimed(3, name) for name in names]
    broken = RunBroken("no", fingerprint="no")
    assert classify_broken_run(suspects, broken, streak, attempts_max=3, worked_before=lambda: True) is expected


def test_running_out_of_time_alone_is_an_attempt() -> None:
    [first] = timed_out([claimed(1)], "late", attempts_max=2, first=True)
    [last] = timed_out([claimed(2)], "late", attempts_max=2, first=True)
    assert (first.failure, first.uncounted, first.reason) == (AttemptFailure.RETRY, False, "late")
    assert (last.failure, last.reason) == (AttemptFailure.DEAD, "late")


def test_running_out_of_what_others_left_of_the_time_is_none() -> None:
    [judged] = timed_out([claimed(2)], "late", attempts_max=2, first=False)
    assert (judged.failure, judged.uncounted) == (AttemptFailure.RETRY, True)


def test_running_out_of_time_together_makes_suspects() -> None:
    judged = timed_out([claimed(1, b"a"), claimed(2, b"b")], "late", attempts_max=2, first=True)
    assert [(one.failure, one.uncounted, one.unattributed) for one in judged] == [
        (AttemptFailure.RETRY, False, True),
        (AttemptFailure.RETRY, True, True),  # it keeps its last attempt for a run of its own
    ]


def test_a_cause_may_choose_the_delay_and_tell_what_was_raised() -> None:
    retry = FailedObject(object_id=b"a", failure=AttemptFailure.RETRY, reason="no")
    dead = FailedObject(object_id=b"a", failure=AttemptFailure.DEAD, reason="no")
    raised = Raised(error_type="ValueError", error="no", traceback="where")
    cause = ReadFailure(failure=AttemptFailure.RETRY, reason="no", delay_seconds=0.0, raised=raised)
    assert failure_outcome(retry, claimed(), later=LATER, cause=cause) == ObjectLater(delay_seconds=0.0)
    assert failure_outcome(retry, claimed(), later=LATER) == LATER
    assert failure_outcome(dead, claimed(), later=LATER, cause=cause) == ObjectDead(
        reason="no", original_message_id="m1", exception="ValueError: no", traceback="where"
    )
    gone = FailedObject(object_id=b"a", failure=AttemptFailure.DELETED, reason="no")
    assert failure_outcome(gone, claimed(), later=LATER) == ObjectDone()
