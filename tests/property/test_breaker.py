"""A breaker under any order of outcomes: it never sticks, never admits two probes, and counts attempts while closed."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from penstock.handlers import breaker
from penstock.handlers.breaker import (
    CALM,
    PROBE_SECONDS_MAX,
    BreakerFailure,
    BreakerPolicy,
    ClosedState,
    OpenState,
    State,
    TriedMessages,
)

KINDS = ("refused", "hung")
MESSAGES = range(6)


@dataclass(frozen=True)
class Step:
    action: str  # begin, fail, succeed, answer, leave, wait
    message: int
    kind: str
    seconds: float
    random: float


steps = st.lists(
    st.builds(
        Step,
        action=st.sampled_from(["begin", "fail", "fail", "fail", "succeed", "answer", "leave", "wait"]),
        message=st.sampled_from(MESSAGES),
        kind=st.sampled_from(KINDS),
        seconds=st.floats(0.0, 100.0),
        random=st.floats(0.0, 1.0, exclude_max=True),
    ),
    max_size=60,
)
policies = st.builds(
    BreakerPolicy, failures=st.integers(0, 5), pause_seconds_max=st.sampled_from([0.5, 1.0, 4.0, 30.0])
)


def taken(state: State, step: Step, policy: BreakerPolicy, now: float) -> tuple[State, bool]:
    """Return the next state, and True if a failure was excused."""
    receipts = frozenset({f"r{step.message}"})
    match step.action:
        case "begin":
            return breaker.began(state, receipts, now=now), False
        case "succeed":
            return breaker.succeeded(state, receipts), False
        case "answer":
            return breaker.decided(state, receipts), False
        case "leave":
            return breaker.left(state, receipts), False
        case "fail":
            fault = BreakerFailure(
                fingerprint=step.kind, error="no", message_ids=frozenset({f"m{step.message}"}), receipts=receipts
            )
            decision = breaker.failed(state, fault, policy=policy, now=now, random=lambda: step.random)
            return decision.state, decision.excused
    return state, False


@given(steps, policies)
def test_a_breaker_never_sticks_and_admits_one_probe_at_a_time(walk: list[Step], policy: BreakerPolicy) -> None:
    state: State = CALM
    now = 1_000.0
    since_success: dict[str, set[int]] = {kind: set() for kind in KINDS}
    for step in walk:
        now += step.seconds if step.action == "wait" else 0.0
        before = state
        state, excused = taken(state, step, policy, now)
        if step.action == "fail":
            since_success[step.kind].add(step.message)
        if state is CALM:
            since_success = {kind: set() for kind in KINDS}
        # Only an open breaker excuses, and it opens only after the configured number of messages that failed alike.
        assert not excused or isinstance(state, OpenState)
        if isinstance(state, OpenState) and isinstance(before, ClosedState):
            assert excused
            assert len(since_success[state.fingerprint]) >= policy.failures > 0
        if isinstance(state, OpenState):
            # It never sticks: whichever calls run, another probe is admitted at a known time in the near future.
            opens_at = breaker.opens_at(state, now=now)
            assert breaker.admits(state, now=now if opens_at is None else opens_at) == 1
            near_seconds = policy.pause_seconds_max if state.probe is None else PROBE_SECONDS_MAX
            assert opens_at is None or opens_at - now <= near_seconds
            # Until it is overdue, a probe is the only one: no other message is admitted or becomes the probe.
            if state.probe is not None:
                alone_until = state.overdue_at - 0.001
                assert breaker.admits(state, now=alone_until) == 0
                assert breaker.began(state, frozenset({"another"}), now=alone_until) == state
                # This ends, and the message that replaces it does not end its role as a probe.
                assert alone_until - now < PROBE_SECONDS_MAX
                assert breaker.admits(state, now=state.overdue_at) == 1
                beside = breaker.began(state, frozenset({"another"}), now=state.overdue_at)
                assert isinstance(beside, OpenState)
                assert breaker.is_probe(beside, state.probe)
                assert breaker.is_probe(beside, frozenset({"another"}))
                assert breaker.admits(beside, now=state.overdue_at) == 0
        else:
            assert breaker.admits(state, now=now) is None


@given(steps, policies)
def test_a_success_of_the_probe_closes_the_breaker_in_any_state(walk: list[Step], policy: BreakerPolicy) -> None:
    state: State = CALM
    now = 1_000.0
    for step in walk:
        now += step.seconds if step.action == "wait" else 0.0
        state, _ = taken(state, step, policy, now)
    if isinstance(state, OpenState) and state.probe is None:
        state = breaker.began(state, frozenset({"p"}), now=state.until)
    tried = (*state.overdue, state.probe) if isinstance(state, OpenState) and state.probe else (frozenset({"p"}),)
    for receipts in tried:  # an overdue probe too
        assert breaker.succeeded(state, receipts) is CALM


@given(st.integers(1, 9))
def test_if_all_messages_fail_each_is_tried_once_before_any_second_try(
    queued: int,
) -> None:
    """The queue delivers the first message that is not passed over in this poll, as a queue in order of age does."""
    tried, seen = TriedMessages(), []
    for _ in range(2 * queued):
        for message in range(queued):
            if not tried.pass_over(f"m{message}"):
                break
        else:
            message = 0  # all were passed over once; the first is delivered again, and no other was found
            assert not tried.pass_over("m0")
        tried.add(frozenset({f"m{message}"}))
        seen.append(message)
    assert sorted(seen[:queued]) == list(range(queued))
