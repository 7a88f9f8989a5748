"""The age of received messages, as a gauge of the worker."""

from penstock.app.registry import GAUGE, SeenAges
from penstock.events import MessagesReceived
from penstock.monitoring.metrics.meters import Meters
from penstock.testing.fake_clock import FakeClock


def test_the_gauge_has_values_while_the_worker_receives_and_none_after_it_ended() -> None:
    clock, meters = FakeClock(), Meters()
    seen = SeenAges(clock)
    sent_at = clock.now() - 5.0
    for queue in ("orders", "orders-dlq"):
        seen(MessagesReceived(queue=queue, message_ids=("m",), redelivered=0, first_enqueued_at=sent_at))
    with seen.exported(meters):
        assert meters.read().values[GAUGE] == {("orders", "estimated"): 5.0}, "dead letters have gauges of their own"
    assert meters.read().values[GAUGE] == {}
