"""What the protocol asks of whoever does the data work.

Spark does it for pipelines, a user's function for plain object handlers; the simulation brings an engine of its own, so
that the protocol code is run through many thousand schedules without a JVM.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.errors import PenstockError
from penstock.ledger.records import AttemptFailure, ClaimedObject, ObjectResult
from penstock.messaging.failure import FailureDetails as Raised
from penstock.objects.reference import ObjectRef


class RunCancelled(PenstockError):
    """The run was interrupted on purpose; nobody waits for its answer."""


class RunGivenBack(PenstockError):
    """The run ended itself, since the worker stops: its claim still holds and is to be given back."""


class RunBroken(PenstockError):
    """The run failed and no object can be named as the cause. ``fingerprint`` is equal for equal causes; ``raised`` is
    what the user's code raised, where it was that."""

    def __init__(self, message: str, *, fingerprint: str, raised: Raised | None = None) -> None:
        super().__init__(message)
        self.fingerprint = fingerprint
        self.raised = raised


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One run: these objects, under this attempt. What it writes stands in places named after the attempt."""

    attempt_id: str
    objects: Sequence[ObjectRef]
    claimed: Mapping[bytes, ClaimedObject] = field(default_factory=dict)  # what the claim said of each, by object id


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFailure:
    """Why one object was not processed.

    `AttemptFailure.GONE`, `SUPERSEDED`, `RETRY` for what another look may mend, `DEAD` for what none can.
    """

    failure: AttemptFailure
    reason: str
    refund: bool = False  # of a RETRY: the fault is hardly the object's, so the attempt does not count
    delay_seconds: float | None = None  # of a RETRY: until then; None leaves it to the backoff
    raised: Raised | None = None  # by the user's function
    exception: BaseException | None = None  # the same, for error hooks


Samples = Mapping[bytes, Sequence[tuple[int, str]]]  # some quarantined lines by object id: offset, reason
Reasons = Mapping[bytes, Mapping[str, int]]  # all quarantined lines by object id: how many for which reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run wrote, durably, but visible to nobody yet. Every requested object is in one of the first two."""

    processed: Sequence[ObjectResult]
    failed: Mapping[bytes, ReadFailure]  # by object id
    rows: int
    lines_quarantined: int
    bytes: int  # of the objects processed, as stored
    manifest: str
    quarantine_manifest: str
    schema_id: int  # the table schema the run was checked against
    new_schema: str | None  # set where the run needs a changed one
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    spark_ui_url: str | None = None  # where the run can be looked at
    works: bool = False  # what was processed shows that the user's code works, even where there is no row
    samples: Samples = field(default_factory=dict)
    reasons: Reasons = field(default_factory=dict)


class Engine(Protocol):
    """Runs batches, one at a time or several at once."""

    def run(self, request: RunRequest) -> RunResult:
        """Read, transform and write.

        Raises `RunBroken` when the data or the user's code broke it, `TemporaryError` when the machinery did,
        `UserError` when no batch can ever work (a transform that is no transform, a table of another schema),
        `RunCancelled` after `cancel`, `RunGivenBack` when it ended itself at a stop.
        """
        ...

    def cancel(self, attempt_id: str) -> None:
        """End the run of that attempt soon; from any thread, also before it began or after it ended."""
        ...


class CheckedEngine(Engine, Protocol):
    """An engine on machinery that may fail for good, such as Spark's JVM."""

    def check(self) -> None:
        """Raise `RestartNeeded` if the machinery is known to have ended. Never waits."""
        ...
