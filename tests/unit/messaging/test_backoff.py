"""Delays before the next attempt."""

from penstock.messaging.backoff import backoff_seconds, idle_seconds


def test_the_ceiling_doubles_with_each_attempt() -> None:
    waits = [backoff_seconds(attempt=n, base_seconds=2.0, cap_seconds=100.0, random=lambda: 0.5) for n in range(1, 6)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_the_cap_applies_before_the_jitter_so_waits_do_not_cluster_at_it() -> None:
    draws = iter(n / 10 for n in range(10))
    waits = [
        backoff_seconds(attempt=20, base_seconds=2.0, cap_seconds=60.0, random=lambda: next(draws)) for _ in range(10)
    ]
    assert waits == [6.0 * n for n in range(10)]


def test_a_huge_attempt_count_does_not_overflow() -> None:
    assert backoff_seconds(attempt=10**9, base_seconds=2.0, cap_seconds=60.0, random=lambda: 0.5) == 30.0


def test_idle_waits_grow_from_the_floor_to_the_ceiling() -> None:
    seconds, waits = 0.05, []
    for _ in range(8):
        seconds = idle_seconds(seconds, floor_seconds=0.05, ceiling_seconds=1.0, random=lambda: 0.999)
        waits.append(seconds)
    assert waits == sorted(waits)
    assert waits[0] < 0.16
    assert 0.95 < waits[-1] <= 1.0


def test_idle_waits_never_fall_below_the_floor() -> None:
    assert idle_seconds(0.9, floor_seconds=0.05, ceiling_seconds=1.0, random=lambda: 0.0) == 0.05
