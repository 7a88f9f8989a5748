"""The table formats that the suite tests. Add one by a class here and a line in `KITS`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable, Table
from tests.conformance.sinks.toy_sink import ToySink
from tests.services.iceberg_catalogs import client, name_of

from penstock.sinks.delta.sink import DeltaTableSink, open_dataset
from penstock.sinks.iceberg.sink import IcebergTableSink
from penstock.sinks.manifest import DataFile
from penstock.sinks.registry import CATALOG_FILE
from penstock.sinks.sink import Append, LoadedTable, Sink
from penstock.storage.local import LocalFiles

PIPELINE = "file:///lake/clicks"
FIRST, SECOND, THIRD = (f"01K0{number:022d}" for number in range(3))  # attempts
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


class Kit(Protocol):
    """One table format."""

    def sink(self, root: Path, *, pipeline: str = PIPELINE, partition_by: Sequence[str] = ()) -> Sink: ...

    def rows(self, root: Path) -> list[dict[str, Any]]:
        """Return the rows that readers of the table see, in no order."""
        ...


class DeltaKit:
    def sink(self, root: Path, *, pipeline: str = PIPELINE, partition_by: Sequence[str] = ()) -> Sink:
        return DeltaTableSink(LocalFiles(root), pipeline=pipeline, partition_by=partition_by)

    def rows(self, root: Path) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = open_dataset(LocalFiles(root)).to_table().to_pylist()
        return rows


class IcebergKit:
    def sink(self, root: Path, *, pipeline: str = PIPELINE, partition_by: Sequence[str] = ()) -> Sink:
        return IcebergTableSink(LocalFiles(root), pipeline=pipeline, partition_by=partition_by)

    def rows(self, root: Path) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = iceberg_table(root).scan().to_arrow().to_pylist()
        return rows


class CatalogKit(IcebergKit):
    """An Iceberg table in the catalog that `tests.services.iceberg_catalogs.configure` describes."""

    def sink(self, root: Path, *, pipeline: str = PIPELINE, partition_by: Sequence[str] = ()) -> Sink:
        return IcebergTableSink(LocalFiles(root), pipeline=pipeline, partition_by=partition_by, catalog=name_of(root))


class ToyKit:
    def sink(self, root: Path, *, pipeline: str = PIPELINE, partition_by: Sequence[str] = ()) -> Sink:
        return ToySink(LocalFiles(root), pipeline, partition_by)

    def rows(self, root: Path) -> list[dict[str, Any]]:
        table = ToySink(LocalFiles(root), PIPELINE, None).load()
        assert table is not None
        rows: list[dict[str, Any]] = table.dataset().to_table().to_pylist()
        return rows


KITS: dict[str, type[Kit]] = {"delta": DeltaKit, "iceberg": IcebergKit, "toy": ToyKit}


def iceberg_table(root: Path) -> Table:
    """Open an Iceberg table with PyIceberg alone: through its catalog, else by the newest metadata file."""
    if (root / CATALOG_FILE).exists():
        return client().load_table(name_of(root).parts)
    newest = max((root / "metadata").glob("v*.metadata.json"), key=lambda path: int(path.name.split(".")[0][1:]))
    return StaticTable.from_metadata(str(newest))


def write(
    root: Path,
    attempt_id: str,
    *,
    file_name: str = "part-0",
    partition: Mapping[str, str | None] | None = None,
    folder: str = "",
    **columns: list[Any],
) -> DataFile:
    """Write a Parquet file of one attempt, as a run does. ``folder`` is Spark's name for the partition's folder."""
    relative = "/".join(part for part in ("data", attempt_id, "r1", folder, f"{file_name}.parquet") if part)
    path = root / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return DataFile(
        path=relative,
        size_bytes=path.stat().st_size,
        rows=len(next(iter(columns.values()))),
        modified_at=path.stat().st_mtime,
        partition_values=partition or {},
    )


def loaded(sink: Sink) -> LoadedTable:
    table = sink.load()
    assert table is not None
    return table


def append(seq: int, attempt_id: str, *files: DataFile) -> Append:
    return Append(seq=seq, attempt_id=attempt_id, files=files)
