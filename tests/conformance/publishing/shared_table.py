"""A table of a pipeline that another writer uses too: batches, publishes as separate processes do them, and readers."""

import io
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.services.spark_writer import PendingCommit, SparkWriter, ids_of, newest_version, read_commit
from ulid import ULID

from penstock.events import Bus, Event
from penstock.ledger import Ledger
from penstock.ledger.records import BatchOutcome, BatchRecord, Candidate, ObjectResult, OriginalMessage
from penstock.ledger.table_commits import SeenCommit
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.pipeline.maintenance.compact import compact
from penstock.pipeline.overwritten import CommitWatch
from penstock.pipeline.publish import Published, publish, rows_schema
from penstock.sinks.delta.sink import DeltaTableSink, LoadedDelta, open_dataset
from penstock.sinks.manifest import DataFile, decode, encode
from penstock.sinks.schema import encode as encode_schema
from penstock.storage.files import Files
from penstock.testing import FakeClock

PIPELINE = "clicks"
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


@dataclass(kw_only=True)
class SharedTable:
    """One table. Each `publish` is one of a process that shares only ledger and table."""

    files: Files
    ledger: Ledger
    events: list[Event] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)  # rows of committed batches
    replaced: dict[int, Sequence[str]] = field(default_factory=dict)  # objects whose rows a batch replaces
    _numbers: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.ledger.ensure_pipeline(PIPELINE)

    @property
    def spark(self) -> SparkWriter:
        """A driver of another writer."""
        return SparkWriter(files=self.files)

    @property
    def sink(self) -> DeltaTableSink:
        return DeltaTableSink(self.files, pipeline=PIPELINE)

    @property
    def loaded(self) -> LoadedDelta:
        table = self.sink.load()
        assert table is not None
        return table

    @property
    def watch(self) -> CommitWatch:
        sink = self.sink
        return CommitWatch(
            self.ledger, sink, sink.commit_log, pipeline=PIPELINE, manifest_of=lambda batch: batch.record.manifest
        )

    @property
    def seen(self) -> Sequence[SeenCommit]:
        return self.ledger.table_commits.seen(PIPELINE, self.files.uri)

    def batch(self, *ids: int, schema: pa.Schema = SCHEMA, object_name: str | None = None) -> int:
        """Commit a batch of these rows to the ledger; return its number. Without rows it has no file."""
        attempt_id, number = str(ULID()), next(self._numbers)
        object_id = number.to_bytes(16, "big")
        candidate = Candidate(
            object_id=object_id,
            bucket="landing",
            key=f"{number}".encode(),
            size_bytes=1,
            uri=f"s3://landing/{number}",
            original_message=OriginalMessage(message_id="m", enqueued_at=0.0),
        )
        self.ledger.claim(PIPELINE, [candidate], attempt_id=attempt_id, worker="w", lease_seconds=600.0)
        row = self.ledger.ensure_pipeline(PIPELINE)
        text = encode_schema(schema)
        committed = self.ledger.commit(
            BatchOutcome(
                pipeline=PIPELINE,
                attempt_id=attempt_id,
                processed=[ObjectResult(object_id=object_id, rows=len(ids), lines_quarantined=0)],
                record=BatchRecord(
                    rows=len(ids),
                    lines_quarantined=0,
                    manifest=encode([self._write(attempt_id, ids, schema, object_name)] if ids else []),
                    quarantine_manifest="",
                ),
                schema_id=row.schema_id,
                new_schema=None if row.table_schema == text else text,
            )
        )
        assert committed is not None
        self.expected += ids
        return committed.seq

    def publish(self, *, probe: Probe = no_probe, watched: bool = True) -> Published:
        return publish(
            self.ledger,
            self.sink,
            pipeline=PIPELINE,
            manifest_of=lambda batch: batch.record.manifest,
            schema_of=lambda batch: rows_schema(batch, partition_by=()),
            bus=Bus(self.events.append),
            probe=probe,
            step=Step.ROWS_PUBLISHED,
            clock=FakeClock(auto_advance=True),
            watch=self.watch if watched else None,
            replaces=lambda batch: self.replaced.get(batch.seq, ()),
        )

    def published(self, *ids: int, schema: pa.Schema = SCHEMA) -> int:
        """Commit a batch, publish it, and return the table's version."""
        self.batch(*ids, schema=schema)
        version = self.publish().table_version
        assert version is not None
        return version

    def foreign_append(self, id: int) -> PendingCommit:
        """Return the commit by which another writer appends one row, not made yet."""
        return self.spark.append({"id": [id], "word": ["x"]})

    def compact(self) -> None:
        compact(self.sink, clock=FakeClock(auto_advance=True))

    def checkpoint(self, version: int) -> None:
        """Write a checkpoint of a version, as any writer does after some of its commits."""
        from deltalake import DeltaTable

        table = DeltaTable(str(self.files), storage_options=dict(self.files.store_options()))
        table.load_as_version(version)
        table.create_checkpoint()

    def clean_up_log(self, *, before: int) -> None:
        """Delete the commits before a version that has a checkpoint, as any writer does after the log's retention."""
        self.files.delete(f"_delta_log/{version:020}.json" for version in range(before))

    def file_of(self, seq: int) -> str:
        row = self.ledger.batch(PIPELINE, seq)
        assert row is not None
        return decode(row.record.manifest)[0].path

    @property
    def newest(self) -> int:
        return newest_version(self.files)

    def ids(self) -> list[int]:
        """Return the ids of all rows as deltalake reads them."""
        return sorted(open_dataset(self.files).to_table(columns=["id"])["id"].to_pylist())

    def ids_of_log(self) -> list[int]:
        """Return the ids of all rows from the log's JSON files alone."""
        return ids_of(self.files)

    def assert_complete(self, *others: int) -> None:
        """Assert that both readers see each row of the batches once, and these rows of other writers."""
        rows = sorted([*self.expected, *others])
        assert self.ids() == rows
        assert self.ids_of_log() == rows

    def actions(self, version: int) -> list[Any]:
        return read_commit(self.files, version)

    def _write(
        self, attempt_id: str, ids: Sequence[int], schema: pa.Schema, object_name: str | None = None
    ) -> DataFile:
        columns = [
            pa.array(ids if f.name == "id" else [object_name if f.name == "_object" else None] * len(ids), f.type)
            for f in schema
        ]
        path, data = f"data/{attempt_id}/r0/part-0.parquet", io.BytesIO()
        pq.write_table(pa.table(columns, schema=schema), data)
        self.files.write(path, data.getvalue())
        info = self.files.stat(path)
        assert info is not None
        return DataFile(path=path, size_bytes=info.size_bytes, rows=len(ids), modified_at=info.modified_at)


def choose(chance: random.Random, **weights: int) -> str:
    return chance.choices(list(weights), list(weights.values()))[0]
