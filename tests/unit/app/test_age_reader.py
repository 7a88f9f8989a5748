"""The ages of messages for brokers that report none."""

from collections.abc import Sequence
from typing import Any

from penstock.app.registry import DRAINING, SERVING, WorkerRecord
from penstock.app.system_health import AgeReader
from penstock.brokers import shared
from penstock.messaging.age_estimate import AgeEstimate
from penstock.messaging.broker import QueueStats
from penstock.testing import FakeClock


class AgelessBroker:
    """A broker that reports no ages, with the attributes that `AgeReader` reads."""

    class capabilities:  # noqa: N801 - it replaces an attribute
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


def test_ages_are_estimated_by_serving_workers_and_empty_measurements() -> None:
    clock = FakeClock()
    broker: Any = AgelessBroker()
    ages = AgeReader(broker, clock=clock)
    seen = AgeEstimate().received(clock.now() - 50, now=clock.now())

    def visible(count: int, workers: Sequence[WorkerRecord]) -> float | None:
        return ages.oldest_visible_seconds("q", stats(count), workers)

    assert visible(3, [record(SERVING, q=seen)]) == 50.0
    assert visible(3, [record(DRAINING, q=seen)]) is None
    assert visible(3, [record(SERVING, other=seen)]) is None
    assert visible(0, [record(SERVING, q=seen)]) is None  # no message waits
    clock.advance(10)
    assert visible(3, [record(SERVING, q=seen)]) == 10.0  # since the empty measurement
    assert ages.oldest_seconds("q", shared.EMPTY_STATS, {"q": 7.0}) == 7.0
    assert (ages.oldest_source, ages.oldest_visible_source) == ("cloudwatch", "estimated")
