"""Events of batches, of the attempts on them, and of their tables."""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPublished(Event):
    """Every batch up to ``seq`` is visible in the table."""

    pipeline: str
    sink: str
    seq: int
    table_version: int
    seconds: float  # duration of this commit to the table, including its checks and the wait for other writers


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
class TableCompacted(Event):
    """Small files of a table were merged."""

    pipeline: str
    sink: str
    table_version: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
