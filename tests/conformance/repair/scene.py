"""A pipeline in its parts: objects of numbered lines, batches of them, tables, and a ledger that can be restored from a
backup.

Tables are read with deltalake or PyIceberg alone; the lines of each object are identified by its number.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from sqlalchemy import delete, insert, select
from tests.conformance.sinks.kit import iceberg_table
from tests.services.iceberg_catalogs import name_of
from ulid import ULID

from penstock.app.paths import TablePaths
from penstock.app.tables import Tables
from penstock.events import Bus, Event
from penstock.ledger import Ledger
from penstock.ledger.records import (
    BatchOutcome,
    BatchRecord,
    Candidate,
    ObjectClaims,
    ObjectResult,
    ObjectState,
    OriginalMessage,
)
from penstock.ledger.schema import metadata
from penstock.objects.reference import ObjectRef
from penstock.pipeline.batch_record import RecordedBatch, RecordedObject, save
from penstock.pipeline.maintenance.repair import Repairer, RepairFindings
from penstock.pipeline.spark.source.quarantine import QUARANTINE_SCHEMA
from penstock.sinks.manifest import DataFile, encode
from penstock.sinks.parquet import list_files
from penstock.sinks.registry import DEFAULT_SCHEME
from penstock.sinks.schema import encode as encode_schema
from penstock.storage.files import Files
from penstock.storage.local import LocalFiles

PIPELINE = "clicks"
SCHEMA = pa.schema([("object", pa.int64()), ("line", pa.int64())])
LINES = 3  # of each object
LEASE_SECONDS = 600.0

Dump = Mapping[str, Sequence[Mapping[str, Any]]]


def ref(number: int) -> ObjectRef:
    return ObjectRef(bucket="landing", key=f"object-{number}", size_bytes=100, etag=f"etag-{number}")


@dataclass(kw_only=True)
class Scene:
    folder: Path
    ledger: Ledger
    root: Files | None = None  # of the table, if it is not in the folder
    scheme: str = DEFAULT_SCHEME  # of the table's format
    is_in_catalog: bool = False  # an Iceberg table, in the catalog that the test configured
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger.ensure_pipeline(PIPELINE)

    @property
    def table_paths(self) -> TablePaths:
        table = self.root or LocalFiles(self.folder / "table")
        return TablePaths(
            table=table,
            quarantine=table.beside("table_quarantine"),
            state=self.folder / "state",
            name=PIPELINE,
            scheme=self.scheme,
        )

    @property
    def tables(self) -> Tables:
        """Return the tables as a new process opens them."""
        catalog = name_of(self.folder / "table") if self.is_in_catalog else None
        return Tables(self.table_paths, self.ledger, catalog=catalog, bus=Bus(self.events.append))

    # A worker's steps

    def claim(self, *numbers: int, worker: str = "w") -> ObjectClaims:
        candidates = [
            Candidate(
                object_id=ref(number).object_id,
                bucket=ref(number).bucket,
                key=ref(number).key_bytes,
                size_bytes=100,
                uri=ref(number).uri,
                original_message=OriginalMessage(message_id=f"m{number}", enqueued_at=0.0),
                etag=ref(number).etag,
            )
            for number in numbers
        ]
        return self.ledger.claim(
            PIPELINE, candidates, attempt_id=str(ULID()), worker=worker, lease_seconds=LEASE_SECONDS
        )

    def write(
        self, attempt_id: str, *numbers: int, bad: bool = False, empty: bool = False, recorded: bool = True,
        schema: pa.Schema = SCHEMA,
    ) -> BatchOutcome:  # fmt: skip
        """Write the files and the record of a run; return its outcome for the commit. ``bad`` adds a bad line for each
        object.
        """
        lines = [] if empty else [(number, line) for number in numbers for line in range(LINES)]
        files = self._file(self.table_paths.table, attempt_id, schema, lines)
        quarantine = self._file(self.table_paths.quarantine, attempt_id, QUARANTINE_SCHEMA, numbers if bad else ())
        row = self.ledger.ensure_pipeline(PIPELINE)
        outcome = BatchOutcome(
            pipeline=PIPELINE,
            attempt_id=attempt_id,
            processed=[
                ObjectResult(object_id=ref(number).object_id, rows=LINES, lines_quarantined=int(bad))
                for number in numbers
            ],
            record=BatchRecord(
                rows=len(lines),
                lines_quarantined=len(numbers) * bad,
                bytes=100 * len(numbers),
                manifest=encode(files),
                quarantine_manifest=encode(quarantine),
            ),
            schema_id=row.schema_id,
            new_schema=None if row.table_schema == encode_schema(schema) else encode_schema(schema),
        )
        if recorded:
            save(self.table_paths.table, self._record(outcome, numbers, schema))
        return outcome

    def batch(self, *numbers: int, **written: Any) -> str:
        """Claim, run and commit a batch; return the attempt's id."""
        claim = self.claim(*numbers)
        assert len(claim.claimed) == len(numbers), f"not all of {numbers} are free: {claim}"
        assert self.ledger.commit(self.write(claim.attempt_id, *numbers, **written)) is not None
        return claim.attempt_id

    def published(self, *numbers: int, **written: Any) -> str:
        attempt_id = self.batch(*numbers, **written)
        self.tables.publish()
        return attempt_id

    def _file(self, root: Any, attempt_id: str, schema: pa.Schema, rows: Sequence[Any]) -> Sequence[DataFile]:
        if not rows:
            return ()
        directory = f"data/{attempt_id}/r0"
        columns: Mapping[str, Sequence[Any]] = (
            {"object": [ref(number).uri for number in rows]}
            if schema is QUARANTINE_SCHEMA
            else {"object": [row[0] for row in rows], "line": [row[1] for row in rows]}
        )
        arrays = [pa.array(columns.get(one.name, [None] * len(rows)), one.type) for one in schema]
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table(arrays, schema=schema), buffer)
        root.write(f"{directory}/part-0.parquet", buffer.getvalue().to_pybytes())
        return list_files(root, directory, partition_by=(), schema=schema)

    def _record(self, outcome: BatchOutcome, numbers: Sequence[int], schema: pa.Schema) -> RecordedBatch:
        return RecordedBatch(
            pipeline=PIPELINE,
            attempt_id=outcome.attempt_id,
            objects=[
                RecordedObject(ref=ref(number), rows=one.rows, lines_quarantined=one.lines_quarantined)
                for number, one in zip(numbers, outcome.processed, strict=True)
            ],
            record=outcome.record,
            columns=encode_schema(schema),
        )

    # Backup and restore of the ledger

    def dump(self) -> Dump:
        """Return a backup of all tables of the ledger."""
        with self.ledger.database.reading() as connection:
            return {
                table.name: [dict(row._mapping) for row in connection.execute(select(table))]
                for table in metadata.sorted_tables
            }

    def restore(self, dump: Dump) -> None:
        with self.ledger.database.writing() as connection:
            for table in metadata.sorted_tables:
                connection.execute(delete(table))
                if dump[table.name]:
                    connection.execute(insert(table), list(dump[table.name]))

    # The repair

    def repairer(self, **options: Any) -> Repairer:
        tables = self.tables
        return Repairer(self.ledger, pipeline=PIPELINE, rows=tables.rows, quarantine=tables.quarantine, **options)

    def repair(self, **options: Any) -> RepairFindings:
        """Find and apply the repair, and publish as the next process would."""
        repairer = self.repairer(**options)
        findings = repairer.find()
        repairer.apply(findings, Bus(self.events.append))
        self.tables.publish()
        return findings

    # What readers see

    def shown(self) -> Sequence[int]:
        """Return the objects that the table shows; fail if a line is doubled or an object is incomplete."""
        rows = table_rows(self.table_paths.table, ["object", "line"])
        count = Counter((row["object"], row["line"]) for row in rows)
        assert set(count.values()) <= {1}, f"the table has lines twice: {count}"
        numbers = sorted({number for number, _ in count})
        assert sorted(count) == [(number, line) for number in numbers for line in range(LINES)]
        return numbers

    def quarantined(self) -> Sequence[str]:
        return sorted(row["object"] for row in table_rows(self.table_paths.quarantine, ["object"]))

    def state(self, number: int) -> ObjectState | None:
        object_id = ref(number).object_id
        return self.ledger.states(PIPELINE, [object_id]).get(object_id)

    def seqs(self) -> Mapping[int, str]:
        return {batch.seq: batch.attempt_id for batch in self.ledger.batches_after(PIPELINE, 0)}


def table_rows(root: Files, columns: list[str]) -> Sequence[Mapping[str, Any]]:
    """Read the rows file by file, as the table names them."""
    paths = [uri.split("/table/")[-1].split("/table_quarantine/")[-1] for uri in _locations(root)]
    files = [pq.ParquetFile(pa.BufferReader(root.read(path))) for path in paths]
    return [row for file in files for row in file.read(columns=columns).to_pylist()]


def _locations(root: Files) -> Sequence[str]:
    if root.is_local and "metadata/" in root.names():
        return [task.file.file_path for task in iceberg_table(Path(str(root))).scan().plan_files()]
    try:
        return DeltaTable(str(root), storage_options=dict(root.store_options())).file_uris()
    except TableNotFoundError:
        return ()
