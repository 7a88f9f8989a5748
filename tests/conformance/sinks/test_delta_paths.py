"""Paths in Delta's log: other writers find a file to remove by the spelling of its path."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.conformance.sinks.kit import FIRST, DeltaKit

from penstock.sinks.manifest import DataFile
from penstock.sinks.sink import Append, Sink

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string())])
PLACES = {"": "part=a", "in a run's folder": "data/01K0/r1/part=a", "with other characters": "part=a b+c~!&(),;:@$"}


@pytest.fixture(params=[*PLACES.values()], ids=[*PLACES])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = tmp_path / "t"
    sink = DeltaKit().sink(root, partition_by=["part"])
    sink.ensure_schema(SCHEMA)
    for seq, ids in enumerate([[1, 2], [3, 4]], start=1):
        _append(sink, root, f"{request.param}/{seq}.parquet", seq=seq, ids=ids)
    return root


def test_deltalake_deletes_rows_of_a_partition(table: Path) -> None:
    DeltaTable(table).delete("id = 1")
    assert _ids(table) == [2, 3, 4]


def test_deltalake_deletes_all_rows(table: Path) -> None:
    DeltaTable(table).delete()
    assert _ids(table) == []


def test_deltalake_replaces_a_table(table: Path) -> None:
    write_deltalake(table, pa.table({"id": [9], "part": ["z"]}), mode="overwrite")
    assert _ids(table) == [9]


@pytest.mark.parametrize("table", ["part=a", "data/01K0/r1/part=a"], indirect=True)  # deltalake 1.6 finds no others
def test_deltalake_merges_the_files_of_a_partition(table: Path) -> None:
    DeltaTable(table).optimize.compact()
    assert _ids(table) == [1, 2, 3, 4]
    assert len(DeltaTable(table).file_uris()) == 1


def _append(sink: Sink, root: Path, path: str, *, seq: int, ids: list[int]) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": ids}), root / path)
    file = DataFile(
        path=path,
        size_bytes=(root / path).stat().st_size,
        rows=len(ids),
        modified_at=1.0,
        partition_values={"part": "a"},
        statistics={},
    )
    loaded = sink.load()
    assert loaded is not None
    loaded.append(Append(seq=seq, attempt_id=FIRST, files=[file]))


def _ids(root: Path) -> list[int]:
    found: list[int] = DeltaTable(root).to_pyarrow_table()["id"].to_pylist()
    return sorted(found)
