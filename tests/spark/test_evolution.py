"""A pipeline runs while its producers add, drop, rename and retype fields: no restart, and no value is lost.

The table and the quarantine are read with deltalake, and compared with the sources by an oracle of the tests.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from tests.property.evolution_walks import Line, check_values, columns_of
from tests.spark.test_app_pipeline import Shop

from penstock.events import BatchCommitted, Event, UnknownFieldsFound, WatchStarted
from penstock.operations.ingest.ingest import IngestReport, ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.worker.shutdown import StopSignal

PATIENCE_SECONDS = 400.0
DDL = "id bigint, v double, s string, at timestamp"


def schemas() -> Iterator[Callable[[int], dict[str, str]]]:
    """Yield what the producer writes for a row, as the text of each field; each schema differs from the one before."""
    yield lambda n: {"id": f"{n}", "v": "1.50", "s": '"a"', "at": '"2024-05-06T07:08:09Z"'}
    yield lambda n: {"id": f"{n}", "v": "1.50", "s": '"a"', "at": '"2024-05-06T07:08:09Z"', "added": f"{n}"}
    yield lambda n: {"id": f"{n}", "v": '"text"', "s": '"a"', "added": f"{n}"}  # retyped, dropped
    yield lambda n: {"id": f"{n}", "value": "2.5", "s": '"a"', "added": '"text"'}  # renamed; retyped after it was added
    yield lambda n: {"id": f"{n}", "value": "2", "tags": '["x", "y"]', "place": '{"city":"B","zip":1}'}
    yield lambda n: {"id": f"{n}", "place": '{"city":"B","zip":1,"land":"D"}', "big": "12345678901234567890123"}
    yield lambda n: {"id": f'"{n}"', "ID2": "true", "_offset": "1", "é x": "null"}


class Producer:
    """Writes objects, and knows the text of each value."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects: dict[str, list[Line]] = {}

    def write(self, fields_of: Callable[[int], dict[str, str]]) -> None:
        number = len(self.objects)
        lines = [self._line(fields_of(number * 10 + row)) for row in range(3)]
        if number % 4 == 0:
            lines.append(Line(None, "no json"))
        path = self.folder / f"{number:03}.jsonl"
        (self.folder / ".writing").write_text("".join(f"{line.raw}\n" for line in lines))
        (self.folder / ".writing").rename(path)
        self.objects[path.resolve().as_uri()] = lines

    def check(self, table: Path, quarantine: Path) -> None:
        """Check that each value of each object is in a column, in _rescued, or in a quarantined line."""
        rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
        bad = DeltaTable(str(quarantine)).to_pyarrow_table().to_pylist()
        for uri, lines in self.objects.items():
            numbers = _numbers(lines)
            of_object = [row for row in rows if row["_object"] == uri]
            check_values(
                lines,
                {numbers[row["_offset"]]: _without_provenance(row) for row in of_object},
                {numbers[row["offset"]]: row["raw"] for row in bad if row["object"] == uri},
                csv=False,
            )

    @staticmethod
    def _line(fields: dict[str, str]) -> Line:
        return Line(fields, "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in fields.items()) + "}")


def _without_provenance(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("_object", "_offset")}


def _numbers(lines: Sequence[Line]) -> dict[int, int]:
    numbers, at = {}, 0
    for number, line in enumerate(lines):
        numbers[at] = number
        at += len(line.raw.encode()) + 1
    return numbers


class Watching:
    """A watching ingest in a thread."""

    def __init__(self, request: IngestRequest, spark: SparkSession) -> None:
        self.stop = StopSignal()
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self._result: list[IngestReport | BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(request, spark), daemon=True)
        self._thread.start()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition() or bool(self._result), PATIENCE_SECONDS)

    def objects_done(self) -> int:
        return sum(event.objects for event in self.events if isinstance(event, BatchCommitted))

    def end(self) -> IngestReport:
        self.stop.request()
        self._thread.join(PATIENCE_SECONDS)
        (result,) = self._result
        if isinstance(result, BaseException):
            raise result
        return result

    def _run(self, request: IngestRequest, spark: SparkSession) -> None:
        try:
            self._result.append(ingest(request, stop=self.stop, spark=spark, listeners=(self._hear,)))
        except BaseException as failure:
            self._result.append(failure)
        self._hear(Event())

    def _hear(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()


@pytest.mark.parametrize("evolve", ["add", "rescue"])
def test_a_running_pipeline_follows_its_producers_and_loses_no_value(
    tmp_path: Path, spark: SparkSession, evolve: str
) -> None:
    producer = Producer(tmp_path / "in")
    producer.folder.mkdir()
    table = tmp_path / "t"
    request = IngestRequest(
        source=str(producer.folder), table=str(table), schema=DDL, evolve=evolve, watch=True, settle_seconds=0.2
    )
    watching = Watching(request, spark)
    watching.wait_for(lambda: any(isinstance(event, WatchStarted) for event in watching.events))
    for schema in schemas():
        for _ in range(4):
            producer.write(schema)
        watching.wait_for(lambda: watching.objects_done() == len(producer.objects))
    report = watching.end()
    producer.check(table, tmp_path / "t_quarantine")
    assert (report.objects_processed, report.objects_dead) == (28, 0)
    assert report.lines_quarantined == 7
    assert any(isinstance(event, UnknownFieldsFound) for event in watching.events)
    added = {"added": "long", "value": "double", "tags": "array", "place": "struct", "ID2": "boolean"}
    assert columns_of(table, declared=("id", "v", "s", "at")) == (
        added | {"big": "decimal(38,0)"} if evolve == "add" else {}
    )
    assert report.unknown_fields.keys() >= ({"_offset", "place.land"} if evolve == "add" else added.keys())


def test_new_columns_reach_the_transform(tmp_path: Path, spark: SparkSession) -> None:
    seen: list[list[str]] = []

    def recorded(frame: DataFrame) -> DataFrame:
        seen.append(frame.columns)
        return frame

    shop = Shop(tmp_path, transform=recorded, evolve="add")
    shop.write("a.jsonl", [{"id": 1, "v": 1.0, "more": "x"}])
    report = shop.clicks.run(spark, source=shop.landing, available_now=True)
    shop.write("b.jsonl", [{"id": 2, "more": "y"}])
    shop.clicks.run(spark, source=shop.landing, available_now=True)
    assert [("more" in columns) for columns in seen] == [False, True, True]
    rows: list[dict[str, Any]] = DeltaTable(str(shop.table)).to_pyarrow_table().to_pylist()
    assert {row["id"]: row["more"] for row in rows} == {1: "x", 2: "y"}
    assert all(row["_rescued"] is None for row in rows)
    assert report.unknown_fields == {}
    shop.close()


def test_an_object_with_an_unknown_field_fails_alone_and_says_where(tmp_path: Path, spark: SparkSession) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.jsonl").write_text('{"id": 1}\n')
    (source / "b.jsonl").write_text('{"id": 2}\n{"id": 3, "x": 1}\n')
    failures: list[str] = []
    report = ingest(
        IngestRequest(source=str(source), table=str(tmp_path / "t"), schema="id long", evolve="fail"),
        stop=StopSignal(),
        spark=spark,
        listeners=[lambda event: failures.append(getattr(event, "reason", ""))],
    )
    assert (report.objects_processed, report.objects_dead, report.rows_written) == (1, 1, 1)
    assert any("has the field 'x', first in the line at byte 10" in reason for reason in failures)
