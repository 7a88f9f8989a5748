"""The replay policy, for all messages and settings: waits are within their limits, evenly spread, and stable."""

import hashlib
import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dead_letters.policy import (
    RETENTION_SHARE_LEFT,
    HideFor,
    MoveToFinal,
    ReplayAfter,
    ReplayPolicy,
    next_step,
    plan_replay,
    spread,
)
from penstock.messaging.backoff import ceiling_seconds
from penstock.messaging.message import Message
from penstock.messaging.replay import (
    COUNT_MAX,
    COUNTER_ATTRIBUTE,
    Replay,
    dead_letter_replay_id,
    replay_id_of,
    replays_so_far,
)

MOMENTS = st.floats(min_value=0, max_value=2e9)
SECONDS = st.floats(min_value=0.001, max_value=2e9)
RETENTIONS = st.none() | SECONDS
POLICIES = st.builds(
    ReplayPolicy, replays_max=st.integers(0, COUNT_MAX), base_seconds=SECONDS, cap_seconds=st.none() | SECONDS
)
COUNTERS = st.integers(-5, COUNT_MAX + 5).map(str) | st.text(max_size=12) | st.binary(max_size=12)
DEAD_LETTERS = st.builds(
    Message,
    id=st.text(max_size=20),
    body=st.just(b""),
    attributes=st.fixed_dictionaries({}, optional={COUNTER_ATTRIBUTE: COUNTERS}),
    group=st.none(),
    enqueued_at=MOMENTS,
)
SLACK = 1e-6  # seconds: the precision of doubles at present-day times


def plan(
    dead_letter: Message, policy: ReplayPolicy, retention: float | None, dlq_retention: float | None, now: float
) -> Replay | MoveToFinal:
    return plan_replay(
        dead_letter,
        dead_letter_queue="q-dlq",
        queue="q",
        policy=policy,
        retention_seconds=retention,
        dlq_retention_seconds=dlq_retention,
        now=now,
    )


@given(dead_letter=DEAD_LETTERS, policy=POLICIES, retention=RETENTIONS, dlq_retention=RETENTIONS, now=MOMENTS)
def test_a_wait_is_within_its_ceiling_and_leaves_a_share_of_the_retention(
    dead_letter: Message, policy: ReplayPolicy, retention: float | None, dlq_retention: float | None, now: float
) -> None:
    replay = plan(dead_letter, policy, retention, dlq_retention, now)
    so_far = replays_so_far(dead_letter.attributes)
    assert isinstance(replay, MoveToFinal) == (so_far >= policy.replays_max)
    if isinstance(replay, MoveToFinal):
        return
    assert replay.count == so_far + 1 <= policy.replays_max
    assert replay.replay_id == dead_letter_replay_id("q-dlq", dead_letter)
    wait, cap = replay.due_at - now, policy.cap_seconds or retention or math.inf
    assert 0.0 <= wait <= min(cap, policy.base_seconds * 2.0**so_far) * (1 + 1e-9) + SLACK
    if dlq_retention is not None:
        last_moment = dead_letter.enqueued_at + (1 - RETENTION_SHARE_LEFT) * dlq_retention
        assert replay.due_at <= max(last_moment, now) + SLACK


@given(dead_letter=DEAD_LETTERS, policy=POLICIES, retention=RETENTIONS, now=MOMENTS, later=st.floats(0, 1e6))
def test_planning_a_replay_again_draws_the_same_wait(
    dead_letter: Message, policy: ReplayPolicy, retention: float | None, now: float, later: float
) -> None:
    first = plan(dead_letter, policy, retention, None, now)
    again = plan(dead_letter, policy, retention, None, now + later)
    if isinstance(first, MoveToFinal) or isinstance(again, MoveToFinal):
        assert first == again
    else:
        waits = first.due_at - now, again.due_at - (now + later)
        assert waits[0] == pytest.approx(waits[1], rel=1e-9, abs=2 * SLACK)


@given(
    due_at=MOMENTS,
    now=MOMENTS,
    delay_max=st.floats(min_value=0, max_value=1e6),
    hold_max=st.floats(min_value=1, max_value=1e6),
)
def test_a_step_never_exceeds_the_limits_of_the_broker(
    due_at: float, now: float, delay_max: float, hold_max: float
) -> None:
    step = next_step(replay_due(due_at), now=now, delay_seconds_max=delay_max, hide_seconds_max=hold_max)
    if isinstance(step, ReplayAfter):
        assert 0.0 <= step.delay_seconds <= delay_max
    else:
        assert 0.0 < step.seconds <= hold_max


@given(
    wait=st.floats(min_value=0, max_value=1e6),
    delay_max=st.floats(min_value=0, max_value=1e5),
    hold_max=st.floats(min_value=1e3, max_value=1e5),
    late=st.floats(min_value=0, max_value=60),
)
def test_holds_and_the_final_delay_together_meet_the_due_time(
    wait: float, delay_max: float, hold_max: float, late: float
) -> None:
    """A replayer may come back slightly late from each hold. Each hold is as long as possible, so there are few."""
    begin = 1.7e9
    replay, now, holds = replay_due(begin + wait), begin, 0
    step = next_step(replay, now=now, delay_seconds_max=delay_max, hide_seconds_max=hold_max)
    while isinstance(step, HideFor):
        now, holds = now + max(step.seconds, 0.001) + late, holds + 1  # no broker has a finer resolution
        assert holds <= wait / hold_max + 2
        step = next_step(replay, now=now, delay_seconds_max=delay_max, hide_seconds_max=hold_max)
    arrives = now + step.delay_seconds
    assert replay.due_at - SLACK <= arrives <= replay.due_at + late + 0.001 + SLACK


@given(value=st.text(max_size=30) | st.text(alphabet="0123456789٣²", max_size=12) | st.binary(max_size=12))
def test_any_counter_is_read_as_a_possible_number(value: str | bytes) -> None:
    count = replays_so_far({COUNTER_ATTRIBUTE: value})
    assert 0 <= count <= COUNT_MAX
    if count:
        assert isinstance(value, str)
        assert value.lstrip("0") == str(count)


@given(count=st.integers(0, COUNT_MAX))
def test_a_counter_that_was_written_is_read(count: int) -> None:
    assert replays_so_far({COUNTER_ATTRIBUTE: str(count)}) == count


@given(queue=st.text(), dead_letter_id=st.text())
def test_a_spread_is_between_zero_and_one(queue: str, dead_letter_id: str) -> None:
    assert 0.0 <= spread(replay_id_of(queue, dead_letter_id)) < 1.0


@given(digits=st.text(alphabet="0123456789abcdef", min_size=32, max_size=32))
def test_the_spread_is_proportional_to_the_id(digits: str) -> None:
    assert 0.0 <= spread(digits) < 1.0
    assert spread(digits) == pytest.approx(int(digits, 16) / 16**32, abs=16.0**-12)


@pytest.mark.parametrize("ids", ["counted", "random"])
def test_waits_are_uniformly_distributed(ids: str) -> None:
    """Check the Kolmogorov-Smirnov distance of 20,000 draws from the uniform distribution, at one in a million.

    Ids are like those of brokers: consecutive or random.
    """
    count = 20_000
    names = [str(n) if ids == "counted" else hashlib.md5(str(n).encode()).hexdigest() for n in range(count)]
    draws = sorted(spread(replay_id_of("q-dlq", name)) for name in names)
    distance = max(max((n + 1) / count - draw, draw - n / count) for n, draw in enumerate(draws))
    assert distance < math.sqrt(math.log(2 / 1e-6) / 2 / count)
    assert fmean(draws) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("so_far", [0, 3, 12])
def test_waits_do_not_pile_up_at_the_cap(so_far: int) -> None:
    """A cap on the drawn waits would put most of them on one second."""
    policy = ReplayPolicy(replays_max=20, base_seconds=2.0, cap_seconds=60.0)
    ceiling = ceiling_seconds(attempt=so_far + 1, base_seconds=2.0, cap_seconds=60.0)
    waits = [due(str(n), so_far, policy) for n in range(5_000)]
    tenths = [0] * 10
    for wait in waits:
        tenths[int(wait / ceiling * 10)] += 1
    assert all(400 < tenth < 600 for tenth in tenths)


def due(dead_letter_id: str, so_far: int, policy: ReplayPolicy) -> float:
    attributes = {COUNTER_ATTRIBUTE: str(so_far)}
    dead_letter = Message(id=dead_letter_id, body=b"", attributes=attributes, group=None, enqueued_at=0.0)
    replay = plan(dead_letter, policy, None, None, 0.0)
    assert isinstance(replay, Replay)
    return replay.due_at


def replay_due(at: float) -> Replay:
    return Replay(replay_id="0" * 32, dead_letter_queue="q-dlq", dead_letter_id="l", queue="q", count=1, due_at=at)
