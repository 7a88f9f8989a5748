"""Backoff and the stop budget, for all numbers."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError
from penstock.messaging.backoff import backoff_seconds, idle_seconds
from penstock.worker.settings import budget

SECONDS = st.floats(min_value=0.001, max_value=1e5)
DRAWS = st.floats(min_value=0.0, max_value=1.0, exclude_max=True)


@given(attempt=st.integers(min_value=-5, max_value=10**12), base=SECONDS, cap=SECONDS, draw=DRAWS)
def test_a_backoff_is_within_its_limits(attempt: int, base: float, cap: float, draw: float) -> None:
    seconds = backoff_seconds(attempt=attempt, base_seconds=base, cap_seconds=cap, random=lambda: draw)
    assert 0.0 <= seconds <= cap
    assert seconds <= base * 2.0 ** min(max(attempt, 1) - 1, 900)


@given(attempt=st.integers(min_value=1, max_value=100), base=SECONDS, cap=SECONDS, draw=DRAWS)
def test_a_backoff_never_shrinks_with_the_attempts(attempt: int, base: float, cap: float, draw: float) -> None:
    earlier, later = (
        backoff_seconds(attempt=n, base_seconds=base, cap_seconds=cap, random=lambda: draw)
        for n in (attempt, attempt + 1)
    )
    assert earlier <= later


@given(previous=st.floats(min_value=0.0, max_value=1e5), floor=SECONDS, span=SECONDS, draw=DRAWS)
def test_an_idle_wait_is_between_floor_and_ceiling(previous: float, floor: float, span: float, draw: float) -> None:
    ceiling = floor + span
    seconds = idle_seconds(previous, floor_seconds=floor, ceiling_seconds=ceiling, random=lambda: draw)
    assert floor <= seconds <= ceiling * (1 + 1e-12)


@given(
    stop_timeout=st.floats(min_value=0, max_value=1_000),
    drain=st.none() | st.floats(min_value=-10, max_value=1_000),
    release=st.floats(min_value=-1, max_value=30),
    flush=st.floats(min_value=-1, max_value=30),
)
def test_an_accepted_budget_fits_into_the_stop_timeout(
    stop_timeout: float, drain: float | None, release: float, flush: float
) -> None:
    try:
        parts = budget(
            stop_timeout_seconds=stop_timeout, drain_seconds=drain, release_seconds=release, flush_seconds=flush
        )
    except ConfigurationError:
        rest = 1.0 + release + flush + 2.0
        assert min(release, flush) < 0 or stop_timeout - rest < (drain or 0.0) or (drain is not None and drain < 0)
        return
    spent = (
        parts.intake_seconds,
        parts.drain_seconds,
        parts.release_seconds,
        parts.flush_seconds,
        parts.margin_seconds,
    )
    assert min(spent) >= 0
    assert sum(spent) <= stop_timeout + 1e-6
    assert drain is None or parts.drain_seconds == drain


@given(stop_timeout=st.floats(min_value=0, max_value=100), drain=st.floats(min_value=0, max_value=100))
def test_a_drain_longer_than_the_remaining_time_is_always_refused(stop_timeout: float, drain: float) -> None:
    assume(drain > stop_timeout - 8)
    with pytest.raises(ConfigurationError):
        budget(stop_timeout_seconds=stop_timeout, drain_seconds=drain)
