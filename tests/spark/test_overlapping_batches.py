"""Two full batches of a pipeline on Spark at once: their sessions, failures, columns and cancels stay apart."""

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as users write it
from tests.chaos import transforms
from tests.spark.test_app_pipeline import PATIENCE_SECONDS, Shop, row, rows_of_table

from penstock.app.pipelines.running import RunReport
from penstock.events import BatchClaimed, BatchCommitted, Event, RunFailed

POISON = "poison"


class Pair:
    """A pipeline on a new table with two batches of two objects, whose transforms wait for each other once."""

    def __init__(self, folder: Path, transform: Callable[[DataFrame], DataFrame], **settings: Any) -> None:
        self._both = threading.Barrier(2)
        self._calls = itertools.count()
        self._transform = transform
        self.events: list[Event] = []
        self.shop = Shop(folder, transform=self._met, max_attempts=2)
        values = {"objects_max_batch_objects": 2, "objects_retry_base": 0.05, **settings}
        self.shop.app.settings = self.shop.app.settings.model_copy(update=values)

    def write(self, places: Mapping[int, str]) -> None:
        for number, place in places.items():
            self.shop.write(f"{number}.jsonl", [row(number, place=place)])

    def run(self, spark: SparkSession) -> RunReport:
        shop = self.shop
        return shop.clicks.run(spark, source=shop.landing, available_now=True, listeners=[self.events.append])

    def meet_again(self) -> None:
        """Let the next two transforms wait for each other, too."""
        self._calls = itertools.count()

    def ids_if_any(self) -> list[int]:
        return self.ids() if DeltaTable.is_deltatable(str(self.shop.table)) else []

    def ids(self) -> list[int]:
        return [found["id"] for found in rows_of_table(self.shop.table)]

    def _met(self, frame: DataFrame) -> DataFrame:
        """Transform, and wait until the other batch has, too. Later attempts do not wait."""
        transformed = self._transform(frame)
        if next(self._calls) < 2:
            self._both.wait(PATIENCE_SECONDS)
        return transformed


FOUR = dict.fromkeys(range(4), "here")


def test_temporary_views_of_two_batches_stay_apart(tmp_path: Path, spark: SparkSession) -> None:
    both = threading.Barrier(2)

    def by_view(frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView("batch")
        both.wait(PATIENCE_SECONDS)
        return frame.sparkSession.sql("SELECT * FROM batch")

    pair = Pair(tmp_path, by_view)
    pair.write(FOUR)
    assert pair.run(spark).batches == 2
    assert pair.ids() == [0, 1, 2, 3]
    assert not spark.catalog.tableExists("batch")
    pair.shop.close()


def test_a_poison_object_in_each_of_two_batches_fails_alone(tmp_path: Path, spark: SparkSession) -> None:
    def no_poison(frame: DataFrame) -> DataFrame:
        return frame.withColumn("n", F.when(F.col("place") == POISON, F.col("place").cast("int")))

    pair = Pair(tmp_path, no_poison)
    pair.write({0: POISON, 1: "here", 2: "here", 3: POISON})
    report = pair.run(spark)
    assert sum(isinstance(event, RunFailed) for event in pair.events) >= 4, "both batches failed, and each alone"
    assert (report.objects_processed, report.objects_dead) == (2, 2)
    assert pair.ids() == [1, 2]
    pair.shop.close()


def test_a_batch_that_fails_beside_another_one_costs_that_one_nothing(tmp_path: Path, spark: SparkSession) -> None:
    def no_poison(frame: DataFrame) -> DataFrame:
        return frame.withColumn("n", F.when(F.col("place") == POISON, F.col("place").cast("int")))

    pair = Pair(tmp_path, no_poison)
    pair.write({0: POISON, 1: "here", 2: "here", 3: "here"})
    report = pair.run(spark)
    claimed = [event.attempt_id for event in pair.events if isinstance(event, BatchClaimed)][:2]
    committed = [event.attempt_id for event in pair.events if isinstance(event, BatchCommitted)]
    failed = [event.attempt_id for event in pair.events if isinstance(event, RunFailed)]
    assert failed[0] in claimed
    assert committed[0] in claimed
    assert (report.objects_processed, report.objects_dead) == (3, 1)
    assert pair.ids() == [1, 2, 3]
    pair.shop.close()


def test_a_column_that_two_batches_add_at_once_to_a_table_is_added_once(tmp_path: Path, spark: SparkSession) -> None:
    def widened(frame: DataFrame) -> DataFrame:
        return frame if pair.ids_if_any() == [] else frame.withColumn("extra", F.col("id") * 2)

    pair = Pair(tmp_path, widened)
    pair.write(FOUR)
    assert pair.run(spark).batches == 2
    assert pair.ids() == [0, 1, 2, 3]
    pair.meet_again()
    pair.write(dict.fromkeys(range(4, 8), "here"))
    assert pair.run(spark).batches == 2
    extra = [(found["id"], found["extra"]) for found in rows_of_table(pair.shop.table)]
    assert sorted(extra) == [(0, None), (1, None), (2, None), (3, None), (4, 8), (5, 10), (6, 12), (7, 14)]
    pair.shop.close()


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a gate that is shut for all runs; see `tests.chaos.transforms.held`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / transforms.GATE).touch()
    yield tmp_path / transforms.GATE
    (tmp_path / transforms.GATE).unlink(missing_ok=True)


def test_a_batch_that_loses_its_claim_is_cancelled_and_the_other_one_goes_on(
    tmp_path: Path, spark: SparkSession, gate: Path
) -> None:
    again = threading.Event()
    pair = Pair(tmp_path, transforms.held, worker_lease=3.0)
    pair.write(FOUR)

    def lose_one(event: Event) -> None:
        """Open the gate when the objects of the lost claim are claimed again."""
        if isinstance(event, BatchClaimed) and len(claims := claimed()) > 2:
            assert claims[-1] not in claims[:2]
            again.set()
            gate.unlink(missing_ok=True)

    def claimed() -> list[str]:
        return [event.attempt_id for event in pair.events if isinstance(event, BatchClaimed)]

    def lose_the_first() -> None:
        while len(claimed()) < 2 or not (tmp_path / transforms.AT_GATE).exists():
            if again.wait(0.05):  # between two looks at what another thread does
                return
        lost = claimed()[0]
        pair.shop.app.ledger.abandon(lost, reason="a test", outcome="expired", uncounted=True, unattributed=False)

    losing = threading.Thread(target=lose_the_first)
    losing.start()
    shop = pair.shop
    report = shop.clicks.run(spark, source=shop.landing, available_now=True, listeners=[pair.events.append, lose_one])
    losing.join()
    assert again.is_set()
    assert (report.objects_processed, report.objects_dead) == (4, 0)
    assert pair.ids() == [0, 1, 2, 3]
    first, second = claimed()[:2]
    committed = {event.attempt_id for event in pair.events if isinstance(event, BatchCommitted)}
    assert second in committed
    assert first not in committed
    assert not any(isinstance(event, RunFailed) for event in pair.events), "a cancel is no failure"
    pair.shop.close()
