"""The clock that tests advance."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.testing import FakeClock

DEADLINE_SECONDS = 60.0


def test_time_does_not_pass_until_it_is_advanced() -> None:
    clock = FakeClock(start=100.0)
    assert (clock.now(), clock.monotonic()) == (100.0, 0.0)
    clock.advance(2.5)
    assert (clock.now(), clock.monotonic()) == (102.5, 2.5)


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="-1"):
        FakeClock().advance(-1)


def test_an_automatic_wait_returns_at_once_and_advances_the_clock() -> None:
    clock = FakeClock(auto_advance=True)
    assert clock.wait(threading.Event(), 3_600) is False
    assert clock.monotonic() == 3_600


def test_a_set_event_ends_a_wait_before_any_time_passes() -> None:
    clock = FakeClock(auto_advance=True)
    event = threading.Event()
    event.set()
    assert clock.wait(event, 3_600) is True
    assert clock.monotonic() == 0


def test_a_blocked_wait_ends_when_its_time_has_passed_and_not_before() -> None:
    clock = FakeClock()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(clock.wait, threading.Event(), 10)
        while clock.monotonic() < 9:
            clock.advance(1)
            assert not waiting.done()
        # The wait may have begun after some of the advances; it ends ten seconds after its begin.
        clock.advance(10)
        assert waiting.result(timeout=DEADLINE_SECONDS) is False


def test_a_blocked_wait_ends_with_its_event() -> None:
    clock = FakeClock()
    event = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(clock.wait, event, 10)
        event.set()
        assert waiting.result(timeout=DEADLINE_SECONDS) is True
    assert clock.monotonic() == 0


def test_a_wait_that_is_not_ended_fails_the_test_instead_of_hanging() -> None:
    with pytest.raises(AssertionError, match="not advanced"):
        FakeClock(patience_seconds=0.02).wait(threading.Event(), 10)


def test_waiting_for_no_time_does_not_block() -> None:
    assert FakeClock().wait(threading.Event(), 0) is False
