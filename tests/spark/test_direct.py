"""Rows that nothing changes are written where they are read: the same tables as through Spark, and the same faults."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from tests.spark.elsewhere import Elsewhere, Flood, Locked
from tests.spark.test_formats import ROWS, WRITERS
from tests.spark.test_source_spark import line, plan_of, with_partitions

from penstock.errors import TableError, TemporaryError
from penstock.operations.ingest.ingest import IngestReport, ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.pipeline.spark import run
from penstock.pipeline.spark.arrow_writer import WriteTask, arrow_schema
from penstock.pipeline.spark.direct import DirectTask, write_as_read
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.plan import SavedPlan
from penstock.pipeline.spark.source.summary import summarise
from penstock.storage.local import LocalFiles
from penstock.worker.shutdown import StopSignal

DIRECTORY = "data/attempt/r1"
DDL = (
    "n bigint, b tinyint, sh smallint, i int, f float, d double, o boolean, s string, x binary, day date, "
    "at timestamp, wall timestamp_ntz, d9 decimal(9,2), d38 decimal(38,10), `a b.c` string, tags array<string>, "
    "deep array<struct<k: string, at: timestamp, v: array<decimal(5,1)>>>, m map<string, struct<n: int>>, "
    "one struct<a: int, b: struct<c: date, `d e`: binary>>"
)
VALUES: tuple[dict[str, Any], ...] = (
    {
        "n": -1,
        "b": -128,
        "sh": -32768,
        "i": 7,
        "f": -1.5,
        "d": -1e300,
        "o": True,
        "s": "",
        "x": "",
        "day": "0001-01-01",
    },
    {"at": "1582-10-04 00:00:00.000001", "wall": "0001-01-01 00:00:00", "d9": -9999999.99, "a b.c": "é"},
    {"n": 9223372036854775807, "s": "ü" * 5_000, "x": "AP8=", "day": "9999-12-31", "at": "9999-12-31T23:59:59.999999Z"},
    {"d38": "9999999999999999999999999999.0000000001", "wall": "2024-02-29 12:34:56.789012", "a b.c": "z" * 40},
    {"tags": ["x", None], "m": {"k": {"n": 1}, "l": None}, "one": {"a": 1, "b": {"c": "2024-01-01", "d e": "AQ=="}}},
    {"deep": [{"k": "q", "at": "2024-01-01T00:00:00+01:00", "v": [1.5, None]}, None], "tags": [], "one": {"a": None}},
    {"d": -0.0, "f": 3.5, "unknown": 1},
    {},
)


SAME = f"{__name__}:same"


def same(frame: DataFrame) -> DataFrame:
    """Change nothing, which Penstock cannot know."""
    return frame


def json_lines(folder: Path) -> str:
    for number in range(3):
        lines = [json.dumps({**row, "i": number}).encode() for row in VALUES]
        (folder / f"{number}.jsonl").write_bytes(b"\n".join([*lines, b"\xff", b'{"n": "no number"}']))
    return DDL


def documents(folder: Path) -> str:
    for number in range(3):
        (folder / f"{number}.json").write_text(json.dumps([{"id": number, "s": "x"}, {"id": 7}, 5]))
    return "id bigint, s string"


def csv(folder: Path) -> str:
    for number in range(3):
        (folder / f"{number}.csv").write_text(
            f'id,s,at\n{number},"a\nb",2024-05-06T07:08:09Z\nno,x,\n8,,2024-05-06 07:08\n'
        )
    return "id bigint, s string, at timestamp"


def text(folder: Path) -> str:
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"line {number}\n\nlast")
    return ""


def columnar(name: str) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        for number in range(3):
            (folder / f"{number}.{name}").write_bytes(WRITERS[name](ROWS.slice(number * 1_000, 1_000)))
        return ""

    return write


SOURCES: dict[str, Callable[[Path], str]] = {
    "jsonl": json_lines,
    "json": documents,
    "csv": csv,
    "text": text,
    **{name: columnar(name) for name in WRITERS},
}


def ingested(
    spark: SparkSession, source: Path, table: Path, ddl: str, form: str = "jsonl", **options: Any
) -> tuple[IngestReport, DeltaTable]:
    request = IngestRequest(source=str(source), table=str(table), schema=ddl or None, format=form, **options)
    return ingest(request, stop=StopSignal(), spark=spark), DeltaTable(table)


def contents(table: DeltaTable) -> tuple[Any, ...]:
    """Return columns, rows, and the statistics of the files, which have one object each if there are few."""
    rows = table.to_pyarrow_table()
    actions = pa.table(table.get_add_actions(flatten=False)).to_pylist()
    described = [
        {name: repr(action.get(name)) for name in ("num_records", "null_count", "min", "max")} for action in actions
    ]
    order = [("_object", "ascending"), (rows.column_names[-1], "ascending")]
    return table.schema().to_json(), rows.sort_by(order).to_pylist(), sorted(described, key=str)


@pytest.mark.parametrize("form", SOURCES)
def test_tables_equal_those_through_spark(form: str, spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    ddl = SOURCES[form](source)
    one, directly = ingested(spark, source, tmp_path / "direct", ddl, form)
    other, through_spark = ingested(spark, source, tmp_path / "through", ddl, form, transform=SAME)
    assert contents(directly) == contents(through_spark)
    assert (one.rows_written, one.lines_quarantined) == (other.rows_written, other.lines_quarantined)
    assert one.rows_written > 0
    written = [pq.read_schema(path) for path in sorted((tmp_path / "direct" / "data").rglob("*.parquet"))]
    expected = [pq.read_schema(path) for path in sorted((tmp_path / "through" / "data").rglob("*.parquet"))]
    assert {str(schema.remove_metadata()) for schema in written} == {str(each.remove_metadata()) for each in expected}


def test_new_columns_and_rescued_values_equal_those_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "1.jsonl").write_text('{"id": 1, "new": 2.5}\n{"id": "no number"}\n')
    _, directly = ingested(spark, source, tmp_path / "direct", "id bigint", evolve="add")
    _, through_spark = ingested(spark, source, tmp_path / "through", "id bigint", evolve="add", transform=SAME)
    assert contents(directly) == contents(through_spark)
    assert "new" in {field.name for field in directly.schema().fields}


def test_spark_has_the_columns_that_are_written_without_it(spark: SparkSession) -> None:
    assert arrow_schema(spark.createDataFrame([], DDL).schema) == parse_ddl(DDL)


@pytest.mark.parametrize(
    ("options", "is_direct"),
    [({}, True), ({"evolve": "add"}, True), ({"transform": SAME}, False), ({"partition_by": ("id",)}, False)],
    ids=["plain", "with new columns", "transformed", "partitioned"],
)
def test_only_rows_that_nothing_changes_or_gathers_are_written_where_they_are_read(
    options: dict[str, Any], is_direct: bool, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            used.append(name)
            return function(*args, **kwargs)

        return call

    for name in ("write", "write_as_read", "read"):
        monkeypatch.setattr(run, name, noted(name, getattr(run, name)))
    source = tmp_path / "in"
    source.mkdir()
    (source / "1.jsonl").write_text('{"id": 1}\n')
    report, _ = ingested(spark, source, tmp_path / "table", "id bigint", **options)
    assert report.rows_written == 1
    assert used == (["write_as_read"] if is_direct else ["read", "write"])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02}.jsonl").write_bytes(b"".join(line(200 * number + each) for each in range(200)))
    return folder


def test_the_files_are_those_that_the_tasks_report(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    plan = plan_of(tmp_path, source)
    files = Elsewhere(tmp_path / "table")
    written = write_as_read(spark, plan, files, DIRECTORY)
    assert len(written) == len(plan.partitions)
    assert {file.path for file in written} == {file.path for file in files.list()}
    assert {file.path: file.size_bytes for file in written} == {file.path: file.size_bytes for file in files.list()}
    rows = pa.concat_tables([pq.read_table(files.root / file.path, partitioning=None) for file in written])
    assert sorted(rows["id"].to_pylist()) == list(range(8_000))
    assert summarise(plan).rows == sum(file.rows for file in written) == 8_000


def test_a_plan_without_objects_has_no_files(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    assert write_as_read(spark, plan_of(tmp_path, tmp_path / "in"), LocalFiles(tmp_path / "table"), DIRECTORY) == []


@pytest.mark.parametrize(
    ("kind", "fault", "words"), [(Flood, TemporaryError, "slow down"), (Locked, TableError, "Access Denied")]
)
def test_a_fault_of_the_store_is_raised_as_one(
    kind: type[LocalFiles], fault: type[Exception], words: str, spark: SparkSession, tmp_path: Path, source: Path
) -> None:
    files = kind(tmp_path / "table")
    with pytest.raises(fault, match=words):
        write_as_read(spark, plan_of(tmp_path, source), files, DIRECTORY)
    assert list(files.list()) == []


def test_a_quarantine_that_cannot_be_written_is_no_fault_of_an_object(
    spark: SparkSession, tmp_path: Path, source: Path
) -> None:
    (tmp_path / "quarantine").touch()
    (source / "bad.jsonl").write_bytes(b"\xff\n")
    plan = plan_of(tmp_path, source)
    with pytest.raises(TemporaryError, match=str(tmp_path / "quarantine")):
        write_as_read(spark, plan, LocalFiles(tmp_path / "table"), DIRECTORY)


def test_an_attempt_of_a_task_that_was_given_up_leaves_files_that_nothing_names(
    spark: SparkSession, tmp_path: Path, source: Path
) -> None:
    plan = with_partitions(plan_of(tmp_path, source), 1)
    plan.save()
    files = LocalFiles(tmp_path / "table")
    writer = WriteTask.of(plan.options.columns, files=files, directory=DIRECTORY)
    task = DirectTask(plan=SavedPlan.load(plan.work), writer=replace(writer, row_group_bytes=1, file_bytes=1))
    small = replace(task.plan.options, block_bytes=1)  # a batch of each object, and so a file
    task = replace(task, plan=replace(task.plan, options=small))
    killed: Any = task.results(iter([numbers(0)]))
    (first,) = next(killed).to_pylist()
    killed.close()  # as when Spark ends a task for its speculative copy
    named = [row["path"] for batch in task.results(iter([numbers(0)])) for row in batch.to_pylist()]
    there = {file.path for file in files.list()}
    assert there > set(named)
    assert first["path"] in there - set(named)
    rows = pa.concat_tables([pq.read_table(files.root / path, partitioning=None) for path in named])
    assert sorted(rows["id"].to_pylist()) == list(range(8_000))
    assert summarise(plan).rows == 8_000


def numbers(*of_partitions: int) -> pa.RecordBatch:
    """Return what Spark passes to a task."""
    return pa.RecordBatch.from_pydict({"id": pa.array(of_partitions, pa.int64())})
