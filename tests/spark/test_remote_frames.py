"""Tables as DataFrames: one suite for both readers, Spark's own and the one for places that the JVM cannot access."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.services.aws_server import AwsServer
from tests.spark.elsewhere import Elsewhere

from penstock.errors import TableError
from penstock.pipeline.spark.arrow_writer import arrow_schema
from penstock.pipeline.spark.frames import UNION_MAX, frame_of
from penstock.pipeline.spark.run import write
from penstock.pipeline.spark.session import runtime_of
from penstock.sinks.delta.sink import DeltaTableSink
from penstock.sinks.manifest import DataFile
from penstock.sinks.parquet import list_files
from penstock.sinks.sink import Append, TableFile
from penstock.storage.address import s3_address
from penstock.storage.files import Files
from penstock.storage.local import LocalFiles
from penstock.storage.s3_files import S3Files

READERS = {"by Spark": LocalFiles, "by Arrow": Elsewhere}
FIRST = pa.schema(
    [
        ("id", pa.int64()),
        ("a b.c", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("wall", pa.timestamp("us")),
        ("day", pa.date32()),
        ("price", pa.decimal128(12, 2)),
        ("raw", pa.binary()),
        ("small", pa.int8()),
        ("tags", pa.list_(pa.struct([("k", pa.string()), ("at", pa.timestamp("us", tz="UTC"))]))),
        ("counts", pa.map_(pa.string(), pa.int32())),
    ]
)
LATER = pa.field("later", pa.struct([("x", pa.list_(pa.int64()))]))
PLACES = ["a b", "ü/%20=x", "{1,2}*", None, "é:'\"", "_under"]
BC = dt.date(1, 1, 1)


@dataclass(frozen=True, slots=True)
class Table:
    """A table that the reader sees at another place than in its log."""

    loaded: Any
    root: Files
    named: Sequence[TableFile] | None = None

    @property
    def partition_by(self) -> Sequence[str]:
        return tuple(self.loaded.partition_by)

    @property
    def schema_document(self) -> Mapping[str, Any]:
        document: Mapping[str, Any] = self.loaded.schema_document
        return document

    def files(self) -> Sequence[TableFile]:
        files: Sequence[TableFile] = self.loaded.files() if self.named is None else self.named
        return files


@pytest.fixture(scope="module")
def beside(spark: SparkSession) -> SparkSession:
    return runtime_of(spark).sibling()


@pytest.fixture(params=READERS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> LocalFiles:
    return READERS[request.param](tmp_path / "an [odd] {name}?")


def row(number: int, place: str | None) -> dict[str, Any]:
    if number % 5 == 4:
        return {"id": number, "place": place}
    return {
        "id": number,
        "a b.c": "é" * number,
        "at": dt.datetime(1969, 12, 31, 23, 59, 59, number, tzinfo=dt.UTC),
        "wall": dt.datetime(1, 1, 1, 0, 0, 0, number),  # noqa: DTZ001 -- without a zone on purpose
        "day": BC,
        "price": None,
        "raw": bytes([number % 256]),
        "small": -number % 100,
        "tags": [{"k": "x", "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}, None],
        "counts": [("k", number), ("l", None)],
        "place": place,
        "later": {"x": [number, None]},
    }


def made(root: LocalFiles, *, partitioned: bool = True) -> DeltaTableSink:
    """Return a table with a file for each place, and one file with a column added later."""
    columns = ["place", "day"] if partitioned else []
    first = pa.schema([*FIRST, ("place", pa.string())])
    sink = DeltaTableSink(LocalFiles(root.root), pipeline="p", partition_by=columns)
    append(sink, root, first, [[row(number, place)] for number, place in enumerate(PLACES)], seq=1)
    append(sink, root, first.append(LATER), [[row(number, "here") for number in range(10, 30)]], seq=2)
    return sink


def append(
    sink: DeltaTableSink, root: LocalFiles, schema: pa.Schema, contents: Sequence[Sequence[dict[str, Any]]], *, seq: int
) -> None:
    sink.ensure_schema(schema)
    loaded = sink.load()
    assert loaded is not None
    files = []
    for number, rows in enumerate(contents):
        table = pa.Table.from_pylist([{**one, "day": BC} for one in rows], schema=schema)
        path = f"data/{seq}/r1/an odd=name%20{number}.parquet"
        (root.root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.drop_columns(list(loaded.partition_by)), root.root / path, row_group_size=7)
        values = {"place": rows[0]["place"], "day": BC.isoformat().zfill(10)}
        files.append(
            DataFile(
                path=path,
                size_bytes=(root.root / path).stat().st_size,
                rows=len(rows),
                modified_at=0,
                partition_values={name: values[name] for name in loaded.partition_by},
            )
        )
    loaded.append(Append(seq=seq, attempt_id=str(seq), files=files))


def as_arrow(root: LocalFiles) -> list[str]:
    return sorted(map(repr, (plain(one) for one in DeltaTable(str(root)).to_pyarrow_table().to_pylist())))


def as_spark(frame: Any) -> list[str]:
    return sorted(repr(plain(one.asDict(recursive=True))) for one in frame.collect())


def plain(value: Any) -> Any:
    match value:
        case dt.datetime():
            return value.replace(tzinfo=None)
        case bytearray():
            return bytes(value)
        case dict():
            return {key: plain(one) for key, one in sorted(value.items())}
        case [tuple(), *_]:  # a map, as Arrow has it
            return plain(dict(value))
        case list():
            return [plain(one) for one in value]
    return value


@pytest.mark.parametrize("union_max", [UNION_MAX, 1], ids=["few partitions", "many partitions"])
def test_a_frame_has_the_rows_of_its_table(root: LocalFiles, union_max: int, beside: SparkSession) -> None:
    sink = made(root)
    frame = frame_of(beside, Table(sink.load(), root), union_max=union_max)
    assert as_spark(frame) == as_arrow(root)
    assert frame.columns == DeltaTable(str(root)).to_pyarrow_table().column_names
    assert [one["id"] for one in frame.where("place is null").collect()] == [PLACES.index(None)]
    assert frame.where("later is null and day = date'0001-01-01'").count() == len(PLACES) + 4


def test_a_frame_of_an_unpartitioned_table_has_its_rows(root: LocalFiles, beside: SparkSession) -> None:
    sink = made(root, partitioned=False)
    assert as_spark(frame_of(beside, Table(sink.load(), root))) == as_arrow(root)


def test_a_table_without_files_has_its_columns(root: LocalFiles, beside: SparkSession) -> None:
    sink = made(root)
    frame = frame_of(beside, Table(sink.load(), root, named=[]))
    assert frame.count() == 0
    assert frame.columns == [*FIRST.names, "place", "later"]


def test_partitions_excluded_by_a_filter_are_not_read(root: LocalFiles, beside: SparkSession) -> None:
    sink = made(root)
    frame = frame_of(beside, Table(sink.load(), root))
    for path in (root.root / "data" / "1").rglob("*.parquet"):
        path.unlink()
    assert frame.where("place = 'here'").count() == 20


def test_a_deleted_file_is_named_in_the_error(beside: SparkSession, tmp_path: Path) -> None:
    root = Elsewhere(tmp_path)
    frame = frame_of(beside, Table(made(root).load(), root))
    (root.root / "data/2/r1/an odd=name%200.parquet").unlink()
    with pytest.raises(Exception, match=r"The file data/2/.*%200.parquet of the table .* Read the table again"):
        frame.collect()


def test_a_file_outside_of_the_table_is_refused(beside: SparkSession, tmp_path: Path) -> None:
    root = Elsewhere(tmp_path)
    loaded = made(root).load()
    assert loaded is not None
    file = TableFile(path="s3://other/x.parquet", size_bytes=1, partition_values=loaded.files()[0].partition_values)
    with pytest.raises(TableError, match=r"names the file s3://other/x.parquet, which is not below it"):
        frame_of(beside, Table(loaded, root, named=[file]))


def test_a_table_in_s3_is_written_and_read_without_a_jar(
    beside: SparkSession, moto: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(beside.sparkContext.environment, name, value)  # of the executors' Python
    moto.client("s3").create_bucket(Bucket="lake")
    root = S3Files(s3_address("s3://lake/clicks"), moto.aws)
    written = beside.range(1000).selectExpr("id", "md5(string(id)) s", "if(id % 3 = 0, null, concat('ü/%=', id % 3)) p")
    reported = write(written, root, "data/a/r1", partition_by=["p"])
    found = list_files(root, "data/a/r1", partition_by=["p"], schema=arrow_schema(written.schema), written=reported)
    sink = DeltaTableSink(root, pipeline="p", partition_by=["p"])
    sink.ensure_schema(arrow_schema(written.schema))
    loaded = sink.load()
    assert loaded is not None
    loaded.append(Append(seq=1, attempt_id="a", files=found))
    table = sink.load()
    assert table is not None
    for union_max in (UNION_MAX, 1):
        frame = frame_of(beside, table, union_max=union_max)
        assert as_spark(frame) == as_spark(written)
        assert frame.where("p is null").count() == 334
