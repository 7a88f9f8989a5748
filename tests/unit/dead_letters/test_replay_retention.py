"""Retention of replay records, and their cleanup."""

from penstock.dead_letters.replayer import (
    FORGET_MAX,
    FORGET_SECONDS,
    UNKNOWN_RETENTION_SECONDS,
    ReplayLogCleanup,
    keep_seconds,
)
from penstock.testing import FakeClock

DAY_SECONDS = 86_400.0


def test_the_cleanup_runs_at_intervals_and_deletes_until_nothing_is_left() -> None:
    rows, deletes, clock = [2 * FORGET_MAX + 5], [], FakeClock()

    def forget(limit: int) -> int:
        count = min(limit, rows[0])
        rows[0] -= count
        deletes.append(count)
        return count

    cleanup = ReplayLogCleanup(forget, clock=clock, random=lambda: 0.5)
    cleanup.run_if_due()
    assert deletes == []
    clock.advance(FORGET_SECONDS / 2)
    cleanup.run_if_due()
    assert deletes == [FORGET_MAX, FORGET_MAX, 5]
    cleanup.run_if_due()
    clock.advance(FORGET_SECONDS)
    cleanup.run_if_due()
    assert deletes[3:] == [0]


def test_a_cleanup_run_makes_a_limited_number_of_deletes() -> None:
    clock, deletes = FakeClock(), list[int]()

    def forget(limit: int) -> int:
        deletes.append(limit)
        return limit

    ReplayLogCleanup(forget, clock=clock, random=lambda: 0.0).run_if_due()
    assert len(deletes) == 20


def test_replay_records_are_kept_longer_than_any_dead_letter() -> None:
    assert keep_seconds([4 * DAY_SECONDS, 14 * DAY_SECONDS]) == 15 * DAY_SECONDS
    assert keep_seconds([4 * DAY_SECONDS, None]) == UNKNOWN_RETENTION_SECONDS + DAY_SECONDS
    assert keep_seconds([]) == UNKNOWN_RETENTION_SECONDS + DAY_SECONDS
