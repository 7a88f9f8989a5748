"""Events of batches, of the attempts on them, and of their tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.events.bus import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkStarted(Event):
    """Penstock started a Spark session."""

    java: str
    notes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkAwaited(Event):
    """A Spark session is open, and its executors have not run the check of their Python for a while."""

    spark: str  # the master, or where the session comes from


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClaimed(Event):
    """The ledger opened an attempt on these objects."""

    pipeline: str
    attempt_id: str
    objects: int
    bytes: int  # stored size of these objects
    seconds: float  # duration of the claim


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWritten(Event):
    """The run of a batch has written its files. They count only after the commit."""

    pipeline: str
    attempt_id: str
    rows: int
    lines_quarantined: int
    seconds: float  # duration of the run, including all its retries


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgressed(Event):
    """Spark finished some of a run's tasks."""

    pipeline: str
    attempt_id: str
    tasks_done: int
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommitted(Event):
    """The ledger committed the batch: from now on it counts."""

    pipeline: str
    attempt_id: str
    seq: int
    objects: int
    rows: int
    lines_quarantined: int
    bytes: int  # stored size of the processed objects, as in the batch's ledger row
    seconds: float  # duration of the ledger commit
    replays: int = 0  # of the objects: those of which only the bad lines were read again
    replaced_objects: int = 0  # of the objects: those that replace an earlier version
    replaced_rows: int = 0  # the rows of these versions, which leave the table
    grown_objects: int = 0  # of the objects: those of which only appended lines were read
    appended_rows: int = 0  # the rows of these objects in this batch


MERGE_EFFECTS = ("inserted", "updated", "deleted", "left_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPublished(Event):
    """Every batch up to ``seq`` is visible in the table."""

    pipeline: str
    sink: str
    seq: int
    table_version: int
    seconds: float  # duration of this commit to the table, including its checks and the wait for other writers
    # If the batch was merged by key: the rows by what became of them, see `MERGE_EFFECTS`
    merged: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(Event):
    """A run failed, and the cause could not be traced to an object."""

    pipeline: str
    attempt_id: str
    objects: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultsRepeated(Event):
    """An infrastructure fault occurred several times in a row for a pipeline or an object handler.

    It does not count as an attempt of any object; all objects are retried.
    """

    pipeline: str
    count: int  # consecutive faults
    error: str  # the latest one


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAbandoned(Event):
    """An attempt was ended durably without a commit: released, expired, or its worker died."""

    pipeline: str
    attempt_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRolledBack(Event):
    """The ledger no longer contains a batch that this process has read from it.

    The table contains none of the lost batches. Publishing continues from the table's position.
    """

    pipeline: str
    sink: str
    missing_seq: int  # its number; another batch may have it now

    @property
    def error(self) -> str:
        """Return the error as text for people."""
        return (
            f"The ledger no longer contains batch {self.missing_seq} of {self.pipeline}: it failed over to a replica "
            f"that lacks the last commits, or was restored from a backup. The objects of the missing batches may have "
            f"to be read again: run `penstock reconcile`."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCommit(Event):
    """Another writer committed to a table. Emitted when a publish first sees the commit."""

    pipeline: str
    sink: str
    version: int
    operation: str  # in capitals, as the writer names it
    engine: str  # the writer's name for itself


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOverwritten(Event):
    """A commit of another writer replaced one of Penstock's, and the lost batches are published again."""

    pipeline: str
    sink: str
    version: int  # of the commit that was replaced
    operation: str
    engine: str
    first_seq: int  # the batches that this call published again
    last_seq: int
    files: int
    table_version: int  # which shows them

    @property
    def error(self) -> str:
        """Return the error as text for people."""
        batches = f"batches {self.first_seq} to {self.last_seq}"
        return (
            f"Version {self.version} ({self.operation} by {self.engine}) of the table {self.sink} replaced a commit of "
            f"Penstock, so {batches} had left the table; version {self.table_version} shows them again. That writer "
            f"does not commit on condition: give it a log store that does."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionUndone(Event):
    """A compaction contradicted a commit that replaced an earlier one of Penstock's."""

    pipeline: str
    sink: str
    version: int  # of the compaction
    table_version: int | None  # which undoes it; None if others have rewritten its files since

    @property
    def error(self) -> str | None:
        """Return the error as text for people; None if the compaction was undone."""
        if self.table_version is not None:
            return None
        return (
            f"Version {self.version} (a compaction) of the table {self.sink} merged files that another writer had "
            f"rewritten with a commit that replaced one of Penstock's, and its files were rewritten since: some rows "
            f"are in the table twice. Find them (SELECT _object, _offset ... GROUP BY ... HAVING count(*) > 1) and "
            f"delete one of each."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRepairStarted(Event):
    """The repair of a rolled-back ledger from its table has started."""

    pipeline: str
    common_seq: int  # the last batch that ledger and table share
    table_seq: int  # the last batch in the table


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRepairFinished(Event):
    """The ledger contains every batch of the table again."""

    pipeline: str
    batches: int  # imported from the table
    objects: int  # of the imported batches, as far as known
    renumbered: int  # batches committed since the rollback, now numbered after the imported ones
    withdrawn: int  # batches committed since the rollback that no longer count
    abandoned: int  # open attempts that were ended


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageCollected(Event):
    """Files that belong to no batch and to no table version were deleted."""

    pipeline: str
    attempts: int  # attempts that wrote such files
    compactions: int  # compactions that died before their commit
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRegistered(Event):
    """The entry of a table in a data catalog was created or updated."""

    pipeline: str
    sink: str
    entry: str  # glue:DATABASE.TABLE
    change: str  # created or updated


@dataclass(frozen=True, slots=True, kw_only=True)
class TableNotRegistered(Event):
    """A table could not be registered in a data catalog. Its rows are published; it is tried again later."""

    pipeline: str
    sink: str
    entry: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed(Event):
    """A table's checkpoint or version hint could not be written, or its old metadata could not be deleted.

    The rows are published, and each commit tries again. Emitted for the first failure of a table in a process.
    """

    pipeline: str
    sink: str
    version: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCompacted(Event):
    """Small files of a table were merged."""

    pipeline: str
    sink: str
    table_version: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
