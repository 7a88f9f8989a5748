"""A measurement that does not end: the values of the previous one are dropped."""

from penstock.app.jobs.monitor.process import BLIND_SECONDS, STUCK_SECONDS, MonitorLoop, forget_old, to_meters
from penstock.app.jobs.monitor.sample import MonitorSample
from penstock.app.system_health import QueueHealth
from penstock.monitoring.metrics.meters import Meters
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal

ORDERS = QueueHealth(
    queue="orders",
    visible=3,
    in_flight=0,
    delayed=0,
    oldest_message_age_seconds=7.0,
    oldest_message_age_source="exact",
    oldest_visible_message_age_seconds=7.0,
    oldest_visible_message_age_source="exact",
)


class Scene:
    """A monitor that measures three times.

    ``readings`` has the meters as read during the second measurement, before it takes too long and after, and during
    the third one.
    """

    def __init__(self) -> None:
        self.clock, self.stop, self.meters = FakeClock(auto_advance=True), StopSignal(), Meters()
        self.loop = MonitorLoop(every_seconds=20, stop=self.stop, clock=self.clock, random=lambda: 0.5)
        self.meters.before_reading(lambda: forget_old(self.loop, self.meters))
        self.readings: list[tuple[dict[tuple[str, ...], float], dict[tuple[str, ...], float]]] = []
        self.live: list[bool] = []
        self._measurements = 0

    def run(self) -> None:
        self.loop.run(self._measure, lambda sample: to_meters(sample, self.meters))

    def _measure(self) -> MonitorSample:
        self._measurements += 1
        if self._measurements == 2:
            for seconds in (BLIND_SECONDS - 1, 2.0, STUCK_SECONDS):
                self.clock.advance(seconds)
                self._read()
        if self._measurements == 3:
            self._read()
            self.stop.request()
        return MonitorSample(at=self.clock.now(), queues=(ORDERS,), up={"broker": True, "ledger": True})

    def _read(self) -> None:
        values = self.meters.read().values
        self.readings.append((dict(values["monitor_up"]), dict(values["queue_messages"])))
        self.live.append(self.loop.health.live()[0])


def test_values_are_dropped_while_the_next_measurement_does_not_end_and_are_back_afterwards() -> None:
    scene = Scene()
    scene.run()
    up, down = {("broker",): 1.0, ("ledger",): 1.0}, {("broker",): 0.0, ("ledger",): 0.0}
    messages = {("orders", "visible"): 3.0, ("orders", "in_flight"): 0.0, ("orders", "delayed"): 0.0}
    assert scene.readings == [(up, messages), (down, {}), (down, {}), (up, messages)]


def test_values_are_dropped_before_the_monitor_counts_as_stuck() -> None:
    scene = Scene()
    scene.run()
    assert scene.live == [True, True, False, True]


def test_a_stuck_first_measurement_leaves_the_gauges_empty() -> None:
    clock, stop, meters = FakeClock(auto_advance=True), StopSignal(), Meters()
    loop = MonitorLoop(every_seconds=20, stop=stop, clock=clock, random=lambda: 0.5)

    def measure() -> MonitorSample:
        clock.advance(10 * BLIND_SECONDS)
        forget_old(loop, meters)
        assert meters.read().values["monitor_up"] == {}
        stop.request()
        return MonitorSample(at=clock.now())

    loop.run(measure, lambda _: None)
