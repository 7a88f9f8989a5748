"""Names of data files as Spark shows them, by which rows get the values of their partitions."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from penstock.pipeline.spark.frames import hadoop_path

NAMES = (
    "plain",
    "a blank",
    "100%",
    "100%25",
    "a+b",
    "d=1&e=2",
    "é",
    "e\u0301",
    "日本",
    "😀",
    "no\u00a0break",
    "wide\u3000blank",
    "tab\there",
    "#hash",
    "semi;colon",
    "comma,",
    "quo'te",
    'dou"ble',
    "~tilde!",
    "(round)",
    "[square]",
    "{curly}",
    "star*",
    "mark?",
    "back\\slash",
    "pipe|",
    "at@",
    "dollar$",
    "caret^",
    "grave`",
    "less<more>",
    "trailing ",
)


def test_a_path_is_encoded_as_spark_shows_it(spark: SparkSession, tmp_path: Path) -> None:
    files = []
    for number, name in enumerate(NAMES):
        folder = tmp_path / "files" / name
        folder.mkdir(parents=True)
        file = folder / f"{name}.parquet"
        pq.write_table(pa.table({"number": [number]}), file)
        files.append(str(file))
    frame = spark.read.option("recursiveFileLookup", "true").parquet(f"file://{tmp_path}/files")
    shown = {row.number: row.file for row in frame.selectExpr("number", "_metadata.file_path as file").collect()}
    without_scheme = [shown[number].removeprefix("file:").replace("///", "/", 1) for number in range(len(NAMES))]
    assert without_scheme == [hadoop_path(file) for file in files]
