"""Rows merged by key, on Spark: a run folds its batch, and the table has the last row of each key."""

import json
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.services.aws_server import AwsServer, client_at

from penstock import Merge
from penstock.config import Settings
from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.operations.ingest.ingest import IngestReport, ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.pipeline.spark.fold import DELETES, folded
from penstock.sinks.partitions import NULL_PARTITION
from penstock.worker.shutdown import StopSignal

MERGE = Merge(key=["id"], order_by="at", delete_when="op = 'D'", drop=["op"])
SCHEMA = "id bigint, at bigint, op string, day string, value double"

Load = Callable[..., IngestReport]


@pytest.fixture
def load(tmp_path: Path, spark: SparkSession) -> Load:
    (tmp_path / "in").mkdir()

    def call(**options: Any) -> IngestReport:
        options = {"table": str(tmp_path / "t"), "merge": MERGE, **options}
        request = IngestRequest(source=str(tmp_path / "in"), schema=SCHEMA, **options)
        return ingest(request, stop=StopSignal(), spark=spark)

    return call


def write(folder: Path, name: str, *rows: tuple[Any, ...]) -> None:
    names = ("id", "at", "op", "day", "value")
    (folder / "in" / name).write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))


def rows_in(table: Path) -> list[tuple[Any, ...]]:
    found = DeltaTable(table).to_pyarrow_table()
    assert "op" not in found.column_names
    return sorted(tuple(row.values()) for row in found.select(["id", "at", "day", "value"]).to_pylist())


def test_the_last_row_of_each_key_is_in_the_table(tmp_path: Path, load: Load) -> None:
    write(tmp_path, "a.jsonl", (1, 1, "I", "mon", 1.0), (1, 2, "U", "tue", 1.5), (2, 1, "I", "mon", 2.0))
    write(tmp_path, "b.jsonl", (3, 1, "I", "mon", 3.0), (3, 5, "D", None, None), (4, None, "I", "mon", 4.0))
    first = load(partition_by=("day",))
    assert rows_in(tmp_path / "t") == [(1, 2, "tue", 1.5), (2, 1, "mon", 2.0), (4, None, "mon", 4.0)]
    assert first.merged_rows == {"inserted": 3, "updated": 0, "deleted": 0, "left_out": 0}

    write(tmp_path, "c.jsonl", (1, 1, "U", "mon", 9.0), (3, 4, "U", "mon", 9.0))  # both are older
    write(tmp_path, "d.jsonl", (2, 7, "D", None, None), (4, 0, "U", "wed", 4.5), (5, 1, "I", "mon", 5.0))
    second = load(partition_by=("day",))
    assert rows_in(tmp_path / "t") == [(1, 2, "tue", 1.5), (4, 0, "wed", 4.5), (5, 1, "mon", 5.0)]
    assert second.merged_rows == {"inserted": 1, "updated": 1, "deleted": 1, "left_out": 2}
    assert not list((tmp_path / "t" / "data").rglob("penstock_deletes=true/**/*.parquet"))


def test_a_changed_file_adds_its_rows_to_the_merge(tmp_path: Path, load: Load) -> None:
    write(tmp_path, "a.jsonl", (1, 1, "I", "mon", 1.0), (2, 1, "I", "mon", 2.0))
    load()
    write(tmp_path, "a.jsonl", (1, 2, "U", "tuesday", 1.5))
    report = load()
    assert (report.objects_processed, report.objects_changed, report.replaced_objects) == (1, 0, 0)
    assert rows_in(tmp_path / "t") == [(1, 2, "tuesday", 1.5), (2, 1, "mon", 2.0)]


def test_objects_with_a_null_or_empty_key_fail_and_the_others_are_merged(tmp_path: Path, load: Load) -> None:
    write(tmp_path, "a.jsonl", (1, 1, "I", "mon", 1.0), (None, 1, "I", "mon", 2.0))
    write(tmp_path, "b.jsonl", (3, 1, "I", "mon", 3.0))
    write(tmp_path, "c.jsonl", (4, 1, "I", "", 4.0))
    report = load(merge=Merge(key=["id", "day"], order_by="at", drop=["op"]), partition_by=("day",))
    assert (report.objects_processed, report.objects_dead) == (1, 2)
    for name, why in (("a", "the key column id is null"), ("c", "the key column day is an empty string")):
        with closing(Ledger.open(tmp_path / "t" / "_penstock" / "ledger.db")) as ledger:
            ((_, failed),) = ledger.find(f"file://{tmp_path}/in/{name}.jsonl")
        assert f"{why} in a row of file://{tmp_path}/in/{name}.jsonl" in str(failed.reason)
    assert rows_in(tmp_path / "t") == [(3, 1, "mon", 3.0)]


def test_a_run_with_another_merge_is_refused(tmp_path: Path, load: Load) -> None:
    write(tmp_path, "a.jsonl", (1, 1, "I", "mon", 1.0))
    load()
    for other in (None, Merge(key=["id"], order_by="day")):
        with pytest.raises(UsageError, match=r"are merged by key as in .* load into a new table"):
            load(merge=other)
    with pytest.raises(UsageError, match="--merge-key and --on-change replace"):
        load(on_change="replace")


@pytest.mark.slow  # quick: the tests with a folder
@pytest.mark.parametrize("scheme", ["", "iceberg:"])
def test_a_table_in_s3_is_merged(tmp_path: Path, load: Load, moto: AwsServer, scheme: str) -> None:
    bucket = f"lake-{len(scheme)}"
    client_at(moto.url, "s3").create_bucket(Bucket=bucket)
    settings = Settings(aws_endpoint_url=moto.url, aws_region=moto.aws.region, one_host=True)
    in_s3 = partial(load, table=f"{scheme}s3://{bucket}/t", state=str(tmp_path / "state"), settings=settings)
    write(tmp_path, "a.jsonl", (1, 1, "I", "mon", 1.0), (2, 5, "D", None, None), (3, 1, "I", "mon", 3.0))
    assert in_s3(partition_by=("day",)).merged_rows["inserted"] == 2
    write(tmp_path, "b.jsonl", (1, 2, "U", "tue", 1.5), (2, 4, "I", "mon", 2.0), (3, 2, "D", None, None))
    assert in_s3(partition_by=("day",)).merged_rows == {"inserted": 0, "updated": 1, "deleted": 1, "left_out": 1}


@pytest.mark.parametrize(
    ("merge", "says"),
    [
        (Merge(key=["no"], order_by="at"), "The merge names no, and the rows have id"),
        (Merge(key=["value"], order_by="at"), "The column value is double, which cannot be a key"),
        (Merge(key=["id"], order_by="at", delete_when="op ="), "is not a condition on the rows"),
        (Merge(key=["id"], order_by="at", delete_when="op"), "is a string and not a condition"),
    ],
)
def test_a_merge_that_does_not_fit_the_rows_is_refused(tmp_path: Path, load: Load, merge: Merge, says: str) -> None:
    write(tmp_path, "a.jsonl", (1, 1, "I", "mon", 1.0))
    with pytest.raises(UsageError, match=says):
        load(merge=merge)


@pytest.mark.parametrize(
    "condition",
    [
        "max(at) > 1",
        "row_number() over (partition by id order by at) = 2",
        "count(*) over () > 2",
        "rand() < 0.5",
        "op = 'D' or uuid() = 'x'",
        "expires < current_timestamp()",
        "expires < CURRENT_TIMESTAMP",
        "expires < now ()",
        "unix_timestamp() > at",
        "at in (select 1)",
    ],
)
def test_a_condition_on_more_than_one_row_is_refused(spark: SparkSession, condition: str) -> None:
    frame = spark.sql("select 1 id, 1L at, 'D' op, timestamp'2026-01-01' expires")
    with pytest.raises(UsageError, match=r"does not depend on the values of one row alone: leave out"):
        folded(frame, Merge(key=["id"], order_by="at", delete_when=condition))


def test_conditions_on_one_row_are_kept(spark: SparkSession) -> None:
    frame = spark.sql("select 1 id, 1L at, 'now()' op, 'x' user, named_struct('now', 1) before")
    condition = "op = 'now()' and user = 'x' and before.now = 1 and at < unix_timestamp(timestamp'2026-01-01')"
    (row,) = folded(frame, Merge(key=["id"], order_by="at", delete_when=condition)).collect()
    assert row[DELETES] == "true"


@pytest.mark.parametrize(("key", "order_by"), [("id", "at"), ("at", "id")])
def test_a_key_or_an_order_with_a_collation_is_refused(spark: SparkSession, key: str, order_by: str) -> None:
    frame = spark.sql("select 'a' collate UTF8_LCASE id, 1L at")
    with pytest.raises(UsageError, match="The column id of the merge has the collation UTF8_LCASE"):
        folded(frame, Merge(key=[key], order_by=order_by))
    folded(frame.selectExpr("cast(id as string collate UTF8_BINARY) id", "at"), Merge(key=[key], order_by=order_by))


@pytest.mark.parametrize(("part", "named"), [("", "an empty string"), (NULL_PARTITION, NULL_PARTITION)])
def test_a_string_like_null_fails_in_a_key_that_the_table_is_partitioned_by(
    spark: SparkSession, part: str, named: str
) -> None:
    """Names of folders do not tell it from null."""
    frame = spark.sql(f"select '{part}' part, 1L at, 'file:///a' _object")
    merge = Merge(key=["part"], order_by="at")
    says = f"the key column part is {named} in a row of file:///a, which a table partitioned by this column"
    with pytest.raises(PySparkException, match=says):
        folded(frame, merge, ["part"]).collect()
    for other in ([], ["at"], ["truncate(2, part)"]):
        assert folded(frame, merge, other).count() == 1


def test_an_empty_string_is_as_old_as_null_in_an_order_that_the_table_is_partitioned_by(spark: SparkSession) -> None:
    """The table stores both as null, so two batches could not tell them apart either."""
    rows = [(1, "", 1), (1, None, 2), (1, NULL_PARTITION, 5), (2, "a", 3), (2, "", 4)]
    frame = spark.createDataFrame(rows, "id int, part string, value int")
    merge = Merge(key=["id"], order_by="part")
    found = {row["value"]: row["part"] for row in folded(frame, merge, ["part"]).collect()}
    assert found == {1: None, 2: None, 5: None, 3: "a"}
