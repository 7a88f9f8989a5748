"""The values that go into the ledger and come out of it. Times are epoch seconds of the database's clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


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
class Claim:
    """What a claim brought, by object id: each candidate is in exactly one of the three."""

    attempt_id: str
    claimed: Mapping[bytes, ClaimedObject]
    busy: Mapping[bytes, float]  # seconds until the other attempt's lease ends (at least 0)
    ended: Mapping[bytes, EndedObject]


class Failure(StrEnum):
    """How an object leaves an attempt without being processed."""

    RETRY = "retry"
    DEAD = "dead"
    GONE = "gone"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedObject:
    """One object that leaves its attempt without rows, and why."""

    object_id: bytes
    failure: Failure
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
