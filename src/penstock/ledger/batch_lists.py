"""Lists of batches for people, without their manifests: those of a big batch have megabytes."""

import json
from collections.abc import Mapping, Sequence
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
    attempt_id: str
    worker: str
    claimed_at: float
    committed_at: float
    objects: int
    rows: int
    lines_quarantined: int
    bytes: int
    stage_seconds: Mapping[str, float]
    spark_ui_url: str | None
    transform: str | None
    replaced_objects: int
    replaced_rows: int
    grown_objects: int
    appended_rows: int
    retracted_objects: int  # of a batch without objects of its own: those whose rows leave the table
    is_merged: bool  # its rows are merged by key


_NEWEST = (
    select(
        batches.c.pipeline,
        batches.c.seq,
        batches.c.attempt_id,
        attempts.c.worker,
        attempts.c.started_at,
        batches.c.committed_at,
        batches.c.objects,
        batches.c.rows,
        batches.c.lines_quarantined,
        batches.c.bytes,
        batches.c.stage_seconds,
        batches.c.spark_ui_url,
        batches.c.transform,
        batches.c.replaced_objects,
        batches.c.replaced_rows,
        batches.c.grown_objects,
        batches.c.appended_rows,
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
        attempt_id=row.attempt_id,
        worker=row.worker,
        claimed_at=row.started_at,
        committed_at=row.committed_at,
        objects=row.objects,
        rows=row.rows,
        lines_quarantined=row.lines_quarantined,
        bytes=row.bytes,
        stage_seconds=json.loads(row.stage_seconds),
        spark_ui_url=row.spark_ui_url,
        transform=row.transform,
        replaced_objects=int(row.replaced_objects or 0),
        replaced_rows=int(row.replaced_rows or 0),
        grown_objects=int(row.grown_objects or 0),
        appended_rows=int(row.appended_rows or 0),
        retracted_objects=len(replaced_objects(row.retracts or "")),
        is_merged=bool(row.is_merged),
    )
