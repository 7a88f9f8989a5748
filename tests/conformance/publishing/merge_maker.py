"""Helpers of the tests of merges: batches of changes, made without Spark, and what the table must have after them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.conformance.publishing.batch_maker import BatchMaker

from penstock.events import Bus, Event
from penstock.ledger.records import BatchOutcome, BatchRecord, BatchRow, ObjectResult
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.pipeline.batch_record import TOMBSTONES_FOLDER
from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.merging.rows import RowFile, RowReader
from penstock.pipeline.merging.tombstones import write_deletes
from penstock.pipeline.overwritten import CommitWatch
from penstock.pipeline.publish import Published, publish, rows_schema
from penstock.sinks.manifest import DataFile, encode
from penstock.sinks.parquet import list_files
from penstock.sinks.schema import encode as encode_schema
from penstock.storage.local import LocalFiles

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.int64()),
        ("part", pa.string()),
        ("value", pa.float64()),
        ("_object", pa.string()),
        ("_offset", pa.int64()),
    ]
)
MERGE = Merge(key=["id"], order_by="at", delete_when="op = 'D'", drop=["op"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row of the source, or a delete."""

    id: int
    at: int | None
    part: str | None = "p"
    value: float | None = 0.0
    is_delete: bool = False
    object: str = "o"
    offset: int = 0

    @property
    def row(self) -> tuple[Any, ...]:
        return (self.id, self.at, self.part, self.value, self.object, self.offset)


def folded(changes: Iterable[Change]) -> list[tuple[Any, ...]]:
    """Return the rows of a table to which all of these changes were applied, by a plain fold."""
    last: dict[int, Change] = {}
    for change in changes:
        known = last.get(change.id)
        if known is None or _rank(known) < _rank(change):
            last[change.id] = change
    return sorted(change.row for change in last.values() if not change.is_delete)


def _rank(change: Change) -> tuple[Any, ...]:
    """Return what orders the changes of one key, spelled out for the columns of the tests."""
    content = () if change.is_delete else (change.part, change.value, change.object, change.offset)
    return (_nulls_first(change.at), change.is_delete, *map(_nulls_first, content))


def _nulls_first(value: Any) -> tuple[bool, Any]:
    return (value is not None, value if value is not None else 0)


@dataclass(kw_only=True)
class MergeMaker(BatchMaker):
    """Commits batches of changes and publishes them."""

    partition_by: Sequence[str] = ()
    merge: Merge = MERGE

    def changes(self, changes: Sequence[Change], *, row_group: int = 2) -> int:
        """Commit a batch of these changes, which are not folded by key before; return its number."""
        attempt_id = self.claim()
        upserts = [change for change in changes if not change.is_delete]
        files = self.write_rows(f"data/{attempt_id}/r0", upserts, row_group=row_group)
        deletes = self._write_deletes(attempt_id, [change for change in changes if change.is_delete])
        return self.commit_merged(attempt_id, files, deletes)

    def commit_merged(self, attempt_id: str, files: Sequence[DataFile], deletes: Sequence[DataFile]) -> int:
        row = self.ledger.ensure_pipeline(self.pipeline)
        text = encode_schema(SCHEMA)
        committed = self.ledger.commit(
            BatchOutcome(
                pipeline=self.pipeline,
                attempt_id=attempt_id,
                processed=[ObjectResult(object_id=self._held[attempt_id], rows=1, lines_quarantined=0)],
                record=BatchRecord(
                    rows=sum(file.rows for file in files),
                    manifest=encode(files),
                    merge=self.merge.text(),
                    tombstones=encode(deletes) if deletes else "",
                ),
                schema_id=row.schema_id,
                new_schema=None if row.table_schema == text else text,
            )
        )
        assert committed is not None
        return committed.seq

    def write_rows(self, folder: str, changes: Sequence[Change], *, row_group: int) -> Sequence[DataFile]:
        by_part = sorted(changes, key=lambda change: change.part or "") if self.partition_by else list(changes)
        groups = groupby(by_part, key=lambda change: change.part) if self.partition_by else [("", by_part)]
        for part, some in groups:
            rows = list(some)
            below = self.root / folder / (f"part={part}" if self.partition_by else "")
            stored = [field for field in SCHEMA if field.name not in self.partition_by]
            if rows:
                below.mkdir(parents=True, exist_ok=True)
                table = pa.Table.from_pylist([_stored(change) for change in rows], schema=pa.schema(stored))
                pq.write_table(table, below / "part-0.parquet", row_group_size=row_group)
        return list_files(LocalFiles(self.root), folder, partition_by=self.partition_by, schema=SCHEMA)

    def _write_deletes(self, attempt_id: str, changes: Sequence[Change]) -> Sequence[DataFile]:
        if not changes:
            return ()
        source = self.root / "data" / attempt_id / "deletes.parquet"
        source.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([_stored(change) for change in changes], schema=SCHEMA), source)
        root = LocalFiles(self.root)
        file = RowFile(path=f"data/{attempt_id}/deletes.parquet", rows=len(changes))
        reader = RowReader(root=root, schema=SCHEMA)
        return write_deletes(root, f"{TOMBSTONES_FOLDER}/{attempt_id}/r0", reader, [file], self.merge)

    def publish(
        self,
        *,
        probe: Probe = no_probe,
        note: Callable[[Event], None] = lambda _: None,
        watched: bool = False,
        after: Published | None = None,
    ) -> Published:
        """Publish as a new process does."""
        sink = self.sink(partition_by=self.partition_by)
        watch = None
        if watched and sink.commit_log is not None:
            watch = CommitWatch(self.ledger, sink, sink.commit_log, pipeline=self.pipeline, manifest_of=lambda _: "")
        return publish(
            self.ledger,
            sink,
            pipeline=self.pipeline,
            manifest_of=lambda batch: batch.record.manifest,
            schema_of=self._schema_of,
            bus=Bus(note),
            probe=probe,
            step=Step.ROWS_PUBLISHED,
            watch=watch,
            merges=True,
            after=after,
        )

    def _schema_of(self, batch: BatchRow) -> pa.Schema:
        return rows_schema(batch, partition_by=self.partition_by)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of the table, sorted."""
        table = self.sink(partition_by=None).load()
        if table is None:
            return []
        found = table.dataset().to_table().select(SCHEMA.names).to_pylist()
        return sorted(tuple(row.values()) for row in found)


def _stored(change: Change) -> dict[str, Any]:
    values = asdict(change)
    del values["is_delete"]
    return {{"object": "_object", "offset": "_offset"}.get(name, name): value for name, value in values.items()}


def numbered(objects: Sequence[Sequence[Change]]) -> list[list[Change]]:
    """Return the changes of each object with its name and their place in it."""
    return [
        [replace(change, object=f"o{number}", offset=offset) for offset, change in enumerate(changes)]
        for number, changes in enumerate(objects)
    ]


def leftovers(root: Path) -> list[str]:
    """Return the paths of all Parquet files below the root of a table."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.parquet"))
