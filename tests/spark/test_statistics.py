"""Spark reads tables with statistics by their list of files, and its writer leaves no column without bounds."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types
from tests.conformance.sinks.reader_tables import KINDS, filled, filters
from tests.spark.elsewhere import Elsewhere

from penstock.pipeline.spark.arrow_writer import arrow_schema
from penstock.pipeline.spark.run import write
from penstock.pipeline.spark.session import runtime_of
from penstock.sinks.parquet import list_files
from penstock.storage.local import LocalFiles

DIRECTORY = "data/attempt/r1"


@pytest.fixture(scope="module")
def beside(spark: SparkSession) -> SparkSession:
    return runtime_of(spark).sibling()


def literal(value: Any, type_: pa.DataType) -> str:
    match value:
        case bool():
            return str(value).lower()
        case bytes():
            return f"x'{value.hex()}'"
        case str():
            return "'" + value.replace("'", "\\'") + "'"
        case Decimal():
            return f"cast('{value:f}' as decimal({type_.precision}, {type_.scale}))"
        case float() | int():
            return f"cast('{value!r}' as {SPARK_NAMES[type_]})"
    name = {"date32[day]": "date", "timestamp[us]": "timestamp_ntz"}.get(str(type_), "timestamp")
    return f"cast('{value.isoformat()}' as {name})"


SPARK_NAMES = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
}


@pytest.mark.parametrize("name", KINDS)
def test_a_filter_finds_the_same_rows_with_spark(name: str, beside: SparkSession, tmp_path: Path) -> None:
    table = filled(tmp_path / "t", KINDS[name])
    opened = DeltaTable(str(table.root))
    schema = spark_types.StructType.fromJson(json.loads(opened.schema().to_json()))
    frame = beside.read.schema(schema).parquet(*opened.file_uris())
    wrong = {}
    for wanted in filters(KINDS[name]):
        expected = sorted(row["id"] for row in table.rows if wanted.holds(row))
        ids = sorted(row["id"] for row in frame.where(wanted.sql(literal)).select("id").collect())
        if ids != expected:
            wrong[str(wanted)] = (ids, expected)
    assert wrong == {}


@pytest.mark.parametrize("kind", [LocalFiles, Elsewhere], ids=["by Spark", "through Arrow"])
def test_long_strings_and_floats_have_bounds_by_both_writers(
    kind: type[LocalFiles], beside: SparkSession, tmp_path: Path
) -> None:
    files = kind(tmp_path)
    frame = beside.range(3).selectExpr("id", "repeat(char(97 + id), 5000) s", "cast(id as double) f").coalesce(1)
    reported = write(frame, files, DIRECTORY, partition_by=[])
    (file,) = list_files(files, DIRECTORY, partition_by=[], schema=arrow_schema(frame.schema), written=reported)
    assert file.statistics["nullCount"] == {"id": 0, "s": 0, "f": 0}
    assert file.statistics["minValues"] == {"id": 0, "s": "a" * 32, "f": -0.0}
    assert file.statistics["maxValues"] == {"id": 2, "s": "c" * 31 + "d", "f": 2.0}
