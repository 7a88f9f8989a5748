"""One suite over both writers, Spark's own and the one through Arrow: the same files, folders, rows and faults."""

import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession, functions
from tests.spark.elsewhere import Elsewhere, Flood, Locked, Single

from penstock.errors import TableError, TemporaryError, TransformError
from penstock.pipeline.engine import RunBroken
from penstock.pipeline.spark.arrow_writer import arrow_schema, partition_folder, write_parquet
from penstock.pipeline.spark.faults import SPARK_ERRORS, explain
from penstock.pipeline.spark.run import write
from penstock.pipeline.spark.session import runtime_of
from penstock.sinks.delta.sink import DeltaTableSink
from penstock.sinks.manifest import DataFile
from penstock.sinks.parquet import list_files, partition_values
from penstock.sinks.sink import Append
from penstock.storage.local import LocalFiles

DIRECTORY = "data/attempt/r1"
WRITERS = {"by Spark": LocalFiles, "through Arrow": Elsewhere}

FLAT = """
    n bigint, b tinyint, sh smallint, i int, f float, d double, o boolean, s string, x binary, day date,
    at timestamp, wall timestamp_ntz, d9 decimal(9,2), d18 decimal(18,4), d38 decimal(38,10), `a b.c` string
"""
FLAT_ROWS = """
    (-1, -128, -32768, -2147483648, -1.5, -1e300, true, '', X'', date'0001-01-01',
     timestamp'1582-10-04 00:00:00.000001', timestamp_ntz'0001-01-01 00:00:00',
     -9999999.99, -1.0001, -9999999999999999999999999999.0000000001, 'é'),
    (9223372036854775807, 127, 32767, 2147483647, 3.4e38, 1e300, false, repeat('ü', 50), X'00FF', date'9999-12-31',
     timestamp'9999-12-31 23:59:59.999999', timestamp_ntz'2024-02-29 12:34:56.789012',
     9999999.99, 1.0001, 9999999999999999999999999999.0000000001, repeat('z', 40)),
    (null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null),
    (0, 0, 0, 0, double('NaN'), -0.0, true, 'line\nfeed', X'01', date'1969-12-31',
     timestamp'1969-12-31 23:59:59.999999', timestamp_ntz'1969-12-31 23:59:59.999999',
     0, 0, 0, 'a')
"""
NESTED = """
    id bigint, tags array<string>, deep array<struct<k: string, at: timestamp, v: array<decimal(5,1)>>>,
    m map<string, struct<n: int>>, one struct<a: int, b: struct<c: date, `d e`: binary>>
"""
NESTED_ROWS = """
    (1, array('x', null), array(named_struct('k', 'q', 'at', timestamp'2024-01-01', 'v', array(1.5, null)), null),
     map('k', named_struct('n', 1), 'l', null),
     named_struct('a', 1, 'b', named_struct('c', date'2024-01-01', 'd', X'01'))),
    (2, array(), array(), map(), named_struct('a', null, 'b', null)),
    (3, null, null, null, null)
"""
PLACES = [
    "a",
    "",
    None,
    "é/ü",
    "50%",
    "k=v",
    "%2F",
    "a:b",
    "[x] {y} ^",
    "_under",
    ".",
    "..",
    " ",
    "tab\tnew\nline",
    "\\\"'*?#",
]
DAYS = ["2024-02-29", None, "0001-01-01", "9999-12-31"]


@pytest.fixture(scope="module")
def beside(spark: SparkSession) -> SparkSession:
    return runtime_of(spark).sibling()


@pytest.fixture(params=WRITERS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> LocalFiles:
    return WRITERS[request.param](tmp_path / "table")


def flat(spark: SparkSession) -> DataFrame:
    return typed(spark, FLAT, FLAT_ROWS)


def nested(spark: SparkSession) -> DataFrame:
    return typed(spark, NESTED, NESTED_ROWS)


def never_null(spark: SparkSession) -> DataFrame:
    """Return a frame that Spark knows has no nulls. The files must not declare that, as the tables do not."""
    return spark.range(5).selectExpr(
        "id",
        "string(id) s",
        "array(id) l",
        "map(id, id) m",
        "named_struct('a', id, 'b', array(named_struct('c', id))) t",
    )


def typed(spark: SparkSession, ddl: str, rows: str) -> DataFrame:
    """Return the rows with these types in one partition, so that there is one file."""
    empty = spark.createDataFrame([], ddl)
    values = spark.sql(f"values {rows}").toDF(*empty.columns)
    cast = [functions.col(f"`{field.name}`").cast(field.dataType).alias(field.name) for field in empty.schema]
    return values.select(*cast).coalesce(1)


FRAMES: Mapping[str, Callable[[SparkSession], DataFrame]] = {"flat": flat, "nested": nested, "never null": never_null}


def partitioned(spark: SparkSession) -> DataFrame:
    rows = [
        (place, None if day is None else dt.date.fromisoformat(day), number - 2, number % 2 == 0, number)
        for number, (place, day) in enumerate((place, day) for place in PLACES for day in DAYS)
    ]
    return spark.createDataFrame(rows, "place string, day date, `z =é` int, even boolean, v int").repartition(3)


def listed(frame: DataFrame, files: LocalFiles, partition_by: Sequence[str] = ()) -> Sequence[DataFile]:
    """Write and list, as a run does."""
    reported = write(frame, files, DIRECTORY, partition_by=partition_by)
    return list_files(files, DIRECTORY, partition_by=partition_by, schema=arrow_schema(frame.schema), written=reported)


def described(found: Sequence[DataFile]) -> list[Any]:
    """Return everything about files except names and sizes."""
    return sorted(
        (
            sorted((name, repr(value)) for name, value in file.partition_values.items()),
            file.rows,
            file.statistics,
        )
        for file in found
    )


def parquet_types(files: LocalFiles, file: DataFile) -> str:
    """Return the physical and logical types of the columns."""
    lines = str(pq.ParquetFile(files.root / file.path).schema).splitlines()
    return "\n".join(lines[2:])  # without the names of object and schema


def rows_of(table: pa.Table | DataFrame) -> list[str]:
    if isinstance(table, DataFrame):
        values = [row.asDict(recursive=True) for row in table.collect()]
    else:
        values = table.to_pylist()
    return sorted(repr({name: _plain(row[name]) for name in sorted(row)}) for row in values)


def _plain(value: Any) -> Any:
    """Remove the differences between the values that Arrow, Spark and Python return."""
    match value:
        case dt.datetime():
            return value.replace(tzinfo=None)
        case bytearray():
            return bytes(value)
        case dict():
            return {key: _plain(value[key]) for key in sorted(value)}
        case list():
            pairs = bool(value) and all(isinstance(one, tuple) for one in value)  # a map, as Arrow has it
            return _plain(dict(value)) if pairs else [_plain(one) for one in value]
    return value


@pytest.mark.parametrize("kind", FRAMES)
def test_files_equal_those_of_spark(kind: str, beside: SparkSession, tmp_path: Path) -> None:
    own, other = LocalFiles(tmp_path / "own"), Elsewhere(tmp_path / "other")
    frame = FRAMES[kind](beside).coalesce(1)
    (by_spark,), (by_arrow,) = listed(frame, own), listed(frame, other)
    assert described([by_arrow]) == described([by_spark])
    types, as_spark = parquet_types(other, by_arrow), parquet_types(own, by_spark)
    assert types.replace("required", "optional") == as_spark.replace("required", "optional")
    assert types.count("required") == types.count(" key_value"), "only a map's keys are never null"

    footer = pq.read_metadata(other.root / by_arrow.path)
    assert {footer.row_group(0).column(n).compression for n in range(footer.num_columns)} == {"SNAPPY"}
    assert footer.created_by.startswith("parquet-cpp-arrow")
    read = [pq.read_table(files.root / file.path) for files, file in [(own, by_spark), (other, by_arrow)]]
    assert rows_of(read[1]) == rows_of(read[0])
    spark_read = [beside.read.parquet(f"{files}/{DIRECTORY}") for files in (own, other)]
    assert spark_read[1].schema == spark_read[0].schema
    assert rows_of(spark_read[1]) == rows_of(spark_read[0]) == rows_of(frame)


PARTITIONINGS = [["place"], ["day"], ["z =é", "even"], ["place", "day"], ["even", "place", "z =é", "day"]]


@pytest.mark.parametrize("partition_by", PARTITIONINGS, ids=", ".join)
def test_partitions_equal_those_of_spark(partition_by: list[str], beside: SparkSession, tmp_path: Path) -> None:
    own, other = LocalFiles(tmp_path / "own"), Elsewhere(tmp_path / "other")
    frame = partitioned(beside)
    by_spark, by_arrow = (listed(frame, files, partition_by) for files in (own, other))
    assert described(by_arrow) == described(by_spark)
    assert folders(by_arrow) == folders(by_spark)
    assert sum(file.rows for file in by_arrow) == len(PLACES) * len(DAYS)


def test_every_character_is_escaped_as_spark_does(beside: SparkSession) -> None:
    jvm: Any = beside.sparkContext._jvm
    folder_of = jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils.getPartitionPathString
    for text in [*map(chr, range(1, 0x180)), "a b/ü%2F", "", None]:
        folder = partition_folder(text or "", text or "")
        assert folder == folder_of(text or "", text)
        assert partition_values([folder], [text or ""]) == {text or "": text or None}


def test_a_table_of_the_files_has_the_rows_of_the_frame(files: LocalFiles, beside: SparkSession) -> None:
    kept = flat(beside).withColumn("place", functions.col("s")).drop("s")
    frame = kept.where("place is null or place <> ''")  # which becomes null in a folder's name
    found = listed(frame, files, ["place", "day"])
    home = LocalFiles(files.root)
    sink = DeltaTableSink(home, pipeline="p", partition_by=["place", "day"])
    sink.ensure_schema(arrow_schema(frame.schema))
    loaded = sink.load()
    assert loaded is not None
    loaded.append(Append(seq=1, attempt_id="attempt", files=found))
    assert rows_of(DeltaTable(str(home)).to_pyarrow_table()) == rows_of(frame)


def test_a_batch_without_rows_has_no_files(files: LocalFiles, beside: SparkSession) -> None:
    assert listed(flat(beside).where("false"), files) == ()
    one = beside.createDataFrame([("a", 1)], "place string, v int").repartition(5)
    assert [file.rows for file in listed(one, files.below("one"))] == [1]
    assert [file.rows for file in listed(one, files.below("partitioned"), ["place"])] == [1]


def test_a_fault_of_the_rows_is_reported_unchanged(files: LocalFiles, beside: SparkSession) -> None:
    frame = beside.range(20_000).selectExpr("id", "cast(if(id = 19000, 'x', id) as int) v")
    with pytest.raises(SPARK_ERRORS) as raised:
        write(frame, files, DIRECTORY, partition_by=[])
    explained = explain(raised.value)
    assert isinstance(explained, RunBroken)
    assert "[CAST_INVALID_INPUT] The value 'x'" in str(explained)
    assert explained.fingerprint.startswith("[CAST_INVALID_INPUT]")


def test_a_fault_of_the_users_python_is_reported_unchanged(files: LocalFiles, beside: SparkSession) -> None:
    def refuse(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise ValueError("no more")

    with pytest.raises(SPARK_ERRORS) as raised:
        write(beside.range(1).mapInArrow(refuse, "id long"), files, DIRECTORY, partition_by=[])
    assert re.fullmatch(r"ValueError: no more \(test_arrow_writer\.py:\d+\)", str(explain(raised.value)))


def test_a_file_needs_a_column_of_its_own(files: LocalFiles, beside: SparkSession) -> None:
    def wrote() -> None:
        try:
            write(beside.range(1), files, DIRECTORY, partition_by=["id"])
        except SPARK_ERRORS as error:
            raise explain(error) from error

    with pytest.raises(TransformError):
        wrote()


@pytest.mark.parametrize(
    ("kind", "fault", "words"), [(Flood, TemporaryError, "slow down"), (Locked, TableError, "Access Denied")]
)
def test_a_fault_of_the_store_is_not_taken_for_one_of_the_rows(
    kind: type[LocalFiles], fault: type[Exception], words: str, beside: SparkSession, tmp_path: Path
) -> None:
    files = kind(tmp_path / "table")
    with pytest.raises(fault, match=words):
        write(beside.range(100_000), files, DIRECTORY, partition_by=[])
    assert list(files.list()) == []


def test_files_and_row_groups_end_near_their_sizes(beside: SparkSession, tmp_path: Path) -> None:
    files, rows = Elsewhere(tmp_path), 100_000
    frame = beside.range(rows).select("id", functions.randstr(functions.lit(20)).alias("s")).coalesce(1)
    reported = write_parquet(frame, files, DIRECTORY, partition_by=[], row_group_bytes=1 << 19, file_bytes=1 << 20)
    found = list_files(files, DIRECTORY, partition_by=[], schema=arrow_schema(frame.schema), written=reported)
    assert len(found) > 2
    assert sum(file.rows for file in found) == rows
    for number, file in enumerate(sorted(found, key=lambda file: file.statistics["minValues"]["id"])):
        assert (1 << 20 if number < len(found) - 1 else 0) < file.size_bytes < 2 << 20
        footer = pq.read_metadata(files.root / file.path)
        assert footer.num_row_groups <= 4
    assert sorted(pq.read_table(files.root / DIRECTORY)["id"].to_pylist()) == list(range(rows))


def test_a_task_has_one_file_open_at_a_time(beside: SparkSession, tmp_path: Path) -> None:
    frame = beside.range(30_000).selectExpr("id", "id % 50 place", "id % 3 kind").repartition(2)
    found = listed(frame, Single(tmp_path), ["place", "kind"])
    assert len(found) == 150
    assert {file.rows for file in found} == {200}


def folders(found: Sequence[DataFile]) -> list[str]:
    return sorted(file.path.rpartition("/")[0] for file in found)
