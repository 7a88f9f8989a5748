"""The random schedules of objects that change, on a real Spark session: real files, Spark's runs, the same model.

See tests/simulation/changing.py. A schedule stops its workers at each step of Spark's runs, too: others run between the
read and the commit, and processes die there.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions
from tests.simulation import scheduler
from tests.simulation.changing import ChangingRunner, ChangingSchedule
from tests.simulation.changing_store import ChangingStore, Stored, StoreKind
from tests.simulation.merging import MERGE, MergingSchedule

from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.objects.local_store import reference
from penstock.objects.reference import ObjectRef
from penstock.pipeline.engine import Engine, RunRequest, RunResult
from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.quarantine_lines import QuarantineLines
from penstock.pipeline.spark.declaration import Declaration
from penstock.pipeline.spark.engine import SparkEngine
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.table_schema import Evolution, agreement
from penstock.sinks.registry import open_sink
from penstock.testing import FakeClock

FORMATS = ("delta", "iceberg")
CHUNK, CHUNKS = 10, 6  # schedules in one test, and tests for each format
GROWING = (6, 8)  # seeds
MERGED = 25  # schedules of rows that are merged by key, for each format
PATIENCE_SECONDS = 1_800.0


@dataclass(slots=True, kw_only=True)
class FolderStore(ChangingStore):
    """A folder. A file that is restored has its old time again."""

    known: dict[bytes, Stored] = field(default_factory=dict)

    def _ref(self, key: str, lines: Sequence[str]) -> ObjectRef:
        path = Path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / ".keep").touch()  # a folder without any file may be one that is not mounted
        self._write(path, lines, time_ns=next(self._numbers) * 1_000_000_000)
        return reference(os.fsencode(path), path.stat())

    def _set(self, key: str, stored: Stored | None) -> None:
        ChangingStore._set(self, key, stored)  # a class with slots has no super() of its own
        if stored is None:
            Path(key).unlink(missing_ok=True)
            return
        self.known[stored.ref.object_id] = stored
        hexadecimal, _, _ = (stored.ref.etag or "").partition("-")
        self._write(Path(key), stored.lines, time_ns=int(hexadecimal, 16))
        assert reference(os.fsencode(key), Path(key).stat()).object_id == stored.ref.object_id

    def _write(self, path: Path, lines: Sequence[str], *, time_ns: int) -> None:
        """Put the whole file in place at once, as a program does whose readers never see half of one."""
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(json.dumps({"line": line}) + "\n" for line in lines))
        os.utime(hidden, ns=(time_ns, time_ns))
        hidden.replace(path)


def columns(rows: DataFrame) -> DataFrame:
    return rows.select("line", "_object")


def merged_columns(rows: DataFrame) -> DataFrame:
    words = functions.split("line", " ")
    return rows.select(
        words[0].alias("key"),
        words[1].cast("long").alias("rank"),
        "line",
        "_object",
        words[2].alias("operation"),
    )


class OnSpark(ChangingSchedule):
    """A schedule whose runs are Spark's."""

    turns = range(60, 160)
    transform = staticmethod(columns)
    merge: Merge | None = None

    def __init__(self, *arguments: Any, spark: SparkSession, **options: Any) -> None:
        self.spark = spark
        super().__init__(*arguments, **options)

    def new_store(self, kind: StoreKind) -> ChangingStore:
        assert kind in StoreKind
        return FolderStore(kind=StoreKind.FOLDER, now=lambda: self.scheduler.turn)

    def key(self, name: str) -> str:
        return f"{self.root.parent}{name}.jsonl"

    def engine(self, ledger: Ledger) -> Engine:
        return RecordedSparkEngine(self, ledger)


class MergesOnSpark(OnSpark, MergingSchedule):
    """A schedule of rows that are merged by key, whose runs are Spark's."""

    transform = staticmethod(merged_columns)
    merge = MERGE


class RecordedSparkEngine:
    """Spark's engine, of one process. It records which versions a run has read, for the oracle."""

    def __init__(self, schedule: OnSpark, ledger: Ledger) -> None:
        self._schedule = schedule
        table = schedule.table
        quarantine = table.root.beside("quarantine")
        rows = table.sink()
        self._engine = SparkEngine(
            schedule.spark,
            Declaration(
                pipeline=schedule.pipeline,
                source=str(schedule.root.parent / "in"),
                table=table.root,
                quarantine=quarantine,
                work=table.root.beside("work"),
                read=ReadOptions(schema_ddl="line string"),
                transform=schedule.transform,
                transform_name=schedule.transform.__name__,
                on_change=schedule.on_change,
                merge=schedule.merge,
            ),
            agree=partial(agreement, ledger, rows, schedule.pipeline),
            quarantine=QuarantineLines(
                ledger,
                open_sink(quarantine, scheme=table.format, pipeline=schedule.pipeline),
                pipeline=schedule.pipeline,
            ),
            evolution=Evolution(ledger=ledger, sink=rows, pipeline=schedule.pipeline),
            clock=FakeClock(),
            bus=Bus(),
            probe=schedule.probe,
        )

    def cancel(self, attempt_id: str) -> None:
        # The baton is held by the canceller, so no job runs: the run notices at its next step.
        with self._engine._lock:
            self._engine._cancelled.add(attempt_id)

    def run(self, request: RunRequest) -> RunResult:
        schedule = self._schedule
        result = self._engine.run(request)
        store = schedule.store
        assert isinstance(store, FolderStore)
        schedule.read[request.attempt_id] = [store.known[one.object_id].version for one in result.processed]
        for one in result.processed:
            schedule.overtake(store.known[one.object_id].ref.key)
        return result


@pytest.fixture
def runner(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> ChangingRunner:
    monkeypatch.setattr(scheduler, "PATIENCE_SECONDS", PATIENCE_SECONDS)
    return ChangingRunner(tmp_path.resolve(), partial(OnSpark, spark=spark))


@pytest.fixture
def merging_runner(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> ChangingRunner:
    monkeypatch.setattr(scheduler, "PATIENCE_SECONDS", PATIENCE_SECONDS)
    return ChangingRunner(tmp_path.resolve(), partial(MergesOnSpark, spark=spark))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("format", FORMATS)
def test_no_schedule_on_spark_breaks_the_rule(runner: ChangingRunner, format: str, chunk: int) -> None:
    batches = 0
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        batches += len(runner.run(seed, format).history)

    assert batches > CHUNK


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_no_schedule_on_spark_of_files_that_grow_breaks_the_rule(runner: ChangingRunner, format: str) -> None:
    assert sum(runner.run(seed, format, rule="tail").grown for seed in range(*GROWING)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_no_schedule_on_spark_of_rows_merged_by_key_breaks_the_rule(
    merging_runner: ChangingRunner, format: str
) -> None:
    batches = 0
    for seed in range(MERGED):
        batches += len(merging_runner.run(seed, format).history)

    assert batches > MERGED
