"""What a diagnosis names."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """The attempt that brought it to its end after all."""

    ts: str
    worker: str | None
    attempt_id: str | None
    attempt: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One object or message, and what befell it when."""

    kind: str  # object or message
    name: str  # its address, or its id
    place: str | None  # its pipeline, or its queue
    ts: str
    worker: str | None
    attempt_id: str | None = None
    attempt: int | None = None
    reason: str | None = None
    times: int = 1
    later: Later | None = None
    worker_last_ts: str | None = None  # of the last line that the worker wrote
    from_worker: str | None = None  # whose work was taken over
    from_attempt: str | int | None = None  # the number of that attempt, or its id for an object


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A time in which workers could not use a service that they need."""

    what: str  # breaker, ledger, queue or look: the events that say so
    name: str  # of the queue or of what is looked at; empty for the ledger
    began_ts: str
    ended_ts: str | None  # None: these logs do not say that it ended
    workers: int  # that noticed
    error: str | None  # the first one


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnoses:
    """All diagnoses, each in the order of time."""

    wrongly_processed: Sequence[Found]  # skipped as already processed, and never finished before
    failed: Sequence[Found]  # given up on; ``later``: finished nevertheless
    finished: Sequence[Found]  # when and by whom, for what is wrong in the table; ``times``: how often
    died: Sequence[Found]  # an attempt without an end, and none after it
    taken_over: Sequence[Found]  # work of a worker that died or hung, and who went on; ``later``: who finished it
    outages: Sequence[Outage]
    interrupted: Sequence[Found]  # by a stop; ``later``: the attempt that finished it
    remarks: Sequence[str]  # what these logs cannot tell

    @property
    def is_wrong(self) -> bool:
        """Whether somebody should look."""
        return bool(self.wrongly_processed or self.died)
