"""The monitor's samples: their values, sources that cannot be read, and the events emitted."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.app.jobs.monitor.ledger import LedgerWatch
from penstock.app.jobs.monitor.monitor import Monitor, MonitorTargets
from penstock.app.jobs.monitor.process import to_meters
from penstock.app.jobs.monitor.queues import DEAD_LETTERS_SECONDS, DLQS_SECONDS, QueueWatch
from penstock.app.jobs.monitor.sample import EMIT_EVERY_SECONDS, MonitorSample, OverdueNotices, gauges
from penstock.app.system_health import PipelineHealth
from penstock.brokers.memory.broker import MemoryBroker
from penstock.config import Settings
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import Event, MonitorPollFailed, MonitorPollRecovered, ObjectsOverdue
from penstock.ledger import Ledger
from penstock.ledger.pipelines import ReconcileResult
from penstock.ledger.records import BatchOutcome, Candidate, Committed, ObjectResult, OriginalMessage
from penstock.messaging.broker import Broker, QueueSettings, QueueStats
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.monitoring.metrics.meters import Meters
from penstock.testing import FakeClock

PIPELINE = "clicks"


class FaultyBroker(MemoryBroker):
    """A memory broker that can be unreachable, or refuse access to one queue."""

    away = False
    refused = ""

    def stats(self, queue: str) -> QueueStats:
        if self.away:
            raise TemporaryError("the broker is away")
        if queue == self.refused:
            raise ConfigurationError("not for you")
        return super().stats(queue)


class Scene:
    def __init__(self, state: Path) -> None:
        self.clock = FakeClock()
        self.events: list[Event] = []
        self.broker = FaultyBroker(clock=self.clock, queues=[QueueSettings(name="orders"), QueueSettings(name="mails")])
        self.ledger: Ledger | None = None
        self.settings = Settings.model_construct(data_dir=str(state))

    def monitor(self, queues: Sequence[str] = ("orders",), pipelines: Sequence[str] = ()) -> Monitor:
        watches = MonitorTargets(
            queue_names=tuple(queues),
            pipeline_names=tuple(pipelines),
            queues=QueueWatch(queues, broker=self._broker, settings=self.settings, clock=self.clock)
            if queues
            else None,
            ledger=LedgerWatch(pipelines, ledger=lambda: self.ledger, overdue_after_seconds=3_600.0, clock=self.clock)
            if pipelines
            else None,
            tables=None,
            queue_by_pipeline={PIPELINE: "orders"},
        )
        return Monitor(watches, clock=self.clock, emit=self.events.append)

    def _broker(self) -> Broker:
        return self.broker

    def settle_one(self, queue: str = "orders", settlement: Settlement | None = None) -> None:
        (delivery,) = self.broker.receive(queue, messages_max=1, lease_seconds=600.0)
        assert not self.broker.settle([(delivery, settlement or DeadLetter(reason="no"))])


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.broker.close()
    if made.ledger is not None:
        made.ledger.close()


def values(sample: MonitorSample) -> Mapping[str, Mapping[tuple[str, ...], float]]:
    meters = Meters()
    to_meters(sample, meters)
    return meters.read().values


def test_the_gauges_of_a_queue_are_its_counts_ages_and_dead_letters(scene: Scene) -> None:
    scene.broker.send("orders", [Outgoing(body=b"dies")])
    scene.settle_one()
    scene.clock.advance(100)
    scene.broker.send("orders", [Outgoing(body=b"1"), Outgoing(body=b"2"), Outgoing(body=b"later", delay_seconds=900)])
    assert scene.broker.receive("orders", messages_max=1, lease_seconds=600.0)
    scene.clock.advance(30)
    found = values(scene.monitor().measure())
    assert found["queue_messages"] == {
        ("orders", "visible"): 1,
        ("orders", "in_flight"): 1,
        ("orders", "delayed"): 1,
    }
    assert found["queue_oldest_message_age_seconds"] == {("orders", "exact"): 30}
    assert found["queue_oldest_visible_message_age_seconds"] == {("orders", "exact"): 30}
    assert found["dead_letters"] == {("orders", "dlq"): 1, ("orders", "dead"): 0}
    assert found["dead_letter_oldest_age_seconds"] == {("orders", "dlq"): 130, ("orders", "dead"): 0}
    assert found["monitor_up"] == {("broker",): 1}
    assert found["monitor_poll_failures_total"] == {("broker",): 0}


def test_the_visible_age_is_0_while_all_messages_are_in_flight(scene: Scene) -> None:
    scene.broker.send("orders", [Outgoing(body=b"1")])
    assert scene.broker.receive("orders", messages_max=1, lease_seconds=600.0)
    scene.clock.advance(50)
    found = values(scene.monitor().measure())
    assert found["queue_oldest_visible_message_age_seconds"] == {("orders", "exact"): 0}
    assert found["queue_oldest_message_age_seconds"] == {("orders", "exact"): 50}


def test_an_empty_queue_has_age_0_and_an_unused_one_has_none(scene: Scene) -> None:
    scene.broker.send("orders", [Outgoing(body=b"1")])
    scene.settle_one(settlement=Ack())
    found = values(scene.monitor(["orders", "unused"]).measure())
    assert found["queue_oldest_message_age_seconds"] == {("orders", "exact"): 0}


def test_the_age_of_a_dead_letter_is_not_reset_by_a_waiting_replayer(scene: Scene) -> None:
    scene.broker.send("orders", [Outgoing(body=b"dies")])
    scene.settle_one()
    for _ in range(3):
        scene.settle_one("orders-dlq", settlement=Release(delay_seconds=10))
        scene.clock.advance(10)
    assert scene.broker.stats("orders-dlq").oldest_message_age_seconds == 10
    assert values(scene.monitor().measure())["dead_letter_oldest_age_seconds"]["orders", "dlq"] == 30


def test_a_shared_dlq_is_counted_once_under_its_own_name(scene: Scene) -> None:
    scene.broker = FaultyBroker(
        clock=scene.clock,
        queues=[QueueSettings(name=name, dead_letter_queue="shared-dlq") for name in ("orders", "mails")],
    )
    scene.broker.send("orders", [Outgoing(body=b"dies")])
    scene.settle_one()
    found = values(scene.monitor(["orders", "mails"]).measure())
    assert found["dead_letters"] == {("shared-dlq", "dlq"): 1, ("shared-dead", "dead"): 0}


def test_dead_letters_are_measured_less_often_than_queues(scene: Scene) -> None:
    monitor = scene.monitor()
    scene.broker.send("orders", [Outgoing(body=b"dies")])
    assert values(monitor.measure())["dead_letters"]["orders", "dlq"] == 0
    scene.settle_one()
    scene.clock.advance(DEAD_LETTERS_SECONDS - 1)
    assert values(monitor.measure())["dead_letters"]["orders", "dlq"] == 0
    scene.clock.advance(1)
    assert values(monitor.measure())["dead_letters"]["orders", "dlq"] == 1
    scene.clock.advance(DLQS_SECONDS)
    assert values(monitor.measure())["dead_letters"]["orders", "dlq"] == 1


def test_an_unreachable_broker_has_no_gauges_and_its_outage_and_recovery_are_each_reported_once(scene: Scene) -> None:
    meters, monitor = Meters(), scene.monitor()
    scene.broker.send("orders", [Outgoing(body=b"1")])
    to_meters(monitor.measure(), meters)
    assert meters.read().values["queue_messages"]
    scene.broker.away = True
    for _ in range(3):
        scene.clock.advance(20)
        to_meters(monitor.measure(), meters)
    during_outage = meters.read().values
    names = [name for name in gauges(MonitorSample(at=0.0)) if during_outage[name]]
    assert names == ["monitor_up"]
    assert during_outage["monitor_up"] == {("broker",): 0}
    assert during_outage["monitor_poll_failures_total"] == {("broker",): 3}
    assert scene.events == [MonitorPollFailed(source="broker", error="TemporaryError: the broker is away")]
    scene.broker.away = False
    to_meters(monitor.measure(), meters)
    assert scene.events[1:] == [MonitorPollRecovered(source="broker", outage_seconds=40.0)]
    assert meters.read().values["queue_messages"]["orders", "visible"] == 1


def test_a_queue_without_access_hides_no_other_queue(scene: Scene) -> None:
    scene.broker.refused = "mails"
    sample = scene.monitor(["mails", "orders"]).measure()
    assert [health.queue for health in sample.queues] == ["orders"]
    assert (sample.up, sample.errors) == ({"broker": False}, {"broker": "not for you"})


def record_object(ledger: Ledger, *, claim_only: bool = False) -> None:
    candidate = Candidate(
        object_id=b"1" * 16 if not claim_only else b"2" * 16,
        bucket="b",
        key=b"k",
        size_bytes=1,
        uri="s3://b/k",
        original_message=OriginalMessage(message_id="m", enqueued_at=0.0),
    )
    attempt = "a-2" if claim_only else "a-1"
    ledger.claim(PIPELINE, [candidate], attempt_id=attempt, worker="w", lease_seconds=60.0)
    if not claim_only:
        done = ObjectResult(object_id=candidate.object_id, rows=1, lines_quarantined=0)
        assert ledger.commit(BatchOutcome(pipeline=PIPELINE, attempt_id=attempt, processed=[done])) == Committed(seq=1)


def test_the_gauges_of_a_ledger_are_states_ages_and_the_latest_reconcile(scene: Scene) -> None:
    now = [1_000_000.0]
    scene.ledger = Ledger.open("sqlite://", now=lambda: now[0])
    scene.ledger.ensure_pipeline(PIPELINE)
    monitor = scene.monitor((), [PIPELINE])
    assert values(monitor.measure())["objects_missing"] == {}
    record_object(scene.ledger)
    record_object(scene.ledger, claim_only=True)
    scene.ledger.record_reconciliation(
        ReconcileResult(pipeline=PIPELINE, as_of=1.0, source="s3://b", listed=9, missing=7, sent=7, seconds=1.0)
    )
    now[0] += 5_000
    scene.clock.advance(20)
    found = values(monitor.measure())
    assert found["objects"][PIPELINE, "processed"] == 1  # counted before it was processed, and updated from the batches
    assert found["objects"][PIPELINE, "processing"] == 1
    assert sum(found["objects"].values()) == 2
    assert found["object_oldest_unprocessed_age_seconds"] == {(PIPELINE,): 5_000}
    assert found["objects_overdue"] == {(PIPELINE,): 1}
    assert found["objects_missing"] == {(PIPELINE,): 7}
    assert found["monitor_up"] == {("ledger",): 1}


def reconciled(ledger: Ledger, *, missing: int, sent: int) -> None:
    ledger.record_reconciliation(
        ReconcileResult(
            pipeline=PIPELINE, as_of=1.0, source="s3://b", listed=9, missing=missing, sent=sent, seconds=1.0
        )
    )


def test_missing_objects_are_counted_until_their_messages_have_left_the_queue(scene: Scene) -> None:
    scene.ledger = Ledger.open("sqlite://", now=scene.clock.now)
    scene.ledger.ensure_pipeline(PIPELINE)
    monitor = scene.monitor(["mails", "orders"], [PIPELINE])

    def missing() -> float:
        scene.clock.advance(20)
        return values(monitor.measure())["objects_missing"][PIPELINE,]

    scene.broker.send("orders", [Outgoing(body=b"lost")])
    reconciled(scene.ledger, missing=7, sent=5)
    assert missing() == 7
    scene.broker.send("orders", [Outgoing(body=b"later")])
    assert missing() == 7
    scene.settle_one(settlement=Ack())
    assert missing() == 2, "only a later message is left"
    scene.broker.away = True
    assert missing() == 2, "it is remembered"
    reconciled(scene.ledger, missing=3, sent=3)
    assert missing() == 3, "unknown, as the broker is away"
    scene.broker.away = False
    assert missing() == 3, "the later message was there before the reconcile"
    scene.settle_one(settlement=Ack())
    assert missing() == 0
    reconciled(scene.ledger, missing=4, sent=0)
    assert missing() == 4, "a check enqueues nothing"


def test_a_queue_that_was_read_before_the_reconcile_ended_does_not_show_its_messages(scene: Scene) -> None:
    scene.ledger = Ledger.open("sqlite://", now=scene.clock.now)
    scene.ledger.ensure_pipeline(PIPELINE)
    monitor = scene.monitor(["orders"], [PIPELINE])
    assert values(monitor.measure())["objects_missing"] == {}
    stats = scene.broker.stats

    def slow(queue: str) -> QueueStats:
        found = stats(queue)
        if queue == "orders":
            scene.clock.advance(5)
            reconciled(scene.ledger or Ledger.open("sqlite://"), missing=1, sent=1)
        return found

    scene.broker.stats = slow  # type: ignore[method-assign]
    assert values(monitor.measure())["objects_missing"] == {(PIPELINE,): 1}


def test_a_ledger_that_does_not_exist_yet_is_no_failure(scene: Scene) -> None:
    sample = scene.monitor((), [PIPELINE]).measure()
    assert (sample.pipelines, sample.up) == ((), {"ledger": True})


def test_queues_are_measured_while_the_ledger_is_unreachable(scene: Scene) -> None:
    monitor = scene.monitor(["orders"], [PIPELINE])
    scene.ledger = Ledger.open("sqlite://")
    scene.ledger.ensure_pipeline(PIPELINE)
    assert monitor.measure().pipelines
    scene.ledger.database.reading = lambda: (_ for _ in ()).throw(TemporaryError("no ledger"))  # type: ignore[method-assign]
    scene.clock.advance(400)
    sample = monitor.measure()
    assert (sample.pipelines, sample.up) == ((), {"broker": True, "ledger": False})
    assert [health.queue for health in sample.queues] == ["orders"]


def never(_pipeline: str, _seconds: float) -> bool:
    return False


class SlowClock(FakeClock):
    """A clock that advances by a second at each reading, so that each call of a ledger takes a second or more."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return super().monotonic()


def test_a_slow_measurement_is_repeated_less_often_and_its_ages_advance(scene: Scene) -> None:
    now = [1_000_000.0]
    scene.ledger = Ledger.open("sqlite://", now=lambda: now[0])
    scene.ledger.ensure_pipeline(PIPELINE)
    record_object(scene.ledger, claim_only=True)
    clock = SlowClock()
    watch = LedgerWatch([PIPELINE], ledger=lambda: scene.ledger, overdue_after_seconds=3_600.0, clock=clock)
    now[0] += 100
    (first,) = watch.measure(has_settled=never)
    scene.ledger.close()  # so that another measurement would fail
    clock.advance(50)
    (again,) = watch.measure(has_settled=never)
    assert first.oldest_unprocessed_age_seconds is not None
    assert again.oldest_unprocessed_age_seconds is not None
    assert again.oldest_unprocessed_age_seconds - first.oldest_unprocessed_age_seconds >= 50
    assert replace(again, oldest_unprocessed_age_seconds=100.0) == first


def overdue(count: int) -> PipelineHealth:
    return PipelineHealth(
        pipeline=PIPELINE,
        objects={},
        objects_overdue=count,
        oldest_unprocessed_age_seconds=5_000.0,
        batches_committed=0,
        reconciled=None,
    )


def test_overdue_objects_are_reported_at_the_beginning_and_then_once_an_hour() -> None:
    clock, events = FakeClock(), list[Event]()
    notices = OverdueNotices(after_seconds=3_600.0, clock=clock, emit=events.append)
    notices.update([overdue(0)])
    assert events == []
    notices.update([overdue(2)])
    clock.advance(EMIT_EVERY_SECONDS - 1)
    notices.update([overdue(3)])
    assert events == [ObjectsOverdue(pipeline=PIPELINE, overdue=2, oldest_age_seconds=5_000.0, after_seconds=3_600.0)]
    clock.advance(1)
    notices.update([overdue(4)])
    assert len(events) == 2
    notices.update([overdue(0)])
    notices.update([overdue(1)])
    assert len(events) == 3  # objects are overdue again
    notices.update([])  # without a measurement, objects are still overdue
    notices.update([overdue(1)])
    assert len(events) == 3


def test_every_gauge_of_a_sample_is_in_the_catalogue() -> None:
    meters = Meters()
    to_meters(MonitorSample(at=0.0), meters)
    assert set(gauges(MonitorSample(at=0.0))) <= set(meters.catalogue)
