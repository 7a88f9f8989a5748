"""The age of the oldest visible message, estimated from receives."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.messaging.age_estimate import FRESH_SECONDS, WINDOW_SECONDS, AgeEstimate

NOTHING = AgeEstimate()


def test_the_age_is_0_with_nothing_visible_and_none_with_nothing_known() -> None:
    assert NOTHING.visible_age_seconds(100.0, visible=0) == 0.0
    assert NOTHING.visible_age_seconds(100.0, visible=3) is None
    assert NOTHING.visible_age_seconds(100.0) is None


def test_the_age_of_the_oldest_received_message_grows_while_nothing_is_received() -> None:
    seen = NOTHING.received(40.0, now=100.0)
    assert seen.visible_age_seconds(100.0, visible=5) == 60.0
    assert seen.visible_age_seconds(400.0, visible=5) == 360.0  # no consumer receives any more
    assert seen.visible_age_seconds(400.0, visible=0) == 0.0


def test_of_receives_close_together_the_oldest_message_counts() -> None:
    seen = NOTHING.received(40.0, now=100.0).received(70.0, now=101.0).received(55.0, now=102.0)
    assert seen.visible_age_seconds(102.0, visible=1) == 60.0
    beyond = seen.received(90.0, now=100.0 + WINDOW_SECONDS)
    assert beyond.visible_age_seconds(130.0, visible=1) == 60.0  # the previous window still counts
    later = beyond.received(150.0, now=100.0 + 2 * WINDOW_SECONDS)
    assert later.visible_age_seconds(160.0, visible=1) == 40.0  # older windows do not count
    rested = seen.received(990.0, now=1_000.0)
    assert rested.visible_age_seconds(1_000.0, visible=1) == 10.0


def test_the_age_does_not_grow_while_messages_are_received_steadily() -> None:
    seen = NOTHING
    for second in range(100, 300):
        seen = seen.received(second - 2.0, now=float(second))
        assert seen.visible_age_seconds(second + 0.5, visible=7) == 2.5


def test_an_empty_receive_bounds_the_age() -> None:
    seen = NOTHING.received(40.0, now=100.0).empty(now=110.0)
    assert seen.visible_age_seconds(130.0, visible=1) == 20.0
    late = seen.received(95.0, now=140.0)
    assert late.visible_age_seconds(140.0, visible=1) == 30.0  # not the 45 s of the received message


def test_an_empty_receive_alone_gives_no_age_of_visible_messages() -> None:
    assert NOTHING.empty(now=100.0).visible_age_seconds(5_000.0, visible=1) is None


def test_without_a_count_an_empty_receive_means_an_empty_queue_for_a_while() -> None:
    seen = NOTHING.received(40.0, now=100.0).empty(now=110.0)
    assert seen.visible_age_seconds(112.0) == 0.0
    assert seen.visible_age_seconds(111.0 + FRESH_SECONDS) == 1 + FRESH_SECONDS
    assert seen.received(111.0, now=113.0).visible_age_seconds(114.0) == 3.0
    assert NOTHING.empty(now=100.0).visible_age_seconds(101.0) == 0.0
    assert NOTHING.empty(now=100.0).visible_age_seconds(101.0 + FRESH_SECONDS) is None


def test_the_latest_receives_of_several_workers_count() -> None:
    asleep = NOTHING.received(10.0, now=20.0)
    here = NOTHING.received(980.0, now=1_000.0)
    there = NOTHING.received(970.0, now=1_001.0)
    merged = AgeEstimate.merged([asleep, here, there])
    assert merged.visible_age_seconds(1_001.0, visible=1) == 31.0
    assert AgeEstimate.merged([asleep, AgeEstimate(empty_at=900.0)]).visible_age_seconds(1_000.0, visible=1) == 100.0
    assert AgeEstimate.merged([]) == NOTHING
    assert AgeEstimate.merged([AgeEstimate(empty_at=5.0)]).empty_at == 5.0


def test_a_clock_set_back_starts_a_new_window() -> None:
    seen = NOTHING.received(1_000.0, now=1_010.0).received(500.0, now=505.0)
    assert seen.visible_age_seconds(505.0, visible=1) == 5.0


receives = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0, 1_000)), min_size=1, max_size=20
)  # seconds since the previous receive, and how long the message had waited


@given(receives, st.floats(0, 10_000))
def test_no_estimate_is_negative_or_above_the_age_of_the_oldest_received_message(
    steps: list[tuple[float, float]], later: float
) -> None:
    now, seen, oldest = 10_000.0, NOTHING, float("inf")
    for step, waited in steps:
        now += step
        seen = seen.received(now - waited, now=now)
        oldest = min(oldest, now - waited)
    age = seen.visible_age_seconds(now + later, visible=1)
    assert age is not None
    assert 0.0 <= age <= now + later - oldest
