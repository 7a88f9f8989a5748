"""The sampler: one thread reads for all viewers, as often as needed, and survives every error."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue

import pytest

from penstock.errors import TemporaryError
from penstock.operations.status.watch import StatusFrame
from penstock.web.sampling import IDLE_FACTOR, IDLE_REST_SECONDS_MAX, REST_FACTOR, VIEWED_SECONDS, Sampler

EVERY_SECONDS = 2.0
DEADLINE_SECONDS = 120.0


class ManualClock:
    """A clock that stands still. `rests` has the seconds of each wait, which ends when the sampler is wanted."""

    def __init__(self) -> None:
        self.time = 1_000.0
        self.rests: Queue[float] = Queue()

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.rests.put(seconds)
        return event.wait(DEADLINE_SECONDS)

    def rest(self) -> float:
        """Return the next rest of the sampler, once it begins."""
        return self.rests.get(timeout=DEADLINE_SECONDS)


class Status:
    """Readings with a number; `fail` is raised by the next one, and `seconds` pass during each."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.count = 0
        self.fail: Exception | None = None
        self.seconds = 0.0

    def read(self) -> StatusFrame:
        self.count += 1
        self.clock.time += self.seconds
        if self.fail is not None:
            raise self.fail
        return StatusFrame(at=float(self.count), status=None, error=f"reading {self.count}")


@contextmanager
def sampling(status: Status, **options: Callable[[StatusFrame], None]) -> Iterator[Sampler]:
    listeners = list(options.values())
    sampler = Sampler(status.read, every_seconds=EVERY_SECONDS, clock=status.clock, on_frame=listeners)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.close()


@pytest.fixture
def status() -> Status:
    return Status(ManualClock())


def test_many_viewers_share_a_reading(status: Status) -> None:
    with sampling(status) as sampler:
        sampler.frame()
        status.clock.rest()
        before = status.count
        assert {sampler.frame().at for _ in range(50)} == {float(before)}
        assert status.count == before


def test_it_rests_longer_while_no_person_looks(status: Status) -> None:
    with sampling(status) as sampler:
        assert status.clock.rest() == EVERY_SECONDS * IDLE_FACTOR
        sampler.frame()
        status.clock.rest()
        sampler.refresh()
        assert status.clock.rest() == EVERY_SECONDS


def test_after_a_time_without_viewers_a_page_waits_for_a_new_reading(status: Status) -> None:
    with sampling(status) as sampler:
        first = sampler.frame().at
        status.clock.time += VIEWED_SECONDS + 1
        assert sampler.frame().at > first


def test_a_slow_reading_is_followed_by_a_long_rest(status: Status) -> None:
    status.seconds = 5.0
    with sampling(status) as sampler:
        sampler.frame()
        assert status.clock.rest() >= REST_FACTOR * 5.0


@pytest.mark.parametrize(("seconds", "rest"), [(0.01, 10.0), (0.5, 50.0), (20.0, IDLE_REST_SECONDS_MAX), (50.0, 150.0)])
def test_a_slow_reading_is_rare_while_no_person_looks(status: Status, seconds: float, rest: float) -> None:
    status.seconds = seconds
    with sampling(status) as sampler:
        assert status.clock.rest() == pytest.approx(rest)
        sampler.frame()
        assert status.clock.rest() == pytest.approx(max(EVERY_SECONDS, REST_FACTOR * seconds))


def test_a_page_after_a_change_shows_a_reading_that_began_after_it(status: Status) -> None:
    with sampling(status) as sampler:
        before = sampler.frame().at
        sampler.refresh()
        assert sampler.frame().at > before


@pytest.mark.parametrize("error", [TemporaryError("the broker is away"), ZeroDivisionError("a bug")])
def test_an_error_is_shown_and_the_next_reading_comes(status: Status, error: Exception) -> None:
    status.fail = error
    with sampling(status) as sampler:
        shown = sampler.frame()
        assert shown.status is None
        assert str(error) in str(shown.error)
        status.fail = None
        sampler.refresh()
        assert str(sampler.frame().error).startswith("reading ")


def test_every_reading_reaches_the_listeners(status: Status) -> None:
    heard: list[float] = []
    with sampling(status, listen=lambda frame: heard.append(frame.at)) as sampler:
        sampler.frame()
        sampler.refresh()
        latest = sampler.frame().at
    assert heard[: int(latest)] == [float(number) for number in range(1, int(latest) + 1)]


def test_a_stream_has_each_new_reading_until_the_sampler_closes(status: Status) -> None:
    async def look() -> list[float]:
        found: list[float] = []
        async with sampler.changes() as changes:
            assert sampler.streams == 1
            async for at in changes:
                found.append(at)
                if len(found) < 3:
                    sampler.refresh()
                else:
                    await asyncio.to_thread(sampler.close)
        return found

    with sampling(status) as sampler:
        found = asyncio.run(asyncio.wait_for(look(), DEADLINE_SECONDS))
        assert sampler.streams == 0
    assert found == sorted(set(found))
    assert len(found) == 3


def test_a_stream_that_is_dropped_leaves_nothing(status: Status) -> None:
    async def glance() -> None:
        async with sampler.changes() as changes:
            await anext(aiter(changes))

    with sampling(status) as sampler:
        for _ in range(5):
            asyncio.run(asyncio.wait_for(glance(), DEADLINE_SECONDS))
        assert sampler.streams == 0
        sampler.refresh()
        assert sampler.frame().at > 1
