"""The values of works, a work being one key of one handler. Times are epoch seconds of the database's clock."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias


class WorkState(StrEnum):
    """Where a work stands. Only a done one never changes any more."""

    FREE = "free"
    OPEN = "open"
    DONE = "done"


class WorkEnd(StrEnum):
    """How an attempt ended that did not complete its work."""

    FAILED = "failed"
    GIVEN_BACK = "given_back"
    EXPIRED = "expired"  # its lease ran out, or its worker died


WorkEnding = Literal["failed", "given_back"]  # what the holder of an attempt may end it as


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkAttempt:
    """An attempt that has ended without completing its work."""

    attempt_id: str
    worker: str
    started_at: float
    ended_at: float
    outcome: WorkEnd
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBegun:
    """The work is ours now. ``previous`` is how the attempt before ended, where there was one."""

    previous: WorkAttempt | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBusy:
    """Another attempt has it open."""

    seconds: float  # until its lease ends (at least 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    """It was completed before, by this attempt."""

    outcome: str  # the JSON text stored with the completion
    completed_at: float
    worker: str
    attempt_id: str


WorkStanding: TypeAlias = WorkBegun | WorkBusy | WorkDone  # what a begin is told


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRow:
    """A work as people see it. The attempt named is the latest one; ``previous`` is the last that ended incomplete."""

    work_id: bytes
    handler: str
    key: str  # cut where it is longer than a person would read
    app: str | None  # this and the next: None where an earlier version recorded it
    queue: str | None
    state: WorkState
    attempts: int  # all that ever began
    attempt_id: str
    worker: str
    started_at: float
    lease_until: float | None  # while it is open
    outcome: str | None  # JSON, once it is done
    completed_at: float | None
    first_seen_at: float
    previous: WorkAttempt | None
