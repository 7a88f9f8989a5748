"""A ledger that is away: told once each way, and asked more and more seldom."""

import pytest

from penstock.errors import TemporaryError
from penstock.events import Bus, Event, LedgerAway, LedgerBack
from penstock.handlers.outage import PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN, Outage
from penstock.testing import FakeClock


class Scene:
    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.clock = FakeClock()
        self.outage = Outage(bus=Bus(self.heard.append), clock=self.clock)

    def claim_fails(self, words: str = "away") -> None:
        with pytest.raises(TemporaryError), self.outage.watched():
            raise TemporaryError(words)

    def claim_succeeds(self) -> None:
        with self.outage.watched():
            pass


def test_an_outage_is_told_once_at_each_end() -> None:
    scene = Scene()
    scene.claim_succeeds()
    assert scene.heard == []
    for words in ("refused", "refused again"):
        scene.claim_fails(words)
        scene.clock.advance(3.0)
    assert scene.heard == [LedgerAway(error="refused")]
    scene.claim_succeeds()
    scene.claim_succeeds()
    assert scene.heard[1:] == [LedgerBack(away_seconds=6.0)]
    scene.claim_fails("refused")
    assert scene.heard[2:] == [LedgerAway(error="refused")]


def test_another_failure_says_nothing_of_the_ledger() -> None:
    scene = Scene()
    scene.claim_fails()
    with pytest.raises(ValueError, match="defect"), scene.outage.watched():
        raise ValueError("defect")
    assert scene.heard == [LedgerAway(error="away")]


def test_pauses_grow_with_the_outage_up_to_a_bound() -> None:
    scene, pauses = Scene(), list[float]()
    for _ in range(6):
        scene.claim_fails()
        pauses.append(scene.outage.pause_seconds(lambda: 0.999))
        scene.clock.advance(2 * pauses[-1])
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(PAUSE_SECONDS_MIN, rel=0.01)
    assert pauses[-1] == pytest.approx(PAUSE_SECONDS_MAX, rel=0.01)
    assert scene.outage.pause_seconds(lambda: 0.0) == PAUSE_SECONDS_MAX / 2
    scene.claim_succeeds()
    scene.claim_fails()
    assert scene.outage.pause_seconds(lambda: 0.999) == pytest.approx(PAUSE_SECONDS_MIN, rel=0.01)
