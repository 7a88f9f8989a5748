"""The data source inside Spark: its reports are right for every kind of query."""

import bz2
import gzip
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # as everybody calls it
from pyspark.sql.types import StructType

from penstock.errors import TemporaryError
from penstock.objects.local_store import LocalStore
from penstock.pipeline.spark.arrow_writer import arrow_schema
from penstock.pipeline.spark.faults import SPARK_ERRORS, explain
from penstock.pipeline.spark.source import datasource
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions
from penstock.pipeline.spark.source.plan import Piece, ReadPlan, make_plan
from penstock.pipeline.spark.source.summary import summarise
from penstock.storage.aws import Aws
from penstock.storage.local import LocalFiles

DDL = "id bigint, v double, ts timestamp, d date, s string, n decimal(8,2), l array<date>, o struct<k: int, w: string>"


def line(number: int) -> bytes:
    return (
        b'{"id":%d,"v":0.5,"ts":"2024-05-06T07:08:09+01:00","d":"2024-05-06","s":"\xc3\xa9","n":1.5,'
        b'"l":["2024-01-01",null],"o":{"k":1,"w":"x"}}\n' % number
    )


def plan_of(tmp_path: Path, source: Path, *, ddl: str = DDL, cores: int = 2, **options: object) -> ReadPlan:
    store = LocalStore(source)
    plan = make_plan(
        [store.describe(path) for path in sorted(source.iterdir(), key=os.fsencode)],
        attempt_id="A",
        run=1,
        options=ReadOptions(schema_ddl=ddl, **options),  # type: ignore[arg-type] # the caller's options, by name
        cores=cores,
        source=str(source),
        aws=Aws(),
        quarantine=LocalFiles(tmp_path / "quarantine"),
        work=LocalFiles(tmp_path / "work"),
    )
    plan.save()
    return plan


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number:02}.jsonl").write_bytes(line(2 * number) + b"\xff\n" * (number == 3) + line(2 * number + 1))
    return folder


def test_rows_arrive_typed_and_know_where_they_came_from(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    with (source / os.fsdecode(b"caf\xe9 %2F.jsonl.GZ")).open("wb") as file:
        file.write(gzip.compress(line(100)) + gzip.compress(b"x\n" + line(101)))
    plan = plan_of(tmp_path, source)
    rows = datasource.read(spark, plan)
    assert rows.schema.fields[:-2] == struct(DDL).fields
    found = rows.orderBy("id").collect()
    assert [row.id for row in found] == [*range(40), 100, 101]
    assert found[0].asDict(recursive=True) | {"ts": None, "d": None, "l": None} == {
        "id": 0,
        "v": 0.5,
        "ts": None,
        "d": None,
        "s": "é",
        "n": found[0].n,
        "l": None,
        "o": {"k": 1, "w": "x"},
        "_object": f"file://{source}/00.jsonl",
        "_offset": 0,
    }
    assert str(found[0].n) == "1.50"
    assert [str(day) for day in found[0].l] == ["2024-01-01", "None"]
    assert found[41]._offset == len(line(100)) + 2
    texts = rows.where("id = 100").select(F.col("ts").cast("string"), F.col("d").cast("string"), "_object").first()
    assert texts is not None
    assert (texts.ts, texts.d) == ("2024-05-06 06:08:09", "2024-05-06")
    assert texts._object.endswith("caf\\xe9 %2F.jsonl.GZ")
    summary = summarise(plan)
    assert (summary.rows, summary.lines_quarantined, summary.missing) == (42, 2, ())


def struct(ddl: str) -> StructType:
    """Parse schema text with Spark."""
    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    return parsed


def test_spark_reads_our_schema_text_as_we_do(spark: SparkSession) -> None:
    ddl = (
        "a tinyint, b SMALLINT COMMENT 'text', c: int, `odd ``name` bigint, e float, f real, g dec(5), h numeric(7,3), "
        "i array<array<string>>, j struct<x: timestamp_ntz, y array<date>>, k boolean, l timestamp_ltz, m long"
    )
    theirs, ours = struct(ddl), struct(datasource.canonical_ddl(ddl))
    assert [(field.name, field.dataType) for field in ours] == [(field.name, field.dataType) for field in theirs]
    assert arrow_schema(theirs) == parse_ddl(ddl), "what the reader decodes to is what Spark understands"


TRANSFORMS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "sorts": lambda rows: rows.orderBy("v", "id"),
    "joins itself": lambda rows: rows.alias("a").join(rows.alias("b"), "id").select("a.*"),
    "counts first": lambda rows: rows.where(F.lit(rows.count() > 0)),
    "limits": lambda rows: rows.limit(3),
    "filters all out": lambda rows: rows.where(F.lit(False)),
    "filters all out by value": lambda rows: rows.where("id < 0"),
    "limits and joins": lambda rows: rows.limit(2).union(rows),
    "aggregates": lambda rows: rows.groupBy("v").count(),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_reports_are_right_whatever_the_transform_does(
    spark: SparkSession, tmp_path: Path, source: Path, name: str
) -> None:
    plan = plan_of(tmp_path, source, cores=2)
    plan = with_partitions(plan, 4)
    plan.save()
    TRANSFORMS[name](datasource.read(spark, plan)).write.format("noop").mode("append").save()
    missing = summarise(plan).missing
    assert (len(missing) == 4) == (name == "filters all out")
    datasource.drain(spark, plan, missing)
    summary = summarise(plan)
    assert (summary.missing, dict(summary.failures), dict(summary.exclude)) == ((), {}, {})
    assert (summary.rows, summary.lines_quarantined, len(summary.readings)) == (40, 1, 20)
    [file] = summary.quarantine
    [bad] = spark.read.parquet(str(tmp_path / "quarantine" / file.path)).collect()
    assert (bad.object, bad.offset, bytes(bad.raw), bad.reason) == (
        f"file://{source}/03.jsonl",
        len(line(6)),
        b"\xff",
        "invalid UTF-8",
    )
    assert (file.rows, file.path.startswith("data/A/r1/")) == (1, True)


def with_partitions(plan: ReadPlan, count: int) -> ReadPlan:
    """Return the plan with more partitions than its few bytes would get."""
    parts: list[list[Piece]] = [[] for _ in range(count)]
    for index, ref in enumerate(plan.objects):
        parts[index % count].append(Piece(object=index, start=0, stop=ref.size_bytes))
    values = {name: getattr(plan, name) for name in plan.__slots__}
    return ReadPlan(**values | {"partitions": tuple(map(tuple, parts))})


@pytest.mark.parametrize("place", ["work", "quarantine"])
def test_an_unusable_folder_is_not_blamed_on_an_object_or_a_transform(
    spark: SparkSession, tmp_path: Path, source: Path, place: str
) -> None:
    plan = plan_of(tmp_path, source)
    folder = tmp_path / place
    if folder.exists():
        folder.rename(tmp_path / "moved")
    folder.touch()
    with pytest.raises(SPARK_ERRORS) as raised:
        datasource.read(spark, plan).count()
    explained = explain(raised.value)
    assert isinstance(explained, TemporaryError)
    assert f"{folder}" in str(explained)


def test_a_bad_object_leaves_its_siblings_alone(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    (source / "98.jsonl.gz").write_bytes(gzip.compress(line(1) * 50)[:-9])
    (source / "99.jsonl").write_bytes(line(1))
    plan = plan_of(tmp_path, source)
    (source / "99.jsonl").unlink()
    (source / "05.jsonl").write_bytes(b"{}\n")
    assert datasource.read(spark, plan).count() == 38
    summary = summarise(plan)
    assert {index: failure.kind.value for index, failure in summary.failures.items()} == {
        5: "superseded",
        20: "corrupt",
        21: "gone",
    }
    assert "truncated gzip" in summary.failures[20].reason
    assert (len(summary.readings), dict(summary.exclude)) == (19, {})


def test_a_split_object_is_read_exactly_once(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "big.jsonl").write_bytes(b"".join(line(number) for number in range(150_000)))
    plan = plan_of(tmp_path, source, cores=4)
    assert len(plan.partitions) > 2
    rows = datasource.read(spark, plan)
    totals = rows.agg(F.count("*"), F.sum("id"), F.countDistinct("_offset")).first()
    assert tuple(totals or ()) == (150_000, 150_000 * 149_999 // 2, 150_000)
    assert summarise(plan).readings[0].rows == 150_000


def test_row_53_a_line_of_50_mb_is_a_row(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "long.jsonl").write_bytes(line(1) + b'{"s":"' + b"x" * 50_000_000 + b'"}\n' + line(2))
    plan = plan_of(tmp_path, source)
    rows = datasource.read(spark, plan).select(F.length("s").alias("n"), "_offset").orderBy("_offset")
    assert [(row.n, row._offset) for row in rows.collect()] == [
        (1, 0),
        (50_000_000, len(line(1))),
        (1, len(line(1)) + 50_000_009),
    ]
    assert summarise(plan).rows == 3


def test_five_thousand_small_objects_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(5_000):
        (source / f"{number:04}.jsonl").write_bytes(line(number) + (b"" if number % 2 else b"no\n") + line(number)[:-1])
    plan = plan_of(tmp_path, source, ddl="id bigint")
    rows = datasource.read(spark, plan)
    totals = rows.agg(F.count("*"), F.countDistinct("_object"), F.sum("id")).first()
    assert tuple(totals or ()) == (10_000, 5_000, 5_000 * 4_999)
    summary = summarise(plan)
    assert (len(summary.readings), summary.rows, summary.lines_quarantined) == (5_000, 10_000, 2_500)


def test_without_provenance_rows_are_as_declared(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    plan = plan_of(tmp_path, source, ddl="id int", provenance=False)
    rows = datasource.read(spark, plan)
    assert rows.columns == ["id"]
    assert rows.count() == 40


def test_an_empty_plan_yields_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    plan = plan_of(tmp_path, source)
    assert datasource.read(spark, plan).count() == 0
    assert summarise(plan).missing == ()


CSV_DDL = "id bigint, v double, ts timestamp, d date, s string, n decimal(8,2)"
HEADER = b"id,v,ts,d,s,n,x\n"
SQUEEZES: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def csv_line(number: int) -> bytes:
    return b'%d,0.5,2024-05-06T07:08:09.123456789+01:00,2024-05-06,"\xc3\xa9, ""%d""",1.5,\n' % (number, number)


def text_line(number: int) -> bytes:
    return b"line %d\n" % number


@pytest.mark.parametrize(
    ("form", "suffix"),
    [
        *(("csv", suffix) for suffix in SQUEEZES),  # the decompression is the same for every format
        ("jsonl", ".gz"),
        ("text", ".zst"),
        *(pytest.param("jsonl", suffix, marks=pytest.mark.slow) for suffix in SQUEEZES if suffix != ".gz"),
        *(pytest.param("text", suffix, marks=pytest.mark.slow) for suffix in SQUEEZES if suffix != ".zst"),
    ],
)
def test_every_format_is_read_in_every_compression(spark: SparkSession, tmp_path: Path, form: str, suffix: str) -> None:
    source = tmp_path / "in"
    source.mkdir()
    write = {"jsonl": line, "csv": csv_line, "text": text_line}[form]
    head = HEADER if form == "csv" else b""
    for part in range(3):
        data = head + write(2 * part) + b"\xff\n" + write(2 * part + 1)
        (source / f"{part}.{form}{suffix}").write_bytes(SQUEEZES[suffix](data))
    plan = plan_of(tmp_path, source, ddl={"jsonl": DDL, "csv": CSV_DDL, "text": ""}[form], format=form)
    rows = datasource.read(spark, plan).orderBy("_object", "_offset").collect()
    second = len(head + write(0)) + 2
    assert [row._offset for row in rows[:2]] == [len(head), second]
    if form == "text":
        assert [row.value for row in rows] == [f"line {number}" for number in range(6)]
    else:
        assert [row.id for row in rows] == list(range(6))
        assert (rows[1].v, str(rows[1].n), str(rows[1].d)) == (0.5, "1.50", "2024-05-06")
    if form == "csv":
        assert (rows[1].s, rows[1].ts.microsecond) == ('é, "1"', 123456)
    summary = summarise(plan)
    assert (summary.rows, summary.lines_quarantined, dict(summary.failures)) == (6, 3, {})


def test_a_big_csv_is_read_in_pieces_that_all_know_its_header(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    count = 200_000
    (source / "big.csv").write_bytes(b"x,ID\n" + b"".join(b"%d,%d\n" % (-n, n) for n in range(count)))
    plan = plan_of(tmp_path, source, ddl="id bigint, gone string", format="csv")
    plan = with_pieces(plan, 5)
    plan.save()
    rows = datasource.read(spark, plan)
    totals = rows.agg(F.count("*"), F.sum("id"), F.countDistinct("_offset"), F.count("gone"), F.min("_offset")).first()
    assert tuple(totals or ()) == (count, count * (count - 1) // 2, count, 0, 5)
    assert summarise(plan).readings[0].rows == count


def with_pieces(plan: ReadPlan, count: int) -> ReadPlan:
    """Return the plan of one object with more pieces than its few bytes would get."""
    size = plan.objects[0].size_bytes
    edges = [size * number // count for number in range(count + 1)]
    pieces = [Piece(object=0, start=start, stop=stop) for start, stop in pairwise(edges)]
    values = {name: getattr(plan, name) for name in plan.__slots__}
    return ReadPlan(**values | {"partitions": tuple((piece,) for piece in pieces)})


def test_a_csv_object_that_was_cut_within_a_record_is_read_again_cut_at_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The piece that begins inside quotes yields false rows at first, which the driver discards."""
    folder = tmp_path / "in"
    folder.mkdir()
    record = b'1,"first\n' + b"99,false\n" * 100_000 + b'last"\n'
    (folder / "a.csv").write_bytes((record + b"2,fine\n") * 13)
    ddl, csv = "id bigint, s string", CsvOptions(header=False)
    plan = plan_of(tmp_path, folder, ddl=ddl, format="csv", csv=csv)
    assert plan.cuts_are_guesses
    datasource.read(spark, plan).write.format("noop").mode("append").save()
    recut = summarise(plan).recut
    assert list(recut) == [0]
    again = make_plan(
        plan.objects,
        attempt_id="A",
        run=2,
        options=plan.options,
        cores=2,
        source=plan.source,
        aws=Aws(),
        quarantine=plan.quarantine,
        work=LocalFiles(tmp_path / "again"),
        cuts=recut,
    )
    again.save()
    rows = datasource.read(spark, again).select("id", "_offset").collect()
    begins = [(len(record) + 7) * number for number in range(13)]
    assert sorted((row._offset, row.id) for row in rows) == [
        each for begin in begins for each in ((begin, 1), (begin + len(record), 2))
    ]
    summary = summarise(again)
    assert (summary.rows, summary.lines_quarantined, dict(summary.recut)) == (26, 0, {})
