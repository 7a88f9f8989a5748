"""CSV as Spark itself writes it, and files in UTF-16, read back through Spark."""

import itertools
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.config import Settings
from penstock.operations.ingest.ingest import IngestReport, ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.worker.shutdown import StopSignal

PARTS = ["a", '"', "\\", ",", "\n", "é", "x y", "#", "'"]
VALUES = [
    "".join(parts)
    for length in (1, 2, 3)
    for parts in itertools.product(PARTS, repeat=length)
    if "".join(parts).strip()
]
ODD = ['say "hi", you', "C:\\temp\\", '\\"', '"\\', "\\\\", 'x\\",y', "=cmd", "NULL", "007", "", None]


def run(source: Path, table: Path, spark: SparkSession, **options: object) -> IngestReport:
    request = IngestRequest(source=str(source), table=str(table), settings=Settings(), **options)  # type: ignore[arg-type]
    return ingest(request, stop=StopSignal(), spark=spark)


def rows(table: Path) -> dict[int, tuple[str | None, str | None]]:
    found = DeltaTable(table).to_pyarrow_table().to_pylist()
    return {row["id"]: (row["text"], row["more"]) for row in found}


@pytest.mark.parametrize("given", [False, True])
def test_values_that_spark_writes_by_default_are_read_back(tmp_path: Path, spark: SparkSession, *, given: bool) -> None:
    values = [*ODD, *(value.strip(" \n") or "y" for value in VALUES)]
    data = [(number, value, f"{number}") for number, value in enumerate(values)]
    frame = spark.createDataFrame(data, "id long, text string, more string").coalesce(1)
    frame.write.csv(str(tmp_path / "in"), header=True)
    options = {"schema": "id long, text string, more string", "escape": "\\", "format": "csv"} if given else {}
    report = run(tmp_path / "in", tmp_path / "table", spark, **options)
    assert report.lines_quarantined == 0
    assert report.files_ignored["underscore"] == 1
    found = {number: text for number, (text, _) in rows(tmp_path / "table").items()}
    assert found == dict(enumerate(values))


def test_utf16_is_read(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "in").mkdir()
    text = "id\ttext\tmore\r\n" + "".join(f'{number}\t"é\r\n{number}"\t😀\r\n' for number in range(50_000))
    (tmp_path / "in" / "excel.csv").write_bytes(text.encode("utf-16"))
    report = run(tmp_path / "in", tmp_path / "table", spark)
    assert (report.rows_written, report.lines_quarantined) == (50_000, 0)
    assert rows(tmp_path / "table") == {number: (f"é\r\n{number}", "😀") for number in range(50_000)}


def test_options_are_remembered(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("title\n!no\nid;text;more\n1;'a;b';-\n2;n/a;'^'x^''\n")
    said = {"nulls": ("-", "n/a"), "quote": "'", "escape": "^", "comment": "!", "skip_lines": 1}
    run(tmp_path / "in", tmp_path / "table", spark, **said)
    (tmp_path / "in" / "b.csv").write_text("title\nid;text;more\n!3;c;d\n4;'-';-\n")
    report = run(tmp_path / "in", tmp_path / "table", spark)
    assert report.lines_quarantined == 0
    assert rows(tmp_path / "table") == {1: ("a;b", None), 2: (None, "'x'"), 4: ("-", None)}
