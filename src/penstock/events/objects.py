"""What happens to objects, and to the places they come from."""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.events.bus import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceScanned(Event):
    """A folder was walked; ``unfinished`` of the objects found have no terminal state yet.

    ``messages`` are in the queue then, as near as the broker can tell; one that was replayed revives a dead object.
    """

    source: str
    found: int
    unfinished: int
    messages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchBegan(Event):
    """All that an ingest with --watch needs is there; what comes is taken from now on."""

    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchDisturbed(Event):
    """A folder that is watched is gone, or its notifications fail; watching goes on."""

    source: str
    reason: str  # a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaInferred(Event):
    """No schema was given, so one was made from a sample and is remembered."""

    pipeline: str
    schema: str
    notes: tuple[str, ...]  # columns whose values did not agree


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEvent(Event):
    """The root of what happens to one object in one attempt."""

    pipeline: str
    object_uri: str
    attempt_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStarted(ObjectEvent):
    """An attempt that claimed the object begins to work on it."""

    attempt: int  # of the object, 1-based


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectTakenOver(ObjectEvent):
    """The attempt before this one ended with its lease or with its worker, and this one goes on with the object."""

    attempt: int  # of the object, 1-based: this one
    from_worker: str
    from_attempt_id: str
    reason: str | None  # how that attempt ended


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFinished(ObjectEvent):
    """The ledger has recorded the object as processed."""

    rows: int
    lines_quarantined: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectGivenBack(ObjectEvent):
    """The attempt was broken off by a stop, or by a fault that is not the object's; the object is free for another."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFailed(ObjectEvent):
    """One object left its attempt unprocessed; ``outcome`` is retry, dead, gone or superseded.

    The last three fields are there where a user's function raised.
    """

    outcome: str
    reason: str
    error_type: str | None = None
    traceback: str | None = None  # without local variables
    exception: BaseException | None = None  # for error hooks


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectCallRetrying(ObjectEvent):
    """A call inside a function for the object failed and is tried again there; no attempt is spent."""

    tries: int
    delay_seconds: float
    error_type: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSkipped(Event):
    """A message named the object and there was nothing to do: ``reason`` is already_processed, in_progress,
    already_dead, gone or superseded."""

    pipeline: str
    object_uri: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesQuarantined(Event):
    """Lines of one object could not be read. ``sample`` holds a few of them: (offset, reason).

    ``reasons`` counts all of them by one of few words: invalid UTF-8, invalid encoding (an object handler's other than
    UTF-8), malformed, wrong type.
    """

    pipeline: str
    object_uri: str
    count: int
    reasons: Mapping[str, int]
    sample: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileProgressed(Event):
    """A reconcile went on: ``what`` it counts is tasks (of Spark, as far as they are known) or messages."""

    pipeline: str
    what: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsMissing(Event):
    """Objects are there that were stored before ``as_of`` and never processed: an incident, for somebody lost them.

    ``where``: the first folders with how many, those with the most first.
    """

    pipeline: str
    source: str
    as_of: float  # epoch seconds
    missing: int
    where: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsOverdue(Event):
    """Objects that the ledger knows of wait for longer than they should; told when it begins, and once an hour while it
    lasts."""

    pipeline: str
    overdue: int
    oldest_age_seconds: float  # since the ledger heard of it
    after_seconds: float  # what is too long


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileFinished(Event):
    """What is there was compared with what is known; ``sent`` of the missing objects were announced anew."""

    pipeline: str
    source: str
    as_of: float  # epoch seconds
    listed: int
    missing: int
    sent: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsArchived(Event):
    """Rows of objects processed long ago left the ledger for files of the archive."""

    pipeline: str
    objects: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCleaned(Event):
    """Objects of a batch that is published were tagged, moved or deleted at their source; ``skipped`` were left alone
    for good, for the ``reasons`` that are counted."""

    pipeline: str
    action: str  # tag, move or delete
    seq: int  # the batch's
    objects: int
    skipped: int
    reasons: Mapping[str, int]
