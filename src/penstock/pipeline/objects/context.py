"""What a function is handed beside the object."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.ledger.records import ObjectAttempt
from penstock.messaging.call_context import CallContext
from penstock.messaging.delivery import AttemptEnd, PreviousAttempt

_ENDS = {"given_back": AttemptEnd.GIVEN_BACK, "expired": AttemptEnd.EXPIRED, "worker_died": AttemptEnd.EXPIRED}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectContext(CallContext):
    """One call of a function for one object, and the ways to behave well in it. Reading the object is a checkpoint."""

    attempt_id: str  # of this attempt, never repeated: a name for what it writes
    attempt: int  # 1-based; attempts that were given back do not count
    previous_attempt: PreviousAttempt | None  # the one before, as the ledger remembers it


def previous_attempt(timeline: Sequence[ObjectAttempt]) -> PreviousAttempt | None:
    """The last attempt in an object's timeline that has ended; the one after it is going on."""
    for attempt in reversed(timeline):
        if attempt.ended_at is not None:
            return PreviousAttempt(
                started_at=attempt.started_at,
                ended_at=attempt.ended_at,
                worker=attempt.worker,
                end=_ENDS.get(attempt.outcome, AttemptEnd.FAILED),
                reason=attempt.reason,
            )
    return None
