"""What becomes of an object that left its attempt without rows: pure rules over what the claim and the run said.

Two kinds of failure are told apart. One that names its object is judged by that object's attempts alone. One that names
nobody makes everybody in the run a suspect, and then nobody dies in company, or of what may be the user's code.
"""

from collections.abc import Callable, Sequence

from penstock.errors import TransformError
from penstock.ledger.records import ClaimedObject, EndedObject, FailedObject, Failure, ObjectState
from penstock.pipeline.engine import ReadFailure, RunBroken
from penstock.pipeline.parcel import Dead, Done, Later, ObjectOutcome
from penstock.pipeline.streak import FailureStreak, every_run_failed


def verdict(claimed: ClaimedObject, failure: ReadFailure, *, attempts_max: int) -> FailedObject:
    """An object that could not be read: look again where that may help, give up where it has had its attempts."""
    exhausted = claimed.attempts >= attempts_max
    found = failure.failure
    if found is Failure.GONE and claimed.attempts == 1 and not exhausted:
        found = Failure.RETRY  # gone only after a second look
    elif found is Failure.RETRY and exhausted:
        found = Failure.DEAD
    return FailedObject(object_id=claimed.object_id, failure=found, reason=failure.reason)


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
    )


def failure_outcome(failed: FailedObject, claimed: ClaimedObject, *, later: Later) -> ObjectOutcome:
    """What a failure means for the messages that named the object; ``later`` is when to try again."""
    match failed.failure:
        case Failure.RETRY:
            return later
        case Failure.DEAD:
            return Dead(reason=failed.reason, carrier_message_id=claimed.carrier.message_id)
        case Failure.GONE | Failure.SUPERSEDED:
            return Done()


def ended_outcome(ended: EndedObject) -> ObjectOutcome:
    """An object that was terminal before we came; a dead one takes its own carrier down again, and no other message."""
    if ended.state is ObjectState.DEAD and ended.carrier is not None:
        return Dead(reason=ended.reason or "dead", carrier_message_id=ended.carrier.message_id)
    return Done()
