"""The cases of JSON and CSV, read by spark.read; the table of differences has a reason for each disagreement."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.conformance.formats.csv_cases import CSV_CASES, CsvCase, shown
from tests.conformance.formats.json_cases import ACCEPTED, CORRUPT, GOOD_ID, GOOD_LINE, JSON_CASES
from tests.conformance.formats.outcomes import outcome_of, read_each

from penstock.pipeline.spark.source.options import ReadOptions

VALUE_AT = len(b'{"id":1,"v":')
Row = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def without_warnings(spark: SparkSession) -> None:
    spark.sparkContext.setLogLevel("OFF")  # two of them for each malformed record


def test_json_lines_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    for number, case in enumerate(JSON_CASES):
        (tmp_path / f"{number:04}.json").write_bytes(case.content + b"\n" + GOOD_LINE)
    found = by_file(spark.read.schema("id BIGINT, _corrupt_record STRING").json(str(tmp_path)))
    wrong = []
    for number, case in enumerate(JSON_CASES):
        rows = [row for row in found[f"{number:04}.json"] if row["id"] != GOOD_ID]
        if (outcome := spark_outcome(rows)) != case.spark_line:
            wrong.append((case.content[:60], outcome, case.spark_line))
    assert wrong == []


def test_json_documents_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    for number, case in enumerate(JSON_CASES):
        (tmp_path / f"{number:04}.json").write_bytes(case.content)
    found = by_file(spark.read.schema("id BIGINT, _corrupt_record STRING").json(str(tmp_path), multiLine=True))
    outcomes = [spark_outcome(found[f"{number:04}.json"]) for number in range(len(JSON_CASES))]
    assert [
        (case.content[:60], outcome, case.spark_document)
        for case, outcome in zip(JSON_CASES, outcomes, strict=True)
        if outcome != case.spark_document
    ] == []


@pytest.mark.parametrize(("kind", "begins"), [("STRING", '"'), ("DOUBLE", "-0123456789")])
def test_values_of_json_as_spark_reads_them(spark: SparkSession, tmp_path: Path, kind: str, begins: str) -> None:
    lines = [case.content for case in ACCEPTED if case.content[VALUE_AT : VALUE_AT + 1] in [*map(str.encode, begins)]]
    assert len(lines) > 15
    (tmp_path / "a.json").write_bytes(b"\n".join(lines))
    rows = spark.read.schema(f"v {kind}").json(str(tmp_path)).toArrow().to_pylist()
    ((ours, bad, _),) = read_each([b"\n".join(lines)], ReadOptions(schema_ddl=f"v {kind}", format="jsonl"))
    assert not bad
    assert ours == rows


def test_csv_as_spark_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    found = spark_csv(spark, tmp_path)
    wrong = []
    for case in CSV_CASES:
        rows = found[case.name]
        good = [shown(row.values()) for row in rows if not row.pop("_corrupt_record")]
        expected = case.spark or (case.rows, len(case.bad))
        if (good, len(rows) - len(good)) != (list(expected[0]), expected[1]):
            wrong.append((case.name, good, len(rows) - len(good), expected))
    assert wrong == []


def spark_csv(spark: SparkSession, folder: Path) -> dict[str, list[Row]]:
    """Read the cases of equal schema and options together."""
    together: dict[tuple[str, tuple[tuple[str, object], ...]], list[CsvCase]] = defaultdict(list)
    for case in CSV_CASES:
        together[case.ddl, tuple(case.spark_options.items())].append(case)
    rows: dict[str, list[Row]] = {}
    for (ddl, options), cases in together.items():
        paths = {case.name: folder / f"{case.name}.csv" for case in cases}
        for case in cases:
            paths[case.name].write_bytes(case.data)
        reader = spark.read.schema(f"{ddl}, _corrupt_record STRING").options(**dict(options))  # type: ignore[arg-type]
        found = by_file(reader.csv([str(path) for path in paths.values()]))
        rows |= {name: found[path.name] for name, path in paths.items()}
    return rows


def by_file(frame: DataFrame) -> dict[str, list[Row]]:
    """Return the rows of each file, in order, with a flag for corrupt ones, whose text may be no Unicode."""
    *names, corrupt = frame.columns
    frame = frame.select(*names, frame[corrupt].isNotNull().alias(corrupt), "_metadata.file_name")
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in frame.toArrow().to_pylist():
        rows[row.pop("file_name").replace("%20", " ")].append(row)
    return rows


def spark_outcome(rows: Sequence[Row]) -> str:
    """Return the outcome in the words of our own."""
    corrupt = [CORRUPT for row in rows if row["_corrupt_record"]]
    return outcome_of(len(rows) - len(corrupt), corrupt)
