"""A look that does not come to an end: what the one before it saw is told no more."""

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
    """A monitor that looks three times. ``seen`` has the meters as they are read while the second look is under way:
    before it is too long, and after; and while the third is."""

    def __init__(self) -> None:
        self.clock, self.stop, self.meters = FakeClock(auto_advance=True), StopSignal(), Meters()
        self.looking = MonitorLoop(every_seconds=20, stop=self.stop, clock=self.clock, random=lambda: 0.5)
        self.meters.before_reading(lambda: forget_old(self.looking, self.meters))
        self.seen: list[tuple[dict[tuple[str, ...], float], dict[tuple[str, ...], float]]] = []
        self.live: list[bool] = []
        self._looks = 0

    def run(self) -> None:
        self.looking.run(self._look, lambda look: to_meters(look, self.meters))

    def _look(self) -> MonitorSample:
        self._looks += 1
        if self._looks == 2:
            for seconds in (BLIND_SECONDS - 1, 2.0, STUCK_SECONDS):
                self.clock.advance(seconds)
                self._read()
        if self._looks == 3:
            self._read()
            self.stop.request()
        return MonitorSample(at=self.clock.now(), queues=(ORDERS,), up={"broker": True, "ledger": True})

    def _read(self) -> None:
        values = self.meters.read().values
        self.seen.append((dict(values["monitor_up"]), dict(values["queue_messages"])))
        self.live.append(self.looking.health.live()[0])


def test_the_numbers_of_a_look_are_gone_when_the_next_one_does_not_end_and_come_back_when_it_does() -> None:
    scene = Scene()
    scene.run()
    up, down = {("broker",): 1.0, ("ledger",): 1.0}, {("broker",): 0.0, ("ledger",): 0.0}
    messages = {("orders", "visible"): 3.0, ("orders", "in_flight"): 0.0, ("orders", "delayed"): 0.0}
    assert scene.seen == [(up, messages), (down, {}), (down, {}), (up, messages)]


def test_it_is_blind_long_before_its_platform_ends_it() -> None:
    scene = Scene()
    scene.run()
    assert scene.live == [True, True, False, True]


def test_the_first_look_has_none_before_it() -> None:
    clock, stop, meters = FakeClock(auto_advance=True), StopSignal(), Meters()
    looking = MonitorLoop(every_seconds=20, stop=stop, clock=clock, random=lambda: 0.5)

    def look() -> MonitorSample:
        clock.advance(10 * BLIND_SECONDS)
        forget_old(looking, meters)
        assert meters.read().values["monitor_up"] == {}
        stop.request()
        return MonitorSample(at=clock.now())

    looking.run(look, lambda _: None)
