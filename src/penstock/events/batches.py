"""What happens to batches, to the attempts on them, and to their tables."""

from dataclasses import dataclass

from penstock.events.bus import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkStarted(Event):
    """A Spark session of our own is there."""

    java: str
    notes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchClaimed(Event):
    """The ledger gave us an attempt on these objects."""

    pipeline: str
    attempt_id: str
    objects: int
    bytes: int  # of these objects, as stored
    seconds: float  # that the claim took


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWritten(Event):
    """The run of a batch has written its files; they count for nothing until the commit."""

    pipeline: str
    attempt_id: str
    rows: int
    lines_quarantined: int
    seconds: float  # that the run took, with all its repetitions


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgressed(Event):
    """Spark finished some of a run's tasks."""

    pipeline: str
    attempt_id: str
    tasks_done: int
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommitted(Event):
    """The ledger recorded the batch: from here on it counts."""

    pipeline: str
    attempt_id: str
    seq: int
    objects: int
    rows: int
    lines_quarantined: int
    bytes: int  # of the objects that were processed, as stored; the ledger keeps the same of the batch
    seconds: float  # that the ledger took to commit


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPublished(Event):
    """Every batch up to ``seq`` is visible in the table."""

    pipeline: str
    sink: str
    seq: int
    table_version: int
    seconds: float  # that this commit to the table took, with the looks before it and what it waited for others


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(Event):
    """A run failed and no object could be named as the cause."""

    pipeline: str
    attempt_id: str
    objects: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultsRepeated(Event):
    """The machinery failed again and again for a pipeline or an object handler, with no success between. Nobody is
    charged, and every object is tried again."""

    pipeline: str
    count: int  # of faults in a row
    error: str  # the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAbandoned(Event):
    """An attempt was given up durably: given back, expired, or its worker died."""

    pipeline: str
    attempt_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRolledBack(Event):
    """The ledger does not have a batch any more that this process read from it.

    The table shows none of the lost batches. Publishing goes on from the table's position.
    """

    pipeline: str
    sink: str
    lost_seq: int  # the number; it may be that of another batch now

    @property
    def error(self) -> str:
        """A sentence for people."""
        return (
            f"The ledger does not have batch {self.lost_seq} of {self.pipeline} any more that it had before: it failed "
            f"over to a replica that lacks its last commits, or was restored. The objects of the lost batches may have "
            f"to be read again: run `penstock reconcile`."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRepairBegan(Event):
    """A ledger that was rolled back is about to be brought up to its table."""

    pipeline: str
    agrees_at: int  # the last batch that both have
    shown_at: int  # the last batch that the table shows


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRepairEnded(Event):
    """The ledger has what the table shows."""

    pipeline: str
    batches: int  # imported from the table
    objects: int  # of these batches, as far as they are known
    moved: int  # batches committed since the rollback, which follow behind the imported ones
    withdrawn: int  # batches committed since the rollback that count no more
    abandoned: int  # attempts that were open


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageCollected(Event):
    """Files that no batch and no version of a table names were deleted."""

    pipeline: str
    attempts: int  # whose files they were
    compactions: int  # that died before their commit
    files: int
    bytes: int


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
