"""The first rows of a table, as `penstock table show` prints them, in every format."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.conformance.sinks.kit import FIRST, PIPELINE, SCHEMA, SECOND, THIRD, Kit, append, loaded, write
from tests.services.aws_server import AwsServer

from penstock.errors import TableError
from penstock.sinks.parquet import list_files
from penstock.sinks.registry import open_sink
from penstock.sinks.rows import UNREADABLE, first_rows
from penstock.storage.address import S3Address
from penstock.storage.local import LocalFiles
from penstock.storage.s3_files import S3Files

EVERYTHING = 100


def read(table: Any, *columns: str, limit: int = EVERYTHING) -> list[tuple[Any, ...]]:
    names = columns or tuple(table.schema.names)
    return [tuple(row) for row in first_rows(table, columns=names, limit=limit)]


def test_no_more_files_are_read_than_the_rows_need(kit: Kit, root: Path) -> None:
    sink = kit.sink(root)
    sink.ensure_schema(SCHEMA)
    assert read(loaded(sink)) == []
    for seq, attempt in enumerate((FIRST, SECOND, THIRD), start=1):
        loaded(sink).append(append(seq, attempt, write(root, attempt, id=[seq, seq + 10], name=["a", None])))
    everything = read(loaded(sink))
    assert sorted(everything) == sorted(read(loaded(sink), limit=6))
    assert {row[0] for row in everything} == {1, 11, 2, 12, 3, 13}
    needed = read(loaded(sink), "id", limit=2)[0][0]
    assert read(loaded(sink), "name", "id", limit=1) == [("a", needed)]
    for seq, attempt in enumerate((FIRST, SECOND, THIRD), start=1):
        if seq != needed:
            (root / f"data/{attempt}/r1/part-0.parquet").unlink()
    assert read(loaded(sink), limit=2) == [(needed, "a"), (needed + 10, None)]
    with pytest.raises(TableError, match=r"does not exist.*run the command again"):
        read(loaded(sink), limit=3)


def test_a_file_has_nulls_in_columns_that_were_added_later_and_the_value_of_its_partition(kit: Kit, root: Path) -> None:
    sink = kit.sink(root, partition_by=["name"])
    sink.ensure_schema(SCHEMA)
    named = write(root, FIRST, id=[1, 2], partition={"name": "x y"}, folder="name=x y")
    nameless = write(root, SECOND, id=[3], partition={"name": None}, folder="name=__HIVE_DEFAULT_PARTITION__")
    loaded(sink).append(append(1, FIRST, named))
    loaded(sink).append(append(2, SECOND, nameless))
    sink.ensure_schema(pa.schema([*SCHEMA, ("more", pa.float64())]))
    loaded(sink).append(append(3, THIRD, write(root, THIRD, id=[4], more=[1.5], partition={"name": "z"}, folder="n=z")))
    assert sorted(read(loaded(sink), "id", "name", "more")) == [
        (1, "x y", None),
        (2, "x y", None),
        (3, None, None),
        (4, "z", 1.5),
    ]
    assert sorted(read(loaded(sink), "name"), key=str) == sorted([("x y",), ("x y",), (None,), ("z",)], key=str)


def test_a_file_that_is_no_parquet_is_an_error_of_the_table(kit: Kit, root: Path) -> None:
    sink = kit.sink(root)
    sink.ensure_schema(SCHEMA)
    loaded(sink).append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))
    (root / f"data/{FIRST}/r1/part-0.parquet").write_bytes(b"no Parquet")
    with pytest.raises(TableError, match=r"The rows of the table .* cannot be read"):
        read(loaded(sink))


@dataclass(frozen=True)
class OneFile:
    """A snapshot with the rows of one file, whatever their types."""

    path: Path
    schema: pa.Schema

    @property
    def root(self) -> LocalFiles:
        return LocalFiles(self.path.parent)

    def dataset(self) -> Any:
        return ds.dataset(self.path, schema=self.schema)


def test_values_that_python_cannot_hold_are_texts(tmp_path: Path) -> None:
    bytes_ = pa.array([b"\xff\x00"])
    columns = {
        "after 9999": pa.array([253_402_300_800_000_000], pa.timestamp("us", tz="UTC")),
        "nanoseconds": pa.array([1], pa.timestamp("ns")),
        "no UTF-8": pa.Array.from_buffers(pa.string(), 1, bytes_.buffers()),
        "in a list": pa.array([[253_402_300_800_000_000]], pa.list_(pa.timestamp("us"))),
        "map": pa.array([[("a", [("b", 1)])]], pa.map_(pa.string(), pa.map_(pa.string(), pa.int64()))),
        "struct": pa.array([{"in": [{"x": None}]}]),
        "a.b": pa.array([datetime(2026, 1, 2, tzinfo=UTC)], pa.timestamp("us", tz="UTC")),
    }
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "rows.parquet")
    assert read(OneFile(tmp_path / "rows.parquet", table.schema)) == [
        (
            "10000-01-01 00:00:00.000000Z",
            "1970-01-01 00:00:00.000000001",
            b"\xff\x00",
            UNREADABLE,
            {"a": {"b": 1}},
            {"in": [{"x": None}]},
            datetime(2026, 1, 2, tzinfo=UTC),
        )
    ]


def test_a_file_with_narrower_types_has_those_of_the_table(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), tmp_path / "rows.parquet")
    assert read(OneFile(tmp_path / "rows.parquet", pa.schema([("id", pa.float64())]))) == [(1.0,)]


@pytest.mark.parametrize("scheme", ["delta", "iceberg"])
def test_a_table_in_s3_is_read(moto: AwsServer, scheme: str) -> None:
    moto.client("s3").create_bucket(Bucket="lake")
    files = S3Files(S3Address(bucket="lake", prefix="a b/clicks"), moto.aws)
    sink = open_sink(files, scheme=scheme, pipeline=PIPELINE)
    sink.ensure_schema(SCHEMA)
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [1, 2], "name": ["x", None]}), buffer)
    files.write(f"data/{FIRST}/r1/part-0.parquet", buffer.getvalue().to_pybytes())
    loaded(sink).append(append(1, FIRST, *list_files(files, f"data/{FIRST}/r1", partition_by=(), schema=SCHEMA)))
    table = loaded(sink)
    assert read(table) == [(1, "x"), (2, None)]
    files.delete([f"data/{FIRST}/r1/part-0.parquet"])
    with pytest.raises(TableError, match="does not exist"):
        read(table)
