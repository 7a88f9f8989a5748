"""The survey that all viewers share: when it is taken, and what pages see meanwhile."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from penstock.errors import TemporaryError
from penstock.operations.dead_letters.survey import DeadLetterSurvey
from penstock.operations.inspection import ScopeView
from penstock.testing.fake_clock import FakeClock
from penstock.web.dead_letter_watch import (
    FRESH_FACTOR,
    FRESH_SECONDS_MIN,
    CountingTurn,
    DeadLetterWatch,
    KnownDeadLetters,
)

DEADLINE_SECONDS = 120.0


class Scene:
    """A watch whose surveys the test lets begin and end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.watch = DeadLetterWatch(self._view, clock=self.clock, turn=CountingTurn(browsable=True))
        self.taken = 0
        self.took_seconds = 1.0
        self.during: Callable[[dict[str, Any]], object] = lambda _: None
        monkeypatch.setattr("penstock.web.dead_letter_watch.take_survey", self._take)

    @contextmanager
    def _view(self) -> Iterator[ScopeView]:
        yield cast("ScopeView", None)  # the survey below does not read it

    def _take(self, _: object, **options: Any) -> DeadLetterSurvey:
        self.taken += 1
        options["on_partial"](survey(0, is_complete=False))
        self.during(options)
        return survey(self.taken, took_seconds=self.took_seconds)

    def look(self, *, browsable: bool = True) -> KnownDeadLetters:
        """Look, and return what is known when no survey is being taken any more."""
        self.watch.known(browsable=browsable)
        return self.settled()

    def settled(self) -> KnownDeadLetters:
        for thread in threading.enumerate():
            if thread.name == "penstock-web-dead-letters":
                thread.join(DEADLINE_SECONDS)
        return self.watch.known(browsable=False)


def survey(dead_letters: int, *, is_complete: bool = True, took_seconds: float = 1.0) -> DeadLetterSurvey:
    return DeadLetterSurvey(
        taken_at=0.0,
        took_seconds=took_seconds,
        is_complete=is_complete,
        tiers={},
        dead_letters=dead_letters,
        groups=(),
        others=0,
    )


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene(monkeypatch)
    yield scene
    scene.watch.close()


def test_a_survey_stays_fresh_the_longer_the_longer_it_took(scene: Scene) -> None:
    for took_seconds, fresh_seconds in ((0.1, FRESH_SECONDS_MIN), (10.0, FRESH_FACTOR * 10.0)):
        scene.took_seconds = took_seconds
        scene.watch.expire()
        scene.look()
        taken = scene.taken
        scene.clock.advance(fresh_seconds - 1)
        scene.look()
        assert scene.taken == taken
        scene.clock.advance(1)
        scene.look()
        assert scene.taken == taken + 1


def test_no_survey_is_taken_unless_a_page_asks_for_it(scene: Scene) -> None:
    scene.clock.advance(1_000)
    assert scene.look(browsable=False) == KnownDeadLetters(survey=None, is_counting=False)
    assert scene.taken == 0
    scene.watch.count()
    found = scene.settled()
    assert found.survey is not None
    assert (scene.taken, found.survey.dead_letters) == (1, 1)


def test_pages_see_the_partial_first_survey_and_later_the_last_complete_one(scene: Scene) -> None:
    go_on = threading.Event()
    scene.during = lambda options: options["on_partial"](survey(7, is_complete=False)) or go_on.wait(DEADLINE_SECONDS)
    found = scene.watch.known(browsable=True, needs_queues=True)
    assert found.survey is not None
    assert (found.survey.is_complete, found.is_counting) == (False, True)
    assert scene.watch.last_survey() is None
    go_on.set()
    scene.settled()
    go_on.clear()
    scene.watch.expire()
    found = scene.watch.known(browsable=True)
    assert found.survey is not None
    assert (found.survey.dead_letters, found.survey.is_complete, found.is_counting) == (1, True, True)
    go_on.set()


def test_a_change_during_a_survey_makes_the_next_look_take_another(scene: Scene) -> None:
    scene.during = lambda _: scene.watch.expire()
    scene.look()
    scene.during = lambda _: None
    scene.look()
    assert scene.taken == 2
    scene.look()
    assert scene.taken == 2


@pytest.mark.parametrize("error", [TemporaryError("Redis is unavailable"), ZeroDivisionError("by zero")])
def test_an_error_is_shown_beside_the_last_survey_and_not_tried_again_at_once(scene: Scene, error: Exception) -> None:
    def failing(_: object) -> None:
        raise error

    scene.look()
    scene.during = failing
    scene.watch.expire()
    found = scene.look()
    assert found.survey is not None
    assert str(error) in str(found.error)
    scene.look()
    assert scene.taken == 2
    scene.during = lambda _: None
    scene.clock.advance(FRESH_SECONDS_MIN)
    assert scene.look().error is None


def test_a_close_stops_the_survey_and_begins_no_other(scene: Scene) -> None:
    begun = threading.Event()

    def until_stopped(options: dict[str, Any]) -> None:
        begun.set()
        while not options["stopped"]():
            options["after_page"](0.001)

    scene.during = until_stopped
    scene.watch.known(browsable=True)
    assert begun.wait(DEADLINE_SECONDS)
    scene.clock.auto_advance = True
    scene.watch.close()
    assert not scene.watch.known(browsable=True).is_counting
    scene.watch.count()
    assert scene.taken == 1
