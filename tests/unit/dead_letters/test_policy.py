"""What becomes of a dead letter: the policy's decisions, and their borders."""

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
LETTER = "l1"
DEATH = Death(
    reason="no such colour",
    attempts=4,
    last_failed_at=NOW,
    worker="w1",
    queue="q",
    message_id="m1",
    enqueued_at=NOW - 10,
)
REPLAY = Replay(replay_id="0" * 32, dead_letter_queue="q-dlq", dead_letter_id=LETTER, queue="q", count=1, due_at=NOW)


def dead_letter(counter: str | None = None, *, died: Death | None = DEATH, enqueued_at: float = NOW) -> Message:
    attributes = {} if died is None else {DEATH_ATTRIBUTE: encode_death(died)}
    if counter is not None:
        attributes[COUNTER_ATTRIBUTE] = counter
    return Message(id=LETTER, body=b"{}", attributes=attributes, group=None, enqueued_at=enqueued_at)


SPREAD = spread(dead_letter_replay_id("q-dlq", dead_letter()))


def plan(
    of: Message,
    policy: ReplayPolicy = ReplayPolicy(),  # noqa: B008 - frozen
    *,
    retention: float | None = 14 * DAY,
    letter_retention: float | None = 14 * DAY,
    now: float = NOW,
) -> Replay | MoveToFinal:
    return plan_replay(
        of,
        dead_letter_queue="q-dlq",
        queue="q",
        policy=policy,
        retention_seconds=retention,
        dlq_retention_seconds=letter_retention,
        now=now,
    )


def due_in(of: Message, policy: ReplayPolicy = ReplayPolicy(), **options: float | None) -> float:  # noqa: B008 - frozen
    replay = plan(of, policy, **options)  # type: ignore[arg-type]
    assert isinstance(replay, Replay)
    return replay.due_at - NOW


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"replays_max": -1}, "replays_max is -1"),
        ({"replays_max": COUNT_MAX + 1}, "between 0 and 1000"),
        ({"base_seconds": 0.0}, "more than 0"),
        ({"base_seconds": math.nan}, "more than 0"),
        ({"cap_seconds": 0.0}, "more than 0"),
        ({"cap_seconds": -5.0}, "more than 0"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        ReplayPolicy(**wrong)  # type: ignore[arg-type]


def test_a_first_replay_is_the_dead_letters_own() -> None:
    replay = plan(dead_letter())
    assert isinstance(replay, Replay)
    assert (replay.dead_letter_queue, replay.dead_letter_id, replay.queue, replay.count, replay.sent) == (
        "q-dlq",
        LETTER,
        "q",
        1,
        False,
    )
    assert replay.replay_id == dead_letter_replay_id("q-dlq", dead_letter())


def test_waits_double_with_the_replays_before() -> None:
    waits = [due_in(dead_letter(str(n)), ReplayPolicy(replays_max=10)) for n in range(6)]
    assert waits == pytest.approx([SPREAD * 2 * 2**n for n in range(6)])


@pytest.mark.parametrize(("cap", "retention", "ceiling"), [(5.0, 14 * DAY, 5.0), (None, 7.0, 7.0), (None, None, 512.0)])
def test_the_cap_is_inside_the_draw(cap: float | None, retention: float | None, ceiling: float) -> None:
    policy = ReplayPolicy(replays_max=10, cap_seconds=cap)
    assert due_in(dead_letter("8"), policy, retention=retention) == pytest.approx(SPREAD * ceiling)


def test_a_ceiling_grows_without_end_nor_overflow() -> None:
    assert ceiling_seconds(attempt=COUNT_MAX, base_seconds=2.0, cap_seconds=14 * DAY) == 14 * DAY
    assert math.isfinite(ceiling_seconds(attempt=COUNT_MAX, base_seconds=2.0))


@pytest.mark.parametrize(
    ("counter", "replays_max", "reason"),
    [
        ("3", 3, "replayed 3 times, and dead again"),
        ("1", 1, "replayed once, and dead again"),
        ("7", 3, "replayed 7 times, and dead again"),
        (None, 0, "its queue is not replayed"),
    ],
)
def test_over_the_limit_it_is_for_people(counter: str | None, replays_max: int, reason: str) -> None:
    assert plan(dead_letter(counter), ReplayPolicy(replays_max=replays_max)) == MoveToFinal(reason=reason)


def test_the_last_one_that_is_allowed_is_made() -> None:
    assert isinstance(plan(dead_letter("2"), ReplayPolicy(replays_max=3)), Replay)


@pytest.mark.parametrize("counter", ["-1", "x", "99999999999", str(COUNT_MAX + 1)])
def test_a_counter_that_is_garbled_begins_anew(counter: str) -> None:
    replay = plan(dead_letter(counter))
    assert isinstance(replay, Replay)
    assert replay.count == 1


def test_poison_comes_before_everything() -> None:
    poisoned = dead_letter("9", died=replace(DEATH, poison=True))
    expected = MoveToFinal(reason="another attempt cannot help: no such colour")
    assert plan(poisoned) == poison_move(poisoned) == expected


@pytest.mark.parametrize("died", [DEATH, None])
def test_what_is_not_said_to_be_poison_is_none(died: Death | None) -> None:
    assert poison_move(dead_letter(died=died)) is None
    assert isinstance(plan(dead_letter(died=died)), Replay), "a letter that says nothing of its death comes back too"


def test_no_wait_outlives_the_dead_letter() -> None:
    long = ReplayPolicy(base_seconds=1_000 * DAY)
    of = dead_letter(enqueued_at=NOW - DAY)
    last = 4 * DAY * (1 - RETENTION_SHARE_LEFT) - DAY
    assert due_in(of, long, retention=None, letter_retention=4 * DAY) == pytest.approx(
        spread(dead_letter_replay_id("q-dlq", of)) * last
    )


def test_a_dead_letter_at_the_end_of_its_retention_goes_back_now() -> None:
    of = dead_letter(enqueued_at=NOW - 3.9 * DAY)
    assert due_in(of, ReplayPolicy(base_seconds=DAY), retention=None, letter_retention=4 * DAY) == 0.0


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
def test_a_dead_letter_waits_for_what_its_queue_cannot_delay(
    due_in_seconds: float, step: HideFor | ReplayAfter
) -> None:
    replay = replace(REPLAY, due_at=NOW + due_in_seconds)
    assert next_step(replay, now=NOW, delay_seconds_max=900.0, hide_seconds_max=43_200.0) == step


def test_ids_are_spread_from_nought_to_just_under_one() -> None:
    assert spread("0" * 32) == 0.0
    assert spread("8" + "0" * 31) == 0.5
    assert spread("f" * 32) < 1.0
