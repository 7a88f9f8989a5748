"""Events of objects and their sources."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from penstock.events.bus import Event


class QuarantineReason(StrEnum):
    """Why a line is in quarantine. Stored in the quarantine table; a label of the metric quarantined_lines_total."""

    INVALID_UTF8 = "invalid UTF-8"
    INVALID_ENCODING = "invalid encoding"  # of an object handler that reads another encoding
    MALFORMED = "malformed"
    WRONG_TYPE = "wrong type"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceScanned(Event):
    """A source was scanned; ``unfinished`` counts the objects found that have no terminal state yet.

    ``messages`` is the broker's count of messages in the queue; a replayed one revives a failed object.
    """

    source: str
    found: int
    unfinished: int
    messages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchStarted(Event):
    """An ingest with --watch is ready: new objects are detected from now on."""

    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchDegraded(Event):
    """A watched folder was deleted, or its notifications fail. Watching continues."""

    source: str
    reason: str  # one sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaInferred(Event):
    """No schema was declared, so one was inferred from a sample and stored."""

    pipeline: str
    schema: str
    notes: tuple[str, ...]  # sentences about what may surprise, such as the value that made a column text


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEvent(Event):
    """The base class of the events of one object in one attempt."""

    pipeline: str
    object_uri: str
    attempt_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStarted(ObjectEvent):
    """An attempt that claimed the object starts to process it."""

    attempt: int  # number of this attempt on the object, from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectTakenOver(ObjectEvent):
    """The previous attempt ended because its lease expired or its worker died; this one continues with the object."""

    attempt: int  # number of this attempt on the object, from 1
    from_worker: str
    from_attempt_id: str
    reason: str | None  # how the previous attempt ended


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFinished(ObjectEvent):
    """The ledger recorded the object as processed."""

    rows: int
    lines_quarantined: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInterrupted(ObjectEvent):
    """A shutdown, or a fault that the object did not cause, interrupted the attempt. The object is free again."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFailed(ObjectEvent):
    """One object left its attempt unprocessed; ``outcome`` is retry, dead, gone or superseded.

    The last three fields are set if a user's function raised.
    """

    outcome: str
    reason: str
    error_type: str | None = None
    traceback: str | None = None  # without local variables
    exception: BaseException | None = None  # for error hooks


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectCallRetrying(ObjectEvent):
    """A call inside a function for the object failed and is retried there; this does not count as an attempt."""

    tries: int
    delay_seconds: float
    error_type: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSkipped(Event):
    """A message named the object, but there was nothing to do.

    ``reason`` is already_processed, in_progress, already_dead, gone, superseded or retracted.
    """

    pipeline: str
    object_uri: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesQuarantined(Event):
    """Lines of one object could not be read. ``sample`` contains a few of them as (offset, reason).

    ``reasons`` counts all of them by `QuarantineReason`.
    """

    pipeline: str
    object_uri: str
    count: int
    reasons: Mapping[str, int]
    sample: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownFieldsFound(Event):
    """An object has fields that no column takes. Depending on the source's ``evolve`` their values were rescued.

    ``fields`` counts the rows that have each of the most frequent ones, ``others`` those of the rest.
    """

    pipeline: str
    object_uri: str
    fields: Mapping[str, int]
    others: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongTypesRescued(Event):
    """An object has values of another type than their column, which is null in these rows; ``_rescued`` has the values.

    ``fields`` counts the rows by column for those with the most, ``others`` those of the rest.
    """

    pipeline: str
    object_uri: str
    fields: Mapping[str, int]
    others: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsAdded(Event):
    """A committed batch added columns for new fields of its objects."""

    pipeline: str
    columns: Mapping[str, str]  # types by name


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileProgressed(Event):
    """A reconcile made progress. ``unit`` is tasks (of Spark, as far as known), objects or messages."""

    pipeline: str
    unit: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsMissing(Event):
    """Objects exist that were stored before ``as_of`` and never processed: notifications were lost.

    ``folders`` lists those with the most missing objects and their counts.
    """

    pipeline: str
    source: str
    as_of: float  # epoch seconds
    missing: int
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsOverdue(Event):
    """Objects known to the ledger have waited too long. Emitted at the start, and hourly while this lasts."""

    pipeline: str
    overdue: int
    oldest_age_seconds: float  # since the ledger first recorded the oldest one
    after_seconds: float  # the threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileFinished(Event):
    """A reconcile compared the source with the ledger. Notifications were sent for ``sent`` of the missing objects."""

    pipeline: str
    source: str
    as_of: float  # epoch seconds
    listed: int
    missing: int
    sent: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsArchived(Event):
    """Rows of objects processed long ago were moved from the ledger to archive files."""

    pipeline: str
    objects: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCleaned(Event):
    """The source objects of a published batch were tagged, moved or deleted.

    ``skipped`` objects are left unchanged for good; ``reasons`` counts why.
    """

    pipeline: str
    action: str  # tag, move or delete
    seq: int  # of the batch
    objects: int
    skipped: int
    reasons: Mapping[str, int]
