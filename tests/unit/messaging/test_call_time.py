"""The time spent in the user's code, which alone counts towards a timeout."""

from penstock.messaging.call import RECHECK_SECONDS, CallTime
from penstock.testing import FakeClock


def test_only_time_in_the_users_code_counts() -> None:
    clock = FakeClock()
    time = CallTime(clock)
    clock.advance(100)
    assert time.left_seconds(5.0) == 5.0, "the function was not called yet"
    with time:
        clock.advance(2)
        assert time.left_seconds(5.0) == 3.0
    clock.advance(100)
    assert time.left_seconds(5.0) == 3.0, "its end is being recorded"
    with time:
        clock.advance(3)
        assert time.left_seconds(5.0) == 0.0


def test_code_that_has_returned_is_never_past_its_timeout() -> None:
    clock = FakeClock()
    time = CallTime(clock)
    with time:
        clock.advance(7)
        assert time.left_seconds(5.0) == -2.0
    assert time.left_seconds(5.0) == RECHECK_SECONDS
