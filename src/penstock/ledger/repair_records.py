"""What a repair of the ledger brings: see `penstock.ledger.repairs`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.ledger.records import Candidate


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
