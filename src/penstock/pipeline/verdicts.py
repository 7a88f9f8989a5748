"""What becomes of an object that left its attempt without rows: pure rules over what the claim and the run said.

Two kinds of failure are told apart. One that names its object is judged by that object's attempts alone. One that names
nobody makes everybody in the run a suspect, and then nobody dies in company, or of what may be the user's code.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.errors import TransformError
from penstock.ledger.records import ClaimedObject, EndedObject, FailedObject, Failure, ObjectState
from penstock.pipeline.engine import ReadFailure, RunBroken
from penstock.pipeline.parcel import Dead, Done, Later, ObjectOutcome
from penstock.pipeline.streak import FailureStreak, every_run_failed

GONE_AFTER_SECONDS = 5.0  # between the two looks that make a missing object a deleted one: longer than a rename dance


def verdict(claimed: ClaimedObject, failure: ReadFailure, *, attempts_max: int) -> FailedObject:
    """An object that was not processed: look again where that may help, give up where it has had its attempts."""
    found = failure.failure
    if found is Failure.GONE:
        return _missing(claimed, failure.reason)
    if found is Failure.RETRY and claimed.attempts >= attempts_max and not failure.refund:
        found = Failure.DEAD
    refund = failure.refund and found is Failure.RETRY
    return FailedObject(
        object_id=claimed.object_id,
        failure=found,
        reason=failure.reason,
        refund=refund,
        traceback=failure.raised.traceback if failure.raised is not None else None,
    )


def look_again_seconds(claimed: ClaimedObject) -> float:
    """How long a missing object is left alone, so that its next look is far enough from the first."""
    return max(0.0, GONE_AFTER_SECONDS - (claimed.missing_seconds or 0.0))


def _missing(claimed: ClaimedObject, reason: str) -> FailedObject:
    """An object that a look did not find: gone only if another look, long enough before, did not find it either."""
    gone = claimed.missing_seconds is not None and claimed.missing_seconds >= GONE_AFTER_SECONDS
    return FailedObject(
        object_id=claimed.object_id,
        failure=Failure.GONE if gone else Failure.RETRY,
        reason=reason,
        refund=not gone,
        missing=True,
    )


def timed_out(
    claimed: Sequence[ClaimedObject], reason: str, *, attempts_max: int, first: bool
) -> Sequence[FailedObject]:
    """What was at work when the time of its batch was over.

    Work that was not the batch's ``first`` had only what others left of the time, and is not charged. Each batch that
    runs out of time has so ended some of its work or charged some of it, and one that is too slow comes to its end.
    """
    if not first:
        return [
            FailedObject(object_id=one.object_id, failure=Failure.RETRY, reason=reason, refund=True) for one in claimed
        ]
    if len(claimed) == 1:
        failure = ReadFailure(failure=Failure.RETRY, reason=reason)
        return [verdict(claimed[0], failure, attempts_max=attempts_max)]
    broken = RunBroken(reason, fingerprint="timed out")
    return [suspicion(one, broken, Failure.RETRY, attempts_max=attempts_max) for one in claimed]


def sentence(
    suspects: Sequence[ClaimedObject],
    broken: RunBroken,
    streak: FailureStreak,
    *,
    attempts_max: int,
    worked_before: Callable[[], bool],
) -> TransformError | Failure:
    """What a broken run means: the error to stop with, or how its objects leave it.

    An object dies only of its last attempt, alone, and in a pipeline that works: one that committed a batch in this
    process, or before it (``worked_before``) and the object was given another chance.
    """
    pause = streak.add(broken, frozenset(suspect.object_id for suspect in suspects))
    if pause is not None:
        return pause
    if len(suspects) > 1 or suspects[0].attempts < attempts_max:
        return Failure.RETRY
    if streak.succeeded:
        return Failure.DEAD
    if streak.reprieve(suspects[0].object_id):
        return Failure.RETRY
    return Failure.DEAD if worked_before() else every_run_failed(broken)


def suspicion(
    suspect: ClaimedObject, broken: RunBroken, meaning: TransformError | Failure, *, attempts_max: int
) -> FailedObject:
    """How a suspect leaves a broken run. One that lives on keeps its last attempt for a run of its own."""
    dead = meaning is Failure.DEAD
    return FailedObject(
        object_id=suspect.object_id,
        failure=Failure.DEAD if dead else Failure.RETRY,
        reason=str(broken),
        refund=isinstance(meaning, TransformError) or (not dead and suspect.attempts >= attempts_max),
        unattributed=True,
        traceback=broken.raised.traceback if broken.raised is not None else None,
    )


def failure_outcome(
    failed: FailedObject, claimed: ClaimedObject, *, later: Later, cause: ReadFailure | None = None
) -> ObjectOutcome:
    """What a failure means for the messages that named the object; ``later`` is when to try again."""
    match failed.failure:
        case Failure.RETRY if cause is not None and cause.delay_seconds is not None:
            return replace(later, delay_seconds=cause.delay_seconds)
        case Failure.RETRY:
            return later
        case Failure.DEAD:
            raised = cause.raised if cause is not None else None
            return Dead(
                reason=failed.reason,
                carrier_message_id=claimed.carrier.message_id,
                exception=raised.summary if raised is not None else None,
                traceback=raised.traceback if raised is not None else None,
                lasting=cause is not None and cause.failure is Failure.DEAD,
            )
        case Failure.GONE | Failure.SUPERSEDED:
            return Done()


def ended_outcome(ended: EndedObject) -> ObjectOutcome:
    """An object that was terminal before we came; a dead one takes its own carrier down again, and no other message."""
    if ended.state is ObjectState.DEAD and ended.carrier is not None:
        return Dead(reason=ended.reason or "dead", carrier_message_id=ended.carrier.message_id)
    return Done()
