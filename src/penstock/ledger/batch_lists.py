"""Lists of batches for people, without their manifests: those of a big batch have megabytes."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, case, select

from penstock.ledger.database import Database
from penstock.ledger.records import replaced_objects
from penstock.ledger.rows import AnyRow
from penstock.ledger.schema import attempts, batches


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSummary:
    """A committed batch without its files. Counts as in `BatchRecord` and `Committed`; times in epoch seconds."""

    pipeline: str
    seq: int
    worker: str
    claimed_at: float
    committed_at: float
    objects: int
    rows: int
    lines_quarantined: int
    bytes: int
    spark_ui_url: str | None
    replaced_rows: int
    retracted_objects: int  # of a batch without objects of its own: those whose rows leave the table
    is_merged: bool  # its rows are merged by key


_NEWEST = (
    select(
        batches.c.pipeline,
        batches.c.seq,
        attempts.c.worker,
        attempts.c.started_at,
        batches.c.committed_at,
        batches.c.objects,
        batches.c.rows,
        batches.c.lines_quarantined,
        batches.c.bytes,
        batches.c.spark_ui_url,
        batches.c.replaced_rows,
        case((batches.c.objects == 0, batches.c.replaces)).label("retracts"),  # others may be long
        batches.c.merge.is_not(None).label("is_merged"),
    )
    .join_from(batches, attempts, attempts.c.id == batches.c.attempt_id)
    .where(batches.c.pipeline == bindparam("in_pipeline"), batches.c.seq < bindparam("before_seq"))
    .order_by(batches.c.seq.desc())
    .limit(bindparam("rows_max"))
)
_NO_SEQ = 1 << 62  # larger than any


class BatchLists:
    """Queries for lists of batches. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def newest(self, pipeline: str, *, limit: int, before_seq: int | None = None) -> Sequence[BatchSummary]:
        """Return the newest batches of a pipeline, the newest first; with ``before_seq``, those before that one."""
        binds = {
            "in_pipeline": pipeline,
            "before_seq": _NO_SEQ if before_seq is None else min(before_seq, _NO_SEQ),
            "rows_max": limit,
        }
        with self._database.reading() as connection:
            return [_summary(row) for row in connection.execute(_NEWEST, binds)]


def _summary(row: AnyRow) -> BatchSummary:
    return BatchSummary(
        pipeline=row.pipeline,
        seq=row.seq,
        worker=row.worker,
        claimed_at=row.started_at,
        committed_at=row.committed_at,
        objects=row.objects,
        rows=row.rows,
        lines_quarantined=row.lines_quarantined,
        bytes=row.bytes,
        spark_ui_url=row.spark_ui_url,
        replaced_rows=int(row.replaced_rows or 0),
        retracted_objects=len(replaced_objects(row.retracts or "")),
        is_merged=bool(row.is_merged),
    )
