"""Decisions of the replay policy about a dead-lettered message, and their limits."""

import math
from dataclasses import replace

import pytest

from penstock.dead_letters.policy import (
    RETENTION_SHARE_LEFT,
    HideFor,
    MoveToFinal,
    ReplayAfter,
    ReplayPolicy,
    next_step,
    plan_replay,
    poison_move,
    spread,
)
from penstock.errors import ConfigurationError
from penstock.messaging.backoff import ceiling_seconds
from penstock.messaging.death import DEATH_ATTRIBUTE, Death, encode_death
from penstock.messaging.message import Message
from penstock.messaging.replay import COUNT_MAX, COUNTER_ATTRIBUTE, Replay, dead_letter_replay_id

NOW = 1_000_000.0
DAY = 86_400.0
DEAD_LETTER_ID = "l1"
DEATH = Death(
    reason="no such colour",
    attempts=4,
    last_failed_at=NOW,
    worker="w1",
    queue="q",
    message_id="m1",
    enqueued_at=NOW - 10,
)
REPLAY = Replay(
    replay_id="0" * 32, dead_letter_queue="q-dlq", dead_letter_id=DEAD_LETTER_ID, queue="q", count=1, due_at=NOW
)


def dead_letter(counter: str | None = None, *, died: Death | None = DEATH, enqueued_at: float = NOW) -> Message:
    attributes = {} if died is None else {DEATH_ATTRIBUTE: encode_death(died)}
    if counter is not None:
        attributes[COUNTER_ATTRIBUTE] = counter
    return Message(id=DEAD_LETTER_ID, body=b"{}", attributes=attributes, group=None, enqueued_at=enqueued_at)


SPREAD = spread(dead_letter_replay_id("q-dlq", dead_letter()))


def plan(
    of: Message,
    policy: ReplayPolicy = ReplayPolicy(),  # noqa: B008 - frozen
    *,
    retention: float | None = 14 * DAY,
    dlq_retention: float | None = 14 * DAY,
    now: float = NOW,
) -> Replay | MoveToFinal:
    return plan_replay(
        of,
        dead_letter_queue="q-dlq",
        queue="q",
        policy=policy,
        retention_seconds=retention,
        dlq_retention_seconds=dlq_retention,
        now=now,
    )


def due_in(of: Message, policy: ReplayPolicy = ReplayPolicy(), **options: float | None) -> float:  # noqa: B008 - frozen
    replay = plan(of, policy, **options)  # type: ignore[arg-type]
    assert isinstance(replay, Replay)
    return replay.due_at - NOW


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replays_max": -1}, "replays_max is -1"),
        ({"replays_max": COUNT_MAX + 1}, "between 0 and 1000"),
        ({"base_seconds": 0.0}, "more than 0"),
        ({"base_seconds": math.nan}, "more than 0"),
        ({"cap_seconds": 0.0}, "more than 0"),
        ({"cap_seconds": -5.0}, "more than 0"),
    ],
)
def test_an_invalid_policy_is_rejected(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ReplayPolicy(**options)  # type: ignore[arg-type]


def test_a_first_replay_is_planned_from_its_dead_letter() -> None:
    replay = plan(dead_letter())
    assert isinstance(replay, Replay)
    assert (replay.dead_letter_queue, replay.dead_letter_id, replay.queue, replay.count, replay.sent) == (
        "q-dlq",
        DEAD_LETTER_ID,
        "q",
        1,
        False,
    )
    assert replay.replay_id == dead_letter_replay_id("q-dlq", dead_letter())


def test_the_wait_doubles_with_each_earlier_replay() -> None:
    waits = [due_in(dead_letter(str(n)), ReplayPolicy(replays_max=10)) for n in range(6)]
    assert waits == pytest.approx([SPREAD * 2 * 2**n for n in range(6)])


@pytest.mark.parametrize(("cap", "retention", "ceiling"), [(5.0, 14 * DAY, 5.0), (None, 7.0, 7.0), (None, None, 512.0)])
def test_the_cap_applies_before_the_spread(cap: float | None, retention: float | None, ceiling: float) -> None:
    policy = ReplayPolicy(replays_max=10, cap_seconds=cap)
    assert due_in(dead_letter("8"), policy, retention=retention) == pytest.approx(SPREAD * ceiling)


def test_the_backoff_ceiling_does_not_overflow() -> None:
    assert ceiling_seconds(attempt=COUNT_MAX, base_seconds=2.0, cap_seconds=14 * DAY) == 14 * DAY
    assert math.isfinite(ceiling_seconds(attempt=COUNT_MAX, base_seconds=2.0))


@pytest.mark.parametrize(
    ("counter", "replays_max", "reason"),
    [
        ("3", 3, "replayed 3 times, and failed again"),
        ("1", 1, "replayed once, and failed again"),
        ("7", 3, "replayed 7 times, and failed again"),
        (None, 0, "its queue is not replayed"),
    ],
)
def test_a_message_over_the_replay_limit_moves_to_the_final_dlq(
    counter: str | None, replays_max: int, reason: str
) -> None:
    assert plan(dead_letter(counter), ReplayPolicy(replays_max=replays_max)) == MoveToFinal(reason=reason)


def test_the_last_allowed_replay_is_planned() -> None:
    assert isinstance(plan(dead_letter("2"), ReplayPolicy(replays_max=3)), Replay)


@pytest.mark.parametrize("counter", ["-1", "x", "99999999999", str(COUNT_MAX + 1)])
def test_a_malformed_counter_counts_as_zero(counter: str) -> None:
    replay = plan(dead_letter(counter))
    assert isinstance(replay, Replay)
    assert replay.count == 1


def test_poison_moves_to_the_final_dlq_before_all_other_rules() -> None:
    poisoned = dead_letter("9", died=replace(DEATH, poison=True))
    expected = MoveToFinal(reason="another attempt cannot help: no such colour")
    assert plan(poisoned) == poison_move(poisoned) == expected


@pytest.mark.parametrize("died", [DEATH, None])
def test_a_message_that_is_not_marked_as_poison_is_replayed(died: Death | None) -> None:
    assert poison_move(dead_letter(died=died)) is None
    assert isinstance(plan(dead_letter(died=died)), Replay), "a message without a death is replayed too"


def test_the_wait_ends_before_the_message_expires() -> None:
    long = ReplayPolicy(base_seconds=1_000 * DAY)
    of = dead_letter(enqueued_at=NOW - DAY)
    last = 4 * DAY * (1 - RETENTION_SHARE_LEFT) - DAY
    assert due_in(of, long, retention=None, dlq_retention=4 * DAY) == pytest.approx(
        spread(dead_letter_replay_id("q-dlq", of)) * last
    )


def test_a_message_about_to_expire_is_replayed_at_once() -> None:
    of = dead_letter(enqueued_at=NOW - 3.9 * DAY)
    assert due_in(of, ReplayPolicy(base_seconds=DAY), retention=None, dlq_retention=4 * DAY) == 0.0


@pytest.mark.parametrize(
    ("due_in_seconds", "step"),
    [
        (-100.0, ReplayAfter(delay_seconds=0.0)),
        (0.0, ReplayAfter(delay_seconds=0.0)),
        (900.0, ReplayAfter(delay_seconds=900.0)),
        (901.0, HideFor(seconds=1.0)),
        (5_000.0, HideFor(seconds=4_100.0)),
        (43_200.0 + 900.0, HideFor(seconds=43_200.0)),
        (DAY * 10, HideFor(seconds=43_200.0)),
    ],
)
def test_a_message_is_hidden_for_the_part_of_the_wait_that_its_queue_cannot_delay(
    due_in_seconds: float, step: HideFor | ReplayAfter
) -> None:
    replay = replace(REPLAY, due_at=NOW + due_in_seconds)
    assert next_step(replay, now=NOW, delay_seconds_max=900.0, hide_seconds_max=43_200.0) == step


def test_ids_are_spread_from_zero_to_just_under_one() -> None:
    assert spread("0" * 32) == 0.0
    assert spread("8" + "0" * 31) == 0.5
    assert spread("f" * 32) < 1.0
