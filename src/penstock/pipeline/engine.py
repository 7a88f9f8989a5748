"""The interface between the protocol (claim, run, commit) and the engine that processes the data.

`spark.engine` implements it for pipelines, `objects.engine` for object handlers. The simulation tests use their own
engine, to run the protocol code through many thousand schedules without a JVM.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.errors import PenstockError
from penstock.ledger.records import AttemptFailure, BatchRecord, ClaimedObject, KnownBeginning, ObjectResult
from penstock.messaging.failure import FailureDetails
from penstock.objects.reference import ObjectRef


class RunCancelled(PenstockError):
    """The run was interrupted on purpose. Its result is not used."""


class RunReleased(PenstockError):
    """The run ended early because the worker stops. Its claim is still held and must be released."""


class RunBroken(PenstockError):
    """The run failed and no object can be named as the cause.

    ``fingerprint`` is equal for equal causes. ``raised`` is the exception of the user's code, if that was the cause.
    """

    def __init__(self, message: str, *, fingerprint: str, raised: FailureDetails | None = None) -> None:
        super().__init__(message)
        self.fingerprint = fingerprint
        self.raised = raised


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One run: its objects and its attempt. The run writes only to paths that contain the attempt id."""

    attempt_id: str
    objects: Sequence[ObjectRef]
    claimed: Mapping[bytes, ClaimedObject] = field(default_factory=dict)  # the claim's result, by object id
    current_only: bool = False  # read a version only if it is the store's current one
    # what the table has of objects that may have grown, by object id: it need not be read again
    beginnings: Mapping[bytes, KnownBeginning] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFailure:
    """Why one object was not processed.

    `AttemptFailure.DELETED`, `SUPERSEDED` and `RETRY` if another try may help, `DEAD` if none can.
    """

    failure: AttemptFailure
    reason: str
    uncounted: bool = False  # RETRY only: the fault is probably not the object's, so do not count the attempt
    delay_seconds: float | None = None  # RETRY only: None means the default backoff
    raised: FailureDetails | None = None  # by the user's function
    exception: BaseException | None = None  # the same exception, for error hooks


Samples = Mapping[bytes, Sequence[tuple[int, str]]]  # some quarantined lines by object id: offset, reason
Reasons = Mapping[bytes, Mapping[str, int]]  # all quarantined lines by object id: how many for which reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The durable result of a run, not visible to readers yet. Each object is in ``processed`` or ``failed``."""

    processed: Sequence[ObjectResult]
    failed: Mapping[bytes, ReadFailure]  # by object id
    record: BatchRecord = field(default_factory=BatchRecord)
    schema_id: int = 0  # the table schema that the run was checked against
    new_schema: str | None = None  # set if the run needs a changed schema
    works: bool = False  # True: a success proves that the user's code works, even without a row
    samples: Samples = field(default_factory=dict)
    reasons: Reasons = field(default_factory=dict)
    has_addresses: bool = True  # each row has the address of its object, a string in the column `_object`
    place: str | None = None  # the column that places a line in its object; None: bad lines are not kept
    added_columns: Mapping[str, str] = field(default_factory=dict)  # types by name, of columns for new fields
    new_columns: Mapping[str, str] = field(default_factory=dict)  # those of them that this run added
    # Compares the same columns with the table's present schema and returns the two values above anew, for a schema that
    # another batch changed meanwhile. Raises `TableError` if they no longer fit. None: the run must be repeated.
    agree_again: Callable[[], tuple[int, str | None]] | None = None


class Engine(Protocol):
    """An executor of runs. Several threads may run one at the same time."""

    def run(self, request: RunRequest) -> RunResult:
        """Read, transform and write.

        Raises:
            RunBroken: The data or the user's code failed.
            TemporaryError: The infrastructure failed.
            UserError: No batch can ever succeed (e.g. an invalid transform, or a table with another schema).
            RunCancelled: `cancel` was called.
            RunReleased: The run ended early because the worker stops.
        """
        ...

    def cancel(self, attempt_id: str) -> None:
        """End the run of that attempt soon. Thread-safe; may be called before the run begins or after it ends."""
        ...


class CheckedEngine(Engine, Protocol):
    """An engine whose backend may fail permanently, such as Spark's JVM."""

    def check(self) -> None:
        """Raise `RestartNeeded` if the backend is known to have ended. Never blocks."""
        ...
