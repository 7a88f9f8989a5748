"""Debezium's and DMS's events become rows, an operation and a position that sorts changes as the database made them.

The events have the shapes of the connectors' pages (see penstock.pipeline.spark.change_data), shortened.
"""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.config import Settings
from penstock.errors import UsageError
from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.transforms import Debezium, debezium, debezium_flattened, dms
from penstock.worker.shutdown import StopSignal

COLUMNS = "id BIGINT, name STRING"
OBJECT = "file:///landing/a.jsonl"
UNAVAILABLE = "__debezium_unavailable_value"
Event = Mapping[str, Any]
Row = dict[str, Any]


def frame(spark: SparkSession, ddl: str, events: Sequence[Event]) -> DataFrame:
    """Return the events as the source reads them: string columns take objects as their text."""
    lines = [json.dumps({**event, "_object": OBJECT, "_offset": place}) for place, event in enumerate(events)]
    context = spark.sparkContext
    return spark.read.schema(f"{ddl}, _object STRING, _offset BIGINT").json(context.parallelize(lines, 1))


def event(op: str | None, source: Event, before: Event | None = None, after: Event | None = None) -> Row:
    return {
        "before": before,
        "after": after,
        "source": source,
        "op": op,
        "ts_ms": 1_465_491_411_815,
        "transaction": None,
    }


def rows(found: DataFrame) -> list[Row]:
    return [row.asDict(recursive=True) for row in found.orderBy("_offset").collect()]


def shuffled_in_order(found: Sequence[Row]) -> list[int]:
    """Return the places of rows sorted by their position."""
    other = random.Random(1).sample(found, len(found))
    return [row["_offset"] for row in sorted(other, key=lambda row: row["_position"])]


# Debezium's envelope

POSTGRESQL = [
    event("r", {"connector": "postgresql", "snapshot": "first", "lsn": 999}, after={"id": 1, "name": "a"}),
    event("c", {"connector": "postgresql", "snapshot": "false", "lsn": 24_023_128}, after={"id": 2, "name": "b"}),
    event("u", {"lsn": 24_023_129}, before={"id": 2}, after={"id": 2, "name": None}),
    event("d", {"lsn": 100_000_000_000}, before={"id": 2, "name": None}),
]
MYSQL = [
    event("r", {"file": "mysql-bin.999999", "pos": 4, "row": 0}, after={"id": 3, "name": "c"}),
    event("c", {"file": "mysql-bin.999999", "pos": 484, "row": 0}, after={"id": 4, "name": "d"}),
    event("c", {"file": "mysql-bin.999999", "pos": 484, "row": 10}, after={"id": 5, "name": "e"}),
    event("u", {"file": "mysql-bin.999999", "pos": 1000, "row": 2}, after={"id": 5, "name": "E"}),
    event("d", {"file": "mysql-bin.1000000", "pos": 154, "row": 0}, before={"id": 5, "name": "E"}),
]
SQLSERVER = [
    event("r", {"commit_lsn": "00000027:00000758:0005", "change_lsn": None}, after={"id": 6, "name": "f"}),
    event(
        "c",
        {"commit_lsn": "00000027:00000758:0005", "change_lsn": "00000027:00000758:0003", "event_serial_no": 1},
        after={"id": 7, "name": "g"},
    ),
    event(
        "u",
        {"commit_lsn": "00000027:00000758:0005", "change_lsn": "00000027:00000758:0003", "event_serial_no": 2},
        after={"id": 7, "name": "G"},
    ),
    event(
        "d",
        {"commit_lsn": "00000027:00000ac0:0002", "change_lsn": "00000027:00000ac0:0001", "event_serial_no": 1},
        before={"id": 7, "name": "G"},
    ),
]
ORACLE = [
    event("r", {"scn": "2122185"}, after={"id": 8, "name": "h"}),
    # Changed before the snapshot and committed after it, so the snapshot does not have it.
    event("u", {"scn": "2122100", "commit_scn": "2122190"}, after={"id": 8, "name": "H"}),
    event("d", {"scn": "12122195", "commit_scn": "12122199"}, before={"id": 8, "name": "H"}),
]
CONNECTORS = {"postgresql": POSTGRESQL, "mysql": MYSQL, "sqlserver": SQLSERVER, "oracle": ORACLE}


def expected(events: Sequence[Event]) -> list[Row]:
    return [
        {
            "id": (one["before"] if one["op"] == "d" else one["after"])["id"],
            "name": (one["before"] if one["op"] == "d" else one["after"]).get("name"),
            "_object": OBJECT,
            "_offset": place,
            "_op": one["op"],
        }
        for place, one in enumerate(events)
    ]


@pytest.mark.parametrize("wrapped", [False, True])
def test_envelopes_of_all_connectors(spark: SparkSession, wrapped: bool) -> None:
    events = [one for events in CONNECTORS.values() for one in events]
    given = [{"schema": {"type": "struct"}, "payload": one} for one in events] if wrapped else events
    found = rows(debezium(frame(spark, debezium.schema(COLUMNS, wrapped=wrapped), given)))
    assert list(found[0]) == ["id", "name", "_object", "_offset", "_op", "_position"]
    assert [{name: value for name, value in row.items() if name != "_position"} for row in found] == expected(events)
    begin = 0
    for name, of_connector in CONNECTORS.items():
        end = begin + len(of_connector)
        assert (name, shuffled_in_order(found[begin:end])) == (name, [*range(begin, end)])
        begin = end


def test_a_source_block_that_is_a_struct_and_the_order_by_time(spark: SparkSession) -> None:
    ddl = debezium.schema(COLUMNS).replace("source STRING", "source STRUCT<ts_ms: BIGINT, lsn: BIGINT>")
    events = [
        event("c", {"ts_ms": 10, "lsn": 7}, after={"id": 1}),
        event("u", {"ts_ms": 9, "lsn": 8}, after={"id": 1}),
        event("u", {"ts_ms": 10, "lsn": 9}, after={"id": 1}),
    ]
    given = frame(spark, ddl, events)
    assert shuffled_in_order(rows(debezium(given))) == [0, 1, 2]
    assert shuffled_in_order(rows(Debezium(order="time")(given))) == [1, 0, 2]


INFORMIX = {"connector": "informix", "commit_lsn": "7", "change_lsn": "8"}
REFUSED = [
    (event("t", {"lsn": 1}), "A truncate event (op t) deletes all rows"),
    (event("m", {"lsn": 1}), "Debezium's operation m is unknown"),
    (event(None, {"lsn": 1}), "A row has no Debezium operation"),
    (event("c", {"ts_ms": 5}, after={"id": 1}), "has no position in the database's log"),
    (event("c", INFORMIX, after={"id": 1}), "so its order is unknown"),
    (event("u", {"lsn": 1}, after={"id": 1, "name": UNAVAILABLE}), "REPLICA IDENTITY FULL"),
]


@pytest.mark.parametrize(("bad", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_an_event_that_cannot_be_merged_fails_with_a_sentence(spark: SparkSession, bad: Event, sentence: str) -> None:
    good = event("c", {"lsn": 2}, after={"id": 2, "name": "b"})
    with pytest.raises(PySparkException) as failed:
        rows(debezium(frame(spark, debezium.schema(COLUMNS), [good, bad])))
    assert sentence in str(failed.value)
    assert "USER_RAISED_EXCEPTION" in str(failed.value)  # an error of data, by which the object is isolated


def test_a_delete_may_lack_values_and_tombstones_may_be_left_out(spark: SparkSession) -> None:
    events: list[Event] = [
        {"payload": event("d", {"lsn": 1}, before={"id": 1, "name": UNAVAILABLE})},
        {"schema": None, "payload": None},
    ]
    found = rows(Debezium(ignore_tombstones=True)(frame(spark, debezium.schema(COLUMNS, wrapped=True), events)))
    assert [(row["id"], row["_op"]) for row in found] == [(1, "d")]


@pytest.mark.parametrize(
    ("ddl", "sentence"),
    [
        ("id BIGINT, __op STRING", "use debezium_flattened"),
        ("before STRING, after STRUCT<id: BIGINT>, source STRING, op STRING", "structs before and after"),
        ("before STRUCT<_op: INT>, after STRUCT<_op: INT>, source STRING, op STRING", "have the column _op"),
        ("before STRUCT<a: INT>, after STRUCT<a: INT>, source STRUCT<ts_ms: BIGINT>, op STRING", "none of the fields"),
    ],
)
def test_columns_of_another_shape_are_refused_before_a_job_runs(spark: SparkSession, ddl: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        debezium(spark.createDataFrame([], ddl))


@pytest.mark.slow  # the object is tried alone, and again
def test_only_the_object_with_such_an_event_fails(spark: SparkSession, tmp_path: Path) -> None:
    good = [event("c", {"lsn": 1}, after={"id": 1, "name": "a"}), event("u", {"lsn": 2}, after={"id": 1, "name": "A"})]
    files = {"good": good, "truncated": [event("c", {"lsn": 3}, after={"id": 3}), event("t", {"lsn": 4})]}
    for name, events in files.items():
        lines = "".join(f"{json.dumps(one)}\n" for one in events)
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{name}.jsonl").write_text(lines)
    report = ingest(
        IngestRequest(
            source=str(tmp_path / "in"),
            table=str(tmp_path / "customers"),
            schema=debezium.schema(COLUMNS),
            transform="penstock.transforms:debezium",
            merge=debezium.merge(key=["id"]),
            settings=Settings(objects_retry_base=0.05, objects_max_attempts=2),
        ),
        stop=StopSignal(),
        spark=spark,
    )
    assert [row["name"] for row in DeltaTable(str(tmp_path / "customers")).to_pyarrow_table().to_pylist()] == ["A"]
    assert (report.objects_processed, report.objects_dead) == (1, 1)


# Flattened by ExtractNewRecordState


def test_flattened_events(spark: SparkSession) -> None:
    ddl = f"{COLUMNS}, __op STRING, __deleted STRING, __table STRING, __source_file STRING, __pos BIGINT, __row INT"
    place = {"__source_file": "mysql-bin.000003", "__pos": 484, "__row": 0, "__table": "customers"}
    found = rows(
        debezium_flattened(
            frame(
                spark,
                ddl,
                [
                    {"id": 1, "name": "a", "__op": "c", "__deleted": "false", **place},
                    {"id": 1, "name": "A", "__op": "u", "__deleted": "false", **place, "__row": 1},
                    {"id": 1, "name": None, "__op": "d", "__deleted": "true", **place, "__pos": 1484},
                ],
            )
        )
    )
    assert list(found[0]) == ["id", "name", "_object", "_offset", "_op", "_position"]
    assert [(row["id"], row["name"], row["_op"]) for row in found] == [(1, "a", "c"), (1, "A", "u"), (1, None, "d")]
    assert shuffled_in_order(found) == [0, 1, 2]


def test_flattened_events_with_deleted_only_and_in_order_of_time(spark: SparkSession) -> None:
    ddl = f"{COLUMNS}, __deleted STRING, __source_ts_ms BIGINT"
    given = frame(
        spark,
        ddl,
        [
            {"id": 1, "name": "a", "__deleted": "false", "__source_ts_ms": 999},
            {"id": 1, "name": "a", "__deleted": "true", "__source_ts_ms": 1000},
        ],
    )
    found = rows(Debezium(flattened=True, order="time")(given))
    assert [row["_op"] for row in found] == ["u", "d"]
    assert shuffled_in_order(found) == [0, 1]
    with pytest.raises(UsageError, match=r"none orders changes.*add\.fields.*order='time'"):
        debezium_flattened(given)


def test_flattened_events_without_deletes_are_refused(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match=r"neither __op nor __deleted.*handling\.mode=rewrite"):
        debezium_flattened(spark.createDataFrame([], f"{COLUMNS}, __lsn BIGINT"))


def test_a_flattened_truncate_fails(spark: SparkSession) -> None:
    given = frame(spark, f"{COLUMNS}, __op STRING, __lsn BIGINT", [{"__op": "t", "__lsn": 4}])
    with pytest.raises(PySparkException, match="A truncate event"):
        rows(debezium_flattened(given))


# DMS


def test_files_of_dms_with_and_without_op(spark: SparkSession) -> None:
    started, later = "2026-01-01 10:00:00.000000", "2026-01-01 10:00:00.5"
    events = [
        {"id": 1, "name": "a", "dms_timestamp": started},  # of a full load without IncludeOpForFullLoad
        {"Op": "I", "id": 2, "name": "b", "dms_timestamp": started},
        {"Op": "U", "id": 1, "name": "A", "dms_timestamp": later},
        {"Op": "D", "id": 1, "name": "A", "dms_timestamp": later},  # of the same transaction
    ]
    found = rows(dms(frame(spark, dms.schema(COLUMNS), events)))
    assert list(found[0]) == ["id", "name", "_object", "_offset", "_op", "_position"]
    assert [(row["id"], row["_op"]) for row in found] == [(1, "I"), (2, "I"), (1, "U"), (1, "D")]
    assert shuffled_in_order(found) == [0, 1, 2, 3]


def test_parquet_files_of_dms_without_op_and_with_a_timestamp(spark: SparkSession) -> None:
    spark.createDataFrame([(1, "2026-01-01 10:00:00.000001")], "id BIGINT, at STRING").createOrReplaceTempView(
        "dms_rows"
    )
    given = spark.sql("SELECT id, CAST(at AS TIMESTAMP) AS DMS_Timestamp FROM dms_rows")
    (row,) = dms(given).collect()
    assert row.asDict() == {"id": 1, "_op": "I", "_position": "00001767261600000001"}


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"Op": "101", "id": 7, "dms_timestamp": "2026-01-01 10:00:00"}, "The column Op has 101"),
        ({"Op": "U", "id": 7, "dms_timestamp": "1-Jan-26"}, "The column dms_timestamp has 1-Jan-26"),
        ({"Op": "U", "id": 7}, "The column dms_timestamp has no value"),
    ],
)
def test_a_row_of_another_form_fails_with_a_sentence(spark: SparkSession, bad: Event, sentence: str) -> None:
    with pytest.raises(PySparkException, match=sentence):
        rows(dms(frame(spark, dms.schema(COLUMNS), [bad])))


@pytest.mark.parametrize(
    ("ddl", "sentence"),
    [("Op STRING, id BIGINT", "TimestampColumnName=dms_timestamp"), ("id INT, dms_timestamp DATE", "is of type date")],
)
def test_rows_without_a_usable_timestamp_are_refused(spark: SparkSession, ddl: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        dms(spark.createDataFrame([], ddl))
