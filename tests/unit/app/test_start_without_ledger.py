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
    def __init__(self, *answers: Exception | None) -> None:
        self.clock = FakeClock(auto_advance=True)
        self.stop = StopSignal()
        self.told: list[Event] = []
        self.tries = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self._answers = list(answers)

    def open(self) -> None:
        self.tries += 1
        self.meanwhile()
        answer = self._answers.pop(0)
        if answer is not None:
            raise answer

    def run(self) -> None:
        outage = OutageWatch(bus=Bus(self.told.append), clock=self.clock)
        await_ledger(self.open, outage=outage, stop=self.stop, clock=self.clock, random=lambda: 0.5)


def test_a_ledger_that_is_away_is_waited_for_and_told_of_once() -> None:
    scene = Scene(*[TemporaryError("refused")] * 5, None)
    began_at = scene.clock.monotonic()
    scene.run()
    assert scene.tries == 6
    assert [type(event) for event in scene.told] == [LedgerUnavailable, LedgerAvailable]
    assert scene.clock.monotonic() - began_at > 3


def test_a_stop_ends_the_wait() -> None:
    scene = Scene(TemporaryError("refused"), TemporaryError("refused"), None)
    scene.meanwhile = lambda: scene.stop.request() if scene.tries == 2 else None
    with pytest.raises(TemporaryError):
        scene.run()
    assert scene.tries == 2


def test_what_a_person_has_to_mend_is_not_waited_for() -> None:
    scene = Scene(ConfigurationError("a wrong password"))
    with pytest.raises(ConfigurationError):
        scene.run()
    assert scene.told == []
