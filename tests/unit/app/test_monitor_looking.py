"""The monitor's rounds and what its probes say; ages where the broker tells none; how far tables are behind."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.app.jobs.monitor.ledger import TableWatch
from penstock.app.jobs.monitor.process import JITTER_SHARE, STUCK_SECONDS, MonitorLoop
from penstock.app.jobs.monitor.sample import MonitorSample
from penstock.app.paths import table_paths
from penstock.app.registry import DRAINING, SERVING, WorkerRecord
from penstock.app.system_health import AgeReader
from penstock.brokers import shared
from penstock.messaging.age_estimate import AgeEstimate
from penstock.messaging.broker import QueueStats
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal


def monitor_loop(stop: StopSignal, clock: FakeClock, random: float = 0.5) -> MonitorLoop:
    return MonitorLoop(every_seconds=20.0, stop=stop, clock=clock, random=lambda: random)


def test_it_is_ready_after_its_first_look_and_looks_until_it_is_stopped() -> None:
    stop, clock = StopSignal(), FakeClock(auto_advance=True)
    it = monitor_loop(stop, clock)
    answers: list[bool] = []
    found: list[MonitorSample] = []

    def measure() -> MonitorSample:
        answers.append(it.health.ready()[0])
        return MonitorSample(at=clock.now())

    def publish(sample: MonitorSample) -> None:
        found.append(sample)
        if len(found) == 3:
            stop.request()

    assert not it.health.started()[0]
    it.run(measure, publish)
    assert answers == [False, True, True]
    assert it.health.live()[0]
    assert [one.at - found[0].at for one in found] == [0.0, 20.0, 40.0]


@pytest.mark.parametrize(("random", "share"), [(0.0, 1 - JITTER_SHARE), (1.0, 1 + JITTER_SHARE)])
def test_rests_differ_a_little(random: float, share: float) -> None:
    stop, clock = StopSignal(), FakeClock(auto_advance=True)
    at: list[float] = []

    def publish(_: MonitorSample) -> None:
        at.append(clock.now())
        if len(at) == 2:
            stop.request()

    monitor_loop(stop, clock, random).run(lambda: MonitorSample(at=0.0), publish)
    assert at[1] - at[0] == pytest.approx(20.0 * share)


def test_a_look_that_does_not_end_is_no_life() -> None:
    stop, clock = StopSignal(), FakeClock()
    it = monitor_loop(stop, clock)
    lives: list[bool] = []

    def measure() -> MonitorSample:
        clock.advance(STUCK_SECONDS)
        lives.append(it.health.live()[0])
        clock.advance(1)
        lives.append(it.health.live()[0])
        stop.request()
        return MonitorSample(at=0.0)

    it.run(measure, lambda _: None)
    assert lives == [True, False]
    assert it.health.live()[0]


class Silent:
    """A broker that tells no ages, as far as `AgeReader` asks it."""

    class capabilities:  # noqa: N801 - stands for an attribute
        exact_stats = False


def record(state: str, **seen: AgeEstimate) -> WorkerRecord:
    return WorkerRecord(
        worker="w",
        host="h",
        namespace="",
        pid=1,
        version="1",
        started_at=0.0,
        state=state,
        queues=("q",),
        in_flight=0,
        beat_at=0.0,
        seen=seen,
    )


def stats(visible: int) -> QueueStats:
    return QueueStats(
        visible=visible,
        in_flight=0,
        delayed=0,
        oldest_visible_message_age_seconds=None,
        oldest_message_age_seconds=None,
    )


def test_the_estimate_is_of_workers_that_serve_and_of_empty_moments_that_were_looked_at() -> None:
    clock = FakeClock()
    broker: Any = Silent()
    ages = AgeReader(broker, clock=clock)
    seen = AgeEstimate().received(clock.now() - 50, now=clock.now())

    def visible(count: int, workers: Sequence[WorkerRecord]) -> float | None:
        return ages.oldest_visible_seconds("q", stats(count), workers)

    assert visible(3, [record(SERVING, q=seen)]) == 50.0
    assert visible(3, [record(DRAINING, q=seen)]) is None
    assert visible(3, [record(SERVING, other=seen)]) is None
    assert visible(0, [record(SERVING, q=seen)]) is None  # nothing waits
    clock.advance(10)
    assert visible(3, [record(SERVING, q=seen)]) == 10.0  # since nothing did
    assert ages.oldest_seconds("q", shared.EMPTY_STATS, {"q": 7.0}) == 7.0
    assert (ages.oldest_source, ages.oldest_visible_source) == ("cloudwatch", "estimated")


class Table:
    """What `TableWatch` asks of tables."""

    def __init__(self) -> None:
        self.shown = 0
        self.looks = 0

    def shown_to(self, after_seq: int, up_to_seq: int) -> int:
        self.looks += 1
        return max(after_seq, min(self.shown, up_to_seq))


class Batches:
    """A ledger whose batch n was committed 100 n seconds ago."""

    @property
    def ages(self) -> "Batches":
        return self

    def seconds_since_commit(self, pipeline: str, seq: int) -> float | None:
        assert pipeline == "clicks"
        return 100.0 * seq


def test_the_lag_is_that_of_the_oldest_batch_that_is_not_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, ledger = Table(), Batches()
    watch = TableWatch({"clicks": table_paths(tmp_path / "clicks")}, ledger=lambda: ledger)  # type: ignore[arg-type,return-value]  # as far as it is asked
    monkeypatch.setattr(watch, "_open_tables", lambda *_: table)
    assert watch.lag_seconds("clicks", 0) == 0.0
    assert table.looks == 0  # nothing was committed, so no table was opened
    assert watch.lag_seconds("clicks", 3) == 100.0
    table.shown = 2
    assert watch.lag_seconds("clicks", 3) == 300.0
    table.shown = 3
    assert watch.lag_seconds("clicks", 3) == 0.0
    looks = table.looks
    assert watch.lag_seconds("clicks", 3) == 0.0
    assert table.looks == looks
    assert watch.lag_seconds("an object handler", 1) is None
