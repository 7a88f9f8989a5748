"""A worker that starts while its ledger is unavailable."""

from collections.abc import Callable

import pytest

from penstock.app.serving import await_ledger
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import Bus, Event, LedgerAvailable, LedgerUnavailable
from penstock.handlers.outage import OutageWatch
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal


class Scene:
    def __init__(self, *results: Exception | None) -> None:
        self.clock = FakeClock(auto_advance=True)
        self.stop = StopSignal()
        self.events: list[Event] = []
        self.attempts = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self._results = list(results)

    def open(self) -> None:
        self.attempts += 1
        self.meanwhile()
        result = self._results.pop(0)
        if result is not None:
            raise result

    def run(self) -> None:
        outage = OutageWatch(bus=Bus(self.events.append), clock=self.clock)
        await_ledger(self.open, outage=outage, stop=self.stop, clock=self.clock, random=lambda: 0.5)


def test_a_start_waits_for_an_unavailable_ledger_and_reports_it_once() -> None:
    scene = Scene(*[TemporaryError("refused")] * 5, None)
    began_at = scene.clock.monotonic()
    scene.run()
    assert scene.attempts == 6
    assert [type(event) for event in scene.events] == [LedgerUnavailable, LedgerAvailable]
    assert scene.clock.monotonic() - began_at > 3


def test_a_stop_ends_the_wait() -> None:
    scene = Scene(TemporaryError("refused"), TemporaryError("refused"), None)
    scene.meanwhile = lambda: scene.stop.request() if scene.attempts == 2 else None
    with pytest.raises(TemporaryError):
        scene.run()
    assert scene.attempts == 2


def test_a_start_does_not_wait_if_the_configuration_is_wrong() -> None:
    scene = Scene(ConfigurationError("a wrong password"))
    with pytest.raises(ConfigurationError):
        scene.run()
    assert scene.events == []
