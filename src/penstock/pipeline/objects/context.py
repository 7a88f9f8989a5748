"""What a function is handed beside the object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from penstock.ledger.records import ObjectAttempt
from penstock.messaging.delivery import AttemptEnd, PreviousAttempt
from penstock.pipeline.objects.control import Control

NO_RESOURCES: Mapping[str, Any] = MappingProxyType({})

_ENDS = {"given_back": AttemptEnd.GIVEN_BACK, "expired": AttemptEnd.EXPIRED, "worker_died": AttemptEnd.EXPIRED}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectContext:
    """One call of a function for one object, and the ways to behave well in it."""

    handler: str
    attempt_id: str  # of this attempt, never repeated: a name for what it writes
    attempt: int  # 1-based; attempts that were given back do not count
    previous_attempt: PreviousAttempt | None  # the one before, as the ledger remembers it
    resources: Mapping[str, Any] = field(default_factory=lambda: NO_RESOURCES)  # what the app's lifespans gave
    control: Control = field(repr=False)

    @property
    def stopping(self) -> bool:
        """Whether the worker is stopping: work goes on until the drain deadline."""
        return self.control.stopping

    def checkpoint(self) -> None:
        """A place where the work may end early. Call it now and then in long work; reading an object does.

        Raises `Interrupted` when the object was given back, ran out of its time or lost its claim; with
        ``on_stop="give_back"`` also as soon as the worker stops. Let it pass: nothing more is asked of the function.
        """
        self.control.check()


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
