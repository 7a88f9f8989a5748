"""Values that go into the ledger and come out of it. Times are epoch seconds of the database's clock.

In order: objects, attempts and batches of pipelines; owners, the apps that use a name; repairs (see
`penstock.ledger.repairs`); works, one per key of a handler.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol, TypeAlias


class ObjectState(StrEnum):
    """State of an object in its pipeline."""

    UNPROCESSED = "unprocessed"
    PROCESSING = "processing"
    PROCESSED = "processed"
    DEAD = "dead"
    DELETED = "gone"
    SUPERSEDED = "superseded"
    RETRACTED = "retracted"  # processed, and its rows were taken out of the table by hand


class OnChange(StrEnum):
    """The rule of a pipeline for an object of which it has processed another version."""

    ADD = "add"  # its rows are added to those of the other version
    REPLACE = "replace"  # its rows take the place of the other version's
    REFUSE = "refuse"  # the object fails
    TAIL = "tail"  # as replace, but if the other version is its beginning, only the bytes after it are read

    @property
    def replaces(self) -> bool:
        """True if the table shows one version of each object."""
        return self in (OnChange.REPLACE, OnChange.TAIL)


TERMINAL = frozenset({*ObjectState} - {ObjectState.UNPROCESSED, ObjectState.PROCESSING})
UNREAD = frozenset({ObjectState.DELETED, ObjectState.SUPERSEDED})
"""Ends of objects whose content was never read: a newer notification or listing takes such an object again."""


class AttemptState(StrEnum):
    """State of an attempt. Only open attempts can change."""

    OPEN = "open"
    COMMITTED = "committed"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginalMessage:
    """The message that named an object. A failed object keeps it to recognize a redelivery of the same message."""

    message_id: str
    enqueued_at: float
    replay_id: str | None = None


class Claimable(Protocol):
    """An object that a message asks to process. `Candidate` holds these values; a pipeline's batch computes some."""

    @property
    def object_id(self) -> bytes: ...

    @property
    def bucket(self) -> str: ...

    @property
    def key(self) -> bytes: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def uri(self) -> str: ...

    @property
    def original_message(self) -> OriginalMessage: ...

    @property
    def version_id(self) -> str | None: ...

    @property
    def etag(self) -> str | None: ...

    @property
    def sequencer(self) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A `Claimable` with values of its own."""

    object_id: bytes  # 16 bytes
    bucket: str
    key: bytes
    size_bytes: int
    uri: str
    original_message: OriginalMessage
    version_id: str | None = None
    etag: str | None = None
    sequencer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedObject:
    """An object that this attempt holds. ``attempts`` includes this one, without those that do not count."""

    object_id: bytes
    attempts: int
    unattributed_failures: int  # failed runs with this object in which no object could be blamed
    original_message: OriginalMessage  # the message to dead-letter if the object fails for good
    # seconds since an attempt first found it missing; None: not missing, or found again since
    missing_seconds: float | None = None
    # It was processed before, and its rows are in the table: those of this attempt must replace them
    is_reopened: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedObject:
    """An object in a terminal state; for a failed one also its original message."""

    state: ObjectState
    reason: str | None
    original_message: OriginalMessage | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectClaims:
    """Result of a claim by object id: each candidate is in exactly one of the three mappings."""

    attempt_id: str
    claimed: Mapping[bytes, ClaimedObject]
    busy: Mapping[bytes, float]  # seconds until the other attempt's lease ends (at least 0)
    ended: Mapping[bytes, EndedObject]
    # the number of the next batch at the claim, for `BatchOutcome.since_seq`; None if the pipeline adds versions
    next_seq: int | None = None


class AttemptFailure(StrEnum):
    """How an object leaves an attempt without being processed."""

    RETRY = "retry"
    DEAD = "dead"
    DELETED = "gone"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedObject:
    """One object that leaves its attempt without rows, and the reason."""

    object_id: bytes
    failure: AttemptFailure
    reason: str
    uncounted: bool = False  # the object was not at fault: the attempt is not counted
    unattributed: bool = False  # the run failed and no object could be blamed: counts one more unattributed failure
    missing: bool = False  # this attempt did not find it
    traceback: str | None = None  # of the user's code, without local variables


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownCounts:
    """The fields of an object that no column takes: rows that have each of the most frequent ones, and the others.

    ``wrong_type`` and ``wrong_type_others`` are the same for columns: rows whose value is of another type, and rescued.
    """

    fields: Mapping[str, int] = field(default_factory=dict)
    others: int = 0
    wrong_type: Mapping[str, int] = field(default_factory=dict)
    wrong_type_others: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The bytes of a version that ended with a whole record, and a digest to recognize them in a longer version."""

    size_bytes: int
    digest: str  # JSON: the end of each stretch of bytes, and its SHA-256 in hexadecimal
    reading: str  # a digest of the options and the transform: rows read in another way would be others


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBeginning:
    """The beginning that the table has of an object, as recorded with the last version of it."""

    beginning: Beginning
    attempt_id: str  # the attempt that committed the version
    rows: int  # that the table has of the object
    lines_quarantined: int  # bad lines in these bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectResult:
    """Row counts of one processed object."""

    object_id: bytes
    rows: int
    lines_quarantined: int
    unknown: UnknownCounts | None = None
    beginning: Beginning | None = None  # of this version, if only appended bytes are to be read of the next one
    appended_to: str | None = None  # `KnownBeginning.attempt_id` of the bytes that were not read; None: all were read


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """The counts, files and timings of one batch. Passed on whole from its run to the ledger and to its readers.

    Each field is a column of ``batches`` and a field of the record beside the table. Manifests are JSON texts in the
    sink's format.
    """

    rows: int = 0  # written to the table
    lines_quarantined: int = 0
    bytes: int = 0  # of the objects read, as stored
    manifest: str = ""
    quarantine_manifest: str = ""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    spark_ui_url: str | None = None  # page of its run in the Spark UI
    transform: str | None = None  # name of the transform that made the rows; empty: none. None: unknown
    # JSON list of addresses, sorted: with this batch, earlier rows that have one of them in `_object` leave the table
    replaces: str = ""
    merge: str | None = None  # text of the declaration by which its rows are merged by key
    tombstones: str = ""  # manifest of its deletes, which are files beside the table


def replaced_objects(replaces: str) -> Sequence[str]:
    """Return the addresses in `BatchRecord.replaces`."""
    return tuple(json.loads(replaces)) if replaces else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLines:
    """The bad lines that an attempt found in one object, for the ledger."""

    object_id: bytes
    replay_id: bytes  # the id of the object that replays these lines
    bucket: str
    key: bytes
    uri: str
    size_bytes: int
    version_id: str | None
    etag: str | None
    place: str  # the column with a row's place in its object: _offset or _row
    rows: int  # good lines that the attempt read
    lines_quarantined: int
    reason: str | None = None  # of the first of these lines


class ReopeningState(StrEnum):
    """State of the last reopening of an object."""

    OPEN = "open"  # the object is to be read again
    READ = "read"  # a batch read it again
    KEPT = "kept"  # the store did not have it any more: it is processed as before


@dataclass(frozen=True, slots=True, kw_only=True)
class ReopeningRow:
    """The last reopening of an object, with the batch and the rows of its earlier reading."""

    object_id: bytes
    state: ReopeningState
    batch_seq: int
    rows: int | None
    reopened_at: float
    read_attempt_id: str | None  # the attempt that read it again


class QuarantineState(StrEnum):
    """State of the bad lines of one object."""

    OPEN = "open"
    REPLAYED = "replayed"  # an attempt has read them again
    DISMISSED = "dismissed"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineRow:
    """The bad lines of one object, as recorded."""

    pipeline: str
    attempt_id: str
    bad: BadLines  # ``rows`` of a replay include its source's
    warns: bool
    state: QuarantineState
    recorded_at: float
    ended_at: float | None  # when its lines were replayed or dismissed
    replaced_seq: int | None = None  # the batch that replaced this version's rows: its lines are not read again

    @property
    def share(self) -> float:
        """Return the share of the object's lines that are bad."""
        return self.bad.lines_quarantined / max(1, self.bad.rows + self.bad.lines_quarantined)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineWarning:
    """The objects of a pipeline whose bad lines a person should know of: neither replayed nor dismissed."""

    objects: int = 0
    lines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutcome:
    """Everything that one commit records, in one transaction."""

    pipeline: str
    attempt_id: str
    processed: Sequence[ObjectResult]
    failed: Sequence[FailedObject] = ()
    record: BatchRecord = BatchRecord()
    schema_id: int = 0  # schema the run was planned with; the commit is refused if the table has a newer one
    new_schema: str | None = None  # a changed table schema: recorded as schema_id + 1
    bad: Sequence[BadLines] = ()  # the processed objects with lines in quarantine
    replays: Sequence[bytes] = ()  # the processed objects that are replays
    added_columns: Mapping[str, str] = field(default_factory=dict)  # as in `PipelineRow`; those that the run added
    on_change: OnChange = OnChange.ADD
    since_seq: int | None = None  # `ObjectClaims.next_seq`: an other version committed since then refuses the commit

    @property
    def grown(self) -> Sequence[ObjectResult]:
        """The processed objects of which only appended lines were read."""
        return [one for one in self.processed if one.appended_to is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The batch that a commit recorded."""

    seq: int
    replaced_objects: int = 0  # objects whose earlier versions it replaced
    replaced_rows: int = 0  # the rows that the table had of these objects
    grown_objects: int = 0  # objects of which it has only appended lines
    appended_rows: int = 0  # the rows of these objects in it


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRow:
    """One row of ``pipelines``."""

    id: str
    next_seq: int  # sequence number of the next committed batch; the first is 1
    schema_id: int
    table_schema: str | None  # JSON of the sink's schema
    source_schema: str | None  # DDL, declared or inferred
    source_options: str | None = None  # JSON: how the objects are read, if that was inferred
    # Types by name, in order: columns of new fields that batches added to the declared or inferred ones
    added_columns: Mapping[str, str] = field(default_factory=dict)
    transform: str | None = None  # as in `BatchRecord`: of the next batch. None: the next batch records its own
    merge: str | None = None  # as in `BatchRecord`: of all batches. None: there is none yet, or rows are not merged


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """A committed batch."""

    pipeline: str
    seq: int
    attempt_id: str
    record: BatchRecord
    table_schema: str | None  # the schema of this batch
    objects: int
    committed_at: float
    worker: str
    schema_id: int = 0
    grown_objects: int = 0  # as in `Committed`
    appended_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One claim of a worker, from start to end."""

    id: str
    pipeline: str
    state: AttemptState
    worker: str
    started_at: float
    ended_at: float | None
    lease_until: float
    reason: str | None  # why it was abandoned


TAKEN_OVER = frozenset({"expired", "worker_died"})  # outcomes of an attempt that another worker ended


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectAttempt:
    """One attempt on one object, as the timeline shows it."""

    attempt_id: str
    worker: str
    started_at: float
    ended_at: float | None
    outcome: str  # open, processed, retry, dead, gone, superseded, given_back, expired, failed
    reason: str | None
    traceback: str | None = None  # its end, if the user's code raised


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRow:
    """One version of one object in one pipeline. ``attempts`` excludes those that do not count."""

    object_id: bytes
    uri: str
    bucket: str
    key: bytes
    size_bytes: int
    version_id: str | None
    etag: str | None
    state: ObjectState
    attempts: int
    batch_seq: int | None
    rows: int | None
    lines_quarantined: int | None
    reason: str | None
    first_seen_at: float
    ended_at: float | None
    original_message: OriginalMessage | None
    unknown: UnknownCounts | None = None

    @property
    def is_reopened(self) -> bool:
        """Return True if it is to be read again, and the rows of its earlier reading are in the table until then."""
        return self.batch_seq is not None and self.state is not ObjectState.PROCESSED


OwnerKind = Literal["keys", "objects"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedName:
    """A name that an app uses in the ledger, and the queue that feeds it.

    ``keys``: a handler with calls recorded by key. ``objects``: an object handler or a pipeline.
    """

    kind: OwnerKind
    name: str
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOwner:
    """The app and queue of a handler, which are part of the identity of its keys.

    ``is_plain``: the keys are identified by the handler's name alone, because an earlier version recorded some of them.
    """

    app: str
    queue: str
    is_plain: bool = False
    purpose: Literal["key", "tick"] = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedObject:
    """One object of a batch in the table. The candidate's original message is ignored."""

    candidate: Candidate
    rows: int
    lines_quarantined: int
    beginning: Beginning | None = None  # this and the next as in `ObjectResult`
    appended_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedBatch:
    """A batch in the table that the ledger does not know, or a placeholder for a sequence number without a record."""

    seq: int
    attempt_id: str
    objects: Sequence[ImportedObject]
    record: BatchRecord = BatchRecord()
    claimed_at: float | None = None  # epoch seconds
    committed_at: float | None = None  # epoch seconds; None: unknown, so the time of the import
    bad: Sequence[BadLines] = ()  # see `BatchOutcome`
    replays: Sequence[bytes] = ()
    on_change: OnChange = OnChange.ADD


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRepair:
    """Everything that one repair changes, in one transaction."""

    pipeline: str
    seen_next_seq: int  # next_seq when the repair was planned; nothing is changed if it has moved since
    next_seq: int
    table_schema: str | None  # the new current schema; None keeps the current one
    imported: Sequence[ImportedBatch] = ()
    moved: Mapping[int, int] = field(default_factory=dict)  # sequence numbers committed after the rollback: old to new
    withdrawn: Sequence[int] = ()  # committed after the rollback and not to be shown: their objects are freed
    forgotten: Sequence[str] = ()  # attempts that left a record and can never commit


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRepaired:
    """Result of a repair."""

    abandoned: Sequence[str]  # attempts that were open
    withdrawn: Sequence[str]  # attempts of batches that no longer count


class WorkState(StrEnum):
    """State of a work. Done is final."""

    FREE = "free"
    OPEN = "open"
    DONE = "done"


class WorkEnd(StrEnum):
    """How an attempt ended that did not complete its work."""

    FAILED = "failed"
    RELEASED = "given_back"
    EXPIRED = "expired"  # its lease ran out, or its worker died


HolderOutcome = Literal["failed", "given_back"]  # outcomes that the holder of an attempt may set


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
    """The attempt now holds the work. ``previous`` is the last attempt that ended without completing it, if any."""

    previous: WorkAttempt | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkBusy:
    """Another attempt holds the work."""

    seconds: float  # until that lease ends (at least 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    """The work was completed before, by this attempt."""

    outcome: str  # JSON text stored at completion
    completed_at: float
    worker: str
    attempt_id: str


WorkClaimResult: TypeAlias = WorkBegun | WorkBusy | WorkDone  # results of a begin


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRow:
    """A work for display. The attempt shown is the latest; ``previous`` is the last one that ended incomplete."""

    work_id: bytes
    handler: str
    key: str  # truncated for display
    app: str | None  # app and queue are None if an earlier version recorded the work
    queue: str | None
    state: WorkState
    attempts: int  # all attempts ever begun
    attempt_id: str
    worker: str
    started_at: float
    lease_until: float | None  # None unless open
    outcome: str | None  # JSON; None until done
    completed_at: float | None
    first_seen_at: float
    previous: WorkAttempt | None
