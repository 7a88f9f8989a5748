"""The monitor as a job of workers: the elected worker exports its gauges, all others export none."""

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.app.jobs.test_elected import wait_until

from penstock import App
from penstock.app.history.history import HistoryReader
from penstock.app.history.points import SeriesKind
from penstock.app.history.ring import HistoryRange
from penstock.app.jobs.elected import ElectedJob
from penstock.app.jobs.monitor import job as monitor_jobs
from penstock.app.jobs.monitor.job import CLAIMED_AS, claimed_key, monitor_job
from penstock.app.jobs.monitor.monitor import Monitor
from penstock.app.jobs.monitor.process import MonitorLoop
from penstock.app.jobs.monitor.sample import MonitorSample
from penstock.app.service import ServiceContext
from penstock.app.service_context import service_context
from penstock.app.spark import app_spark
from penstock.config import Settings
from penstock.events import Bus, Event, MonitorStarted
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.messaging.tracing import NO_TRACING
from penstock.monitoring.metrics.meters import Meters
from penstock.worker.shutdown import StopSignal

DEADLINE_SECONDS = 60.0


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(
        name="shop",
        settings=Settings(
            broker=f"sqlite:///{tmp_path / 'queue.db'}",
            ledger=f"sqlite:///{tmp_path / 'ledger.db'}",
            data_dir=str(tmp_path / "state"),
            worker_lease=3,
            metrics_monitor_every=1,
        ),
    )

    @app.handler("orders", idempotency=lambda message: message.id)
    def handle(message: object) -> None:
        pass

    app.broker.send("orders", [Outgoing(body=b"{}")])
    yield app
    app.close()


class Worker:
    """The monitor job of one worker."""

    def __init__(self, app: App, name: str) -> None:
        self.stop, self.meters, self.heard = StopSignal(), Meters(), list[Event]()
        bus, clock = Bus(self.heard.append), SystemClock()
        sessions = app_spark(app.settings, worker=name, clock=clock, bus=bus, stop=self.stop, given=None)
        made = service_context(app, sessions=sessions, bus=bus, clock=clock, stop=self.stop, tracing=NO_TRACING)
        self.context: ServiceContext = replace(made, worker=name, random=random.random)
        self.job: ElectedJob = monitor_job(app, self.context, self.meters, metrics_address=lambda: "127.0.0.1:1")

    def exports(self) -> bool:
        values = self.meters.read().values
        return bool(values.get("queue_messages") or values.get("monitor_up"))


@pytest.fixture
def workers(app: App) -> Iterator[list[Worker]]:
    made = [Worker(app, "w1"), Worker(app, "w2")]
    yield made
    for worker in made:
        if worker.job._thread.ident is not None:  # it was started
            worker.job.end()


def test_one_worker_exports_and_the_other_takes_over_when_it_ends(workers: list[Worker]) -> None:
    first, second = workers
    first.job.start()
    wait_until(first.exports)
    (began,) = first.heard
    assert isinstance(began, MonitorStarted)
    assert (began.address, began.queues) == ("127.0.0.1:1", ("orders",))
    second.job.check()
    assert not second.exports()
    assert second.heard == []
    first.stop.request()
    first.job.end()
    assert not first.exports()
    second.job.start()
    wait_until(second.exports)
    assert not first.exports()


def test_apps_without_a_name_that_share_a_ledger_each_have_a_monitor(tmp_path: Path) -> None:
    """Both are named after their module, such as app: with one claim for both, one of them would not be measured."""
    apps, workers = list[App](), list[Worker]()
    try:
        for queue in ("orders", "mails"):
            app = App(
                settings=Settings(
                    broker=f"sqlite:///{tmp_path / 'queue.db'}",
                    ledger=f"sqlite:///{tmp_path / 'ledger.db'}",
                    data_dir=str(tmp_path / queue),
                )
            )
            app.handler(queue, name=queue, idempotency=lambda message: message.id)(print)
            app.broker.send(queue, [Outgoing(body=b"{}")])
            apps.append(app)
            workers.append(Worker(app, f"w-{queue}"))
        assert apps[0].name == apps[1].name
        for worker in workers:
            worker.job.start()
        for worker in workers:
            wait_until(worker.exports)
    finally:
        for worker in workers:
            worker.job.end()
        for app in apps:
            app.close()


def test_the_claim_of_a_dead_worker_expires(app: App, workers: list[Worker]) -> None:
    app.ledger.begin_work(CLAIMED_AS, claimed_key(app), attempt_id="dead", worker="dead", lease_seconds=3.0)
    worker, _ = workers
    worker.job.check()
    assert worker.heard == []
    worker.job.start()
    wait_until(worker.exports)


def test_a_worker_that_loses_its_claim_during_a_measurement_exports_nothing(
    app: App, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, resume, samples = threading.Event(), threading.Event(), list[MonitorSample]()
    measure = Monitor.measure

    def measure_slowly(self: Monitor) -> MonitorSample:
        if samples:
            hangs.set()
            assert resume.wait(DEADLINE_SECONDS)
        samples.append(measure(self))
        return samples[-1]

    monkeypatch.setattr(Monitor, "measure", measure_slowly)
    worker, _ = workers
    stop = StopSignal()
    loop = MonitorLoop(
        every_seconds=worker.context.settings.metrics_monitor_every,
        stop=stop,
        clock=worker.context.clock,
        random=worker.context.random,
    )
    thread = threading.Thread(
        target=lambda: monitor_jobs.measure(app, worker.context, worker.meters, loop=loop, stop=stop, address=None),
        daemon=True,
    )
    thread.start()
    assert hangs.wait(DEADLINE_SECONDS)
    assert worker.exports()
    stop.request()
    assert not worker.exports(), "it still exports while the measurement hangs"
    resume.set()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    assert not worker.exports()


def test_the_elected_worker_records_the_history_of_its_queues(app: App, workers: list[Worker]) -> None:
    Path(app.settings.data_dir).mkdir()
    reader = HistoryReader(app.settings.data_dir, measured_every_seconds=1)

    def has_recorded() -> bool:
        chart = reader.chart(SeriesKind.QUEUE, "orders", HistoryRange.HOUR, at=SystemClock().now())
        return set(chart.values.get("visible", ())) == {1}

    workers[0].job.start()
    wait_until(has_recorded)
