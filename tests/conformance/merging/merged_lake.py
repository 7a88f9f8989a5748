"""A table whose rows are merged by key: batches of Arrow tables, committed and published without Spark."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tests.conformance.publishing.batch_maker import PIPELINE, BatchMaker, shown_files

from penstock.events import Bus
from penstock.ledger.records import BatchOutcome, BatchRecord, ObjectResult
from penstock.messaging.steps import Step, no_probe
from penstock.pipeline.batch_record import TOMBSTONES_FOLDER
from penstock.pipeline.maintenance.compact import compact
from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.merging.tombstones import fold_deletes
from penstock.pipeline.publish import Published, publish, rows_schema
from penstock.sinks.manifest import DataFile, encode
from penstock.sinks.parquet import list_files
from penstock.sinks.schema import encode as encode_schema
from penstock.testing import FakeClock

ROW_GROUP_ROWS = 8_192


@dataclass(kw_only=True)
class MergedLake:
    """A table of one format. A batch is given as the rows that a run left of its objects, and its deletes."""

    maker: BatchMaker
    merge: Merge
    schema: pa.Schema

    def batch(self, rows: pa.Table, deletes: pa.Table, *, files: int = 1) -> int:
        """Commit a batch; its rows are written into this many files."""
        attempt_id = self.maker.claim()
        written = self._written(f"data/{attempt_id}/r0", [rows.slice(*span) for span in _spans(len(rows), files)])
        gone = self._written(f"{TOMBSTONES_FOLDER}/{attempt_id}", [deletes.select(list(self.merge.compared))])
        row = self.maker.ledger.ensure_pipeline(PIPELINE)
        text = encode_schema(self.schema)
        committed = self.maker.ledger.commit(
            BatchOutcome(
                pipeline=PIPELINE,
                attempt_id=attempt_id,
                processed=[ObjectResult(object_id=self.maker.held(attempt_id), rows=len(rows), lines_quarantined=0)],
                record=BatchRecord(
                    rows=len(rows),
                    lines_quarantined=0,
                    manifest=encode(written),
                    quarantine_manifest=encode(()),
                    merge=self.merge.text(),
                    tombstones=encode(gone) if gone else "",
                ),
                schema_id=row.schema_id,
                new_schema=None if row.table_schema == text else text,
            )
        )
        assert committed is not None
        return committed.seq

    def publish(self) -> Published:
        return publish(
            self.maker.ledger,
            self.maker.sink(),
            pipeline=PIPELINE,
            manifest_of=lambda batch: batch.record.manifest,
            schema_of=lambda batch: rows_schema(batch, partition_by=()),
            merges=True,
            bus=Bus(),
            probe=no_probe,
            step=Step.ROWS_PUBLISHED,
            clock=FakeClock(auto_advance=True),
        )

    def compact(self) -> None:
        compact(self.maker.sink(), clock=FakeClock(auto_advance=True))

    def fold_deletes(self) -> int:
        return fold_deletes(self.maker.ledger, self.maker.sink().root, pipeline=PIPELINE, now=0.0, files_min=2)

    def files(self) -> Sequence[str]:
        """Return the data files that the table shows."""
        return [str(path) for path in shown_files(self.maker.root)]

    def _written(self, folder: str, tables: Sequence[pa.Table]) -> Sequence[DataFile]:
        directory = Path(self.maker.root, folder)
        directory.mkdir(parents=True)
        for number, table in enumerate(tables):
            if len(table):
                pq.write_table(table, directory / f"part-{number}.parquet", row_group_size=ROW_GROUP_ROWS)
        schema = tables[0].schema
        return list_files(self.maker.sink().root, folder, partition_by=(), schema=schema)


def _spans(rows: int, parts: int) -> Sequence[tuple[int, int]]:
    size = -(-rows // parts)
    return [(start, size) for start in range(0, rows, size)] or [(0, 0)]
