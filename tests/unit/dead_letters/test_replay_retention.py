"""How long the records of replays are kept."""

from penstock.dead_letters.replayer import (
    FORGET_MAX,
    FORGET_SECONDS,
    UNKNOWN_RETENTION_SECONDS,
    ReplayLogCleanup,
    keep_seconds,
)
from penstock.testing import FakeClock

DAY_SECONDS = 86_400.0


def test_it_is_done_now_and_then_and_until_nothing_is_left() -> None:
    rows, asked, clock = [2 * FORGET_MAX + 5], [], FakeClock()

    def forget(limit: int) -> int:
        count = min(limit, rows[0])
        rows[0] -= count
        asked.append(count)
        return count

    forgetting = ReplayLogCleanup(forget, clock=clock, random=lambda: 0.5)
    forgetting.run_if_due()
    assert asked == []
    clock.advance(FORGET_SECONDS / 2)
    forgetting.run_if_due()
    assert asked == [FORGET_MAX, FORGET_MAX, 5]
    forgetting.run_if_due()
    clock.advance(FORGET_SECONDS)
    forgetting.run_if_due()
    assert asked[3:] == [0]


def test_a_look_has_an_end_however_much_there_is() -> None:
    clock, asked = FakeClock(), list[int]()

    def forget(limit: int) -> int:
        asked.append(limit)
        return limit

    ReplayLogCleanup(forget, clock=clock, random=lambda: 0.0).run_if_due()
    assert len(asked) == 20


def test_replays_are_kept_for_longer_than_any_dead_letter() -> None:
    assert keep_seconds([4 * DAY_SECONDS, 14 * DAY_SECONDS]) == 15 * DAY_SECONDS
    assert keep_seconds([4 * DAY_SECONDS, None]) == UNKNOWN_RETENTION_SECONDS + DAY_SECONDS
    assert keep_seconds([]) == UNKNOWN_RETENTION_SECONDS + DAY_SECONDS
