"""Helpers of the tests of sinks, publishing and garbage collection: a ledger, a table's folder, and batches made in one
line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from tests.conformance.sinks.kit import iceberg_table
from ulid import ULID

from penstock.ledger import Ledger
from penstock.ledger.records import BatchOutcome, BatchRecord, Candidate, ObjectResult, OriginalMessage
from penstock.sinks.catalogs.name import CatalogName
from penstock.sinks.manifest import DataFile, encode
from penstock.sinks.parquet import list_files
from penstock.sinks.registry import DEFAULT_SCHEME, open_sink
from penstock.sinks.schema import encode as encode_schema
from penstock.sinks.sink import TableSink
from penstock.storage.local import LocalFiles

PIPELINE = "file:///lake/clicks"
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
LEASE_SECONDS = 600.0
OVER = -1.0  # a lease that has expired when it is granted


def shown_files(root: Path) -> list[Path]:
    """Return the data files of a table, as a library of its format names them."""
    if (root / "_delta_log").exists():
        return [Path(unquote(uri)) for uri in DeltaTable(str(root)).file_uris()]
    return [Path(task.file.file_path) for task in iceberg_table(root).scan().plan_files()]


def shown_ids(root: Path) -> list[int]:
    """Return the ids in a table, read file by file."""
    return sorted(row for path in shown_files(root) for row in pq.read_table(path)["id"].to_pylist())


def has_table(root: Path) -> bool:
    return (root / "_delta_log").exists() or (root / "metadata").exists()


@dataclass(kw_only=True)
class BatchMaker:
    """Makes attempts and batches of rows; each row is identified by its id."""

    root: Path
    ledger: Ledger
    pipeline: str = PIPELINE
    scheme: str = DEFAULT_SCHEME  # of the table's format
    catalog: CatalogName | None = None  # of an Iceberg table
    _numbers: Iterator[int] = field(default_factory=count)
    _held: dict[str, bytes] = field(default_factory=dict)  # the one object of each attempt

    def __post_init__(self) -> None:
        self.ledger.ensure_pipeline(self.pipeline)

    def sink(self, *, partition_by: Sequence[str] | None = ()) -> TableSink:
        """Return the table's sink, as a new process opens it."""
        return open_sink(
            LocalFiles(self.root),
            scheme=self.scheme,
            pipeline=self.pipeline,
            partition_by=partition_by,
            catalog=self.catalog,
        )

    def claim(self, *, lease_seconds: float = LEASE_SECONDS) -> str:
        """Open an attempt on one object."""
        attempt_id, number = str(ULID()), next(self._numbers)
        candidate = Candidate(
            object_id=number.to_bytes(16, "big"),
            bucket="landing",
            key=f"{number}".encode(),
            size_bytes=1,
            uri=f"s3://landing/{number}",
            original_message=OriginalMessage(message_id="m", enqueued_at=0.0),
        )
        claim = self.ledger.claim(
            self.pipeline, [candidate], attempt_id=attempt_id, worker="w", lease_seconds=lease_seconds
        )
        assert claim.claimed
        self._held[attempt_id] = candidate.object_id
        return attempt_id

    def held(self, attempt_id: str) -> bytes:
        """Return the id of the object that an attempt holds."""
        return self._held[attempt_id]

    def write(
        self,
        attempt_id: str,
        ids: Sequence[int],
        *,
        run: int = 0,
        schema: pa.Schema = SCHEMA,
        root: Path | None = None,
        name: str = "part-0",
    ) -> tuple[DataFile, ...]:
        """Write one file with a row for each id; its other columns are null."""
        root = root or self.root
        directory = f"data/{attempt_id}/r{run}"
        (root / directory).mkdir(parents=True, exist_ok=True)
        columns = [pa.array(ids, f.type) if f.name == "id" else pa.nulls(len(ids), f.type) for f in schema]
        pq.write_table(pa.table(columns, schema=schema), root / directory / f"{name}.parquet")
        return list_files(LocalFiles(root), directory, partition_by=(), schema=schema)

    def commit(
        self,
        attempt_id: str,
        files: Sequence[DataFile] = (),
        *,
        quarantine: Sequence[DataFile] = (),
        schema: pa.Schema = SCHEMA,
    ) -> int:
        """Commit the files that the attempt wrote; return the batch's sequence number."""
        row = self.ledger.ensure_pipeline(self.pipeline)
        text = encode_schema(schema)
        committed = self.ledger.commit(
            BatchOutcome(
                pipeline=self.pipeline,
                attempt_id=attempt_id,
                processed=[ObjectResult(object_id=self._held[attempt_id], rows=1, lines_quarantined=0)],
                record=BatchRecord(
                    rows=sum(file.rows for file in files),
                    lines_quarantined=sum(file.rows for file in quarantine),
                    manifest=encode(files),
                    quarantine_manifest=encode(quarantine),
                ),
                schema_id=row.schema_id,
                new_schema=None if row.table_schema == text else text,
            )
        )
        assert committed is not None
        return committed.seq

    def batch(self, ids: Sequence[int], *, schema: pa.Schema = SCHEMA) -> int:
        """Commit a batch of these rows; without rows it has no file."""
        attempt_id = self.claim()
        files = self.write(attempt_id, ids, schema=schema) if ids else ()
        return self.commit(attempt_id, files, schema=schema)
