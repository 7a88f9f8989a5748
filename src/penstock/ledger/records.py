"""The values that go into the ledger and come out of it. Times are epoch seconds of the database's clock.

The values of owners: which app a name in a ledger belongs to.

What a repair of the ledger brings: see `penstock.ledger.repairs`.

The values of works, a work being one key of one handler. Times are epoch seconds of the database's clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias


class ObjectState(StrEnum):
    """Where an object stands in its pipeline."""

    UNPROCESSED = "unprocessed"
    PROCESSING = "processing"
    PROCESSED = "processed"
    DEAD = "dead"
    GONE = "gone"
    SUPERSEDED = "superseded"


TERMINAL = frozenset({ObjectState.PROCESSED, ObjectState.DEAD, ObjectState.GONE, ObjectState.SUPERSEDED})
UNREAD = frozenset({ObjectState.GONE, ObjectState.SUPERSEDED})
"""Ends of objects whose content was never read: a newer notification or listing takes such an object again."""


class AttemptState(StrEnum):
    """Where an attempt stands. Only an open one changes any more."""

    OPEN = "open"
    COMMITTED = "committed"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """The message that named an object; a dead object remembers it, so that its redelivery is told from others."""

    message_id: str
    enqueued_at: float
    replay_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An object that a delivery asks us to process."""

    object_id: bytes  # 16 bytes
    bucket: str
    key: bytes
    size_bytes: int
    uri: str
    carrier: Carrier
    version_id: str | None = None
    etag: str | None = None
    sequencer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedObject:
    """An object that is ours now. ``attempts`` includes this one; refunded ones are not counted."""

    object_id: bytes
    attempts: int
    unattributed_failures: int  # runs it was in that failed with no object to blame
    carrier: Carrier  # which of the messages that named it is its carrier, should it die
    missing_seconds: float | None = None  # since the first look that found it missing; None: the last look found it


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedObject:
    """An object in a terminal state, and for a dead one who carried it."""

    state: ObjectState
    reason: str | None
    carrier: Carrier | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectClaims:
    """What a claim brought, by object id: each candidate is in exactly one of the three."""

    attempt_id: str
    claimed: Mapping[bytes, ClaimedObject]
    busy: Mapping[bytes, float]  # seconds until the other attempt's lease ends (at least 0)
    ended: Mapping[bytes, EndedObject]


class AttemptFailure(StrEnum):
    """How an object leaves an attempt without being processed."""

    RETRY = "retry"
    DEAD = "dead"
    GONE = "gone"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedObject:
    """One object that leaves its attempt without rows, and why."""

    object_id: bytes
    failure: AttemptFailure
    reason: str
    refund: bool = False  # the fault was not the object's: the attempt is not counted
    unattributed: bool = False  # the run broke and nobody could be blamed: counts as one more unattributed failure
    missing: bool = False  # this look did not find it
    traceback: str | None = None  # of the user's code, without local variables


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectResult:
    """What one processed object gave."""

    object_id: bytes
    rows: int
    lines_quarantined: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutcome:
    """Everything one commit records, in one transaction. Manifests are JSON texts that the sinks understand."""

    pipeline: str
    attempt_id: str
    processed: Sequence[ObjectResult]
    failed: Sequence[FailedObject] = ()
    rows: int = 0  # written to the table
    lines_quarantined: int = 0
    bytes: int = 0  # of the objects read
    manifest: str = ""
    quarantine_manifest: str = ""
    schema_id: int = 0  # the table schema the run was planned with; a newer one refuses the commit
    new_schema: str | None = None  # a changed table schema: recorded as schema_id + 1
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    spark_ui_url: str | None = None  # where its run can be looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRow:
    """A pipeline as the ledger knows it."""

    id: str
    next_seq: int  # the sequence the next committed batch gets; the first is 1
    schema_id: int
    table_schema: str | None  # JSON of the sink's schema
    source_schema: str | None  # DDL, declared or inferred, remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """A committed batch. Manifests are JSON texts that the sinks understand."""

    pipeline: str
    seq: int
    attempt_id: str
    manifest: str
    quarantine_manifest: str
    table_schema: str | None  # in force for this batch
    objects: int
    rows: int
    lines_quarantined: int
    bytes: int
    committed_at: float
    worker: str
    stage_seconds: Mapping[str, float]
    schema_id: int = 0
    spark_ui_url: str | None = None  # where its run could be looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One claim of a worker, from its opening to its end."""

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
    """One attempt on one object, for the timeline."""

    attempt_id: str
    worker: str
    started_at: float
    ended_at: float | None
    outcome: str  # open, processed, retry, dead, gone, superseded, given_back, expired, failed
    reason: str | None
    traceback: str | None = None  # the end of it, where the user's code raised


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRow:
    """One version of one object, as one pipeline knows it. ``attempts`` are those that count: refunds are taken off."""

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
    carrier: Carrier | None


OwnerKind = Literal["keys", "objects"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedName:
    """A name that an app uses in the ledger, and the queue that feeds it.

    ``keys``: of a handler whose calls are recorded by key. ``objects``: of an object handler or a pipeline.
    """

    kind: OwnerKind
    name: str
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOwner:
    """Whose keys those of a handler are; part of their identity.

    ``is_plain``: the keys are identified by the handler's name alone, because an earlier version recorded some of them.
    """

    app: str
    queue: str
    is_plain: bool = False
    purpose: Literal["key", "tick"] = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedObject:
    """One object of a batch that the table shows. The candidate's carrier is not looked at."""

    candidate: Candidate
    rows: int
    lines_quarantined: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedBatch:
    """A batch that the table shows and the ledger does not know, or one that stands for a number nobody remembers."""

    seq: int
    attempt_id: str
    objects: Sequence[ImportedObject]
    rows: int = 0
    lines_quarantined: int = 0
    bytes: int = 0
    manifest: str = ""
    quarantine_manifest: str = ""
    claimed_at: float | None = None  # epoch seconds, as the next
    committed_at: float | None = None  # epoch seconds; None: nobody knows, so now
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    spark_ui_url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRepair:
    """Everything one repair changes, in one transaction."""

    pipeline: str
    seen_next_seq: int  # what the plan was made of; moved meanwhile, nothing is done
    next_seq: int
    table_schema: str | None  # in force from now on; None: the one that is
    imported: Sequence[ImportedBatch] = ()
    moved: Mapping[int, int] = field(default_factory=dict)  # committed after the rollback: to the number they get
    withdrawn: Sequence[int] = ()  # committed after the rollback and not to be shown: their objects are free again
    forgotten: Sequence[str] = ()  # attempts that left a record, and can never commit


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRepaired:
    """What became of it."""

    abandoned: Sequence[str]  # attempts that were open
    withdrawn: Sequence[str]  # attempts whose batch does not count any more


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
