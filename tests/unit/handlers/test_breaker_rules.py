"""Rules of the circuit breaker: opening, probes and excused failures."""

import pytest

from penstock.errors import UsageError
from penstock.handlers import breaker
from penstock.handlers.breaker import (
    CALM,
    PROBE_SECONDS,
    PROBE_SECONDS_MAX,
    BreakerDecision,
    BreakerFailure,
    BreakerPolicy,
    ClosedState,
    OpenState,
    State,
    TriedMessages,
)

POLICY = BreakerPolicy(failures=3, pause_seconds_max=8.0)
NOW = 100.0


def fault(*numbers: int, fingerprint: str = "refused") -> BreakerFailure:
    return BreakerFailure(
        fingerprint=fingerprint,
        error=f"{fingerprint}: no",
        message_ids=frozenset(f"m{number}" for number in numbers),
        receipts=frozenset(f"r{number}" for number in numbers),
    )


def failed(
    state: State, one: BreakerFailure, *, now: float = NOW, random: float = 0.5, policy: BreakerPolicy = POLICY
) -> BreakerDecision:
    return breaker.failed(state, one, policy=policy, now=now, random=lambda: random)


def after(*faults: BreakerFailure, state: State = CALM) -> State:
    for one in faults:
        state = failed(state, one).state
    return state


def opened() -> OpenState:
    state = after(fault(1), fault(2), fault(3))
    assert isinstance(state, OpenState)
    return state


def probing() -> OpenState:
    state = breaker.began(opened(), frozenset({"r9"}), now=NOW + 10)
    assert isinstance(state, OpenState)
    assert state.probe == frozenset({"r9"})
    return state


def test_enough_messages_with_the_same_failure_open_the_breaker_and_the_last_one_is_excused() -> None:
    decisions = [failed(CALM, fault(1))]
    for number in (2, 3):
        decisions.append(failed(decisions[-1].state, fault(number)))
    assert [decision.excused for decision in decisions] == [False, False, True]
    assert [type(decision.state) for decision in decisions] == [ClosedState, ClosedState, OpenState]
    state = decisions[-1].state
    assert isinstance(state, OpenState)
    assert (state.fingerprint, state.failures, state.error, state.opened_at) == ("refused", 3, "refused: no", NOW)
    assert state.until == NOW + 0.5


def test_repeated_failures_of_one_message_do_not_open_the_breaker() -> None:
    assert isinstance(after(*[fault(1)] * 20, *[fault(2)] * 20), ClosedState)


def test_batches_that_share_a_message_count_as_one_failure() -> None:
    assert isinstance(after(*[fault(1, number) for number in range(2, 30)]), ClosedState)
    assert isinstance(after(fault(1, 2), fault(3, 4), fault(5, 6)), OpenState)


def test_a_success_resets_the_streak() -> None:
    state = breaker.succeeded(after(fault(1), fault(2)), frozenset({"r3"}))
    assert state is CALM
    assert isinstance(after(fault(4), fault(5), state=state), ClosedState)


def test_a_streak_continues_across_failures_of_another_kind() -> None:
    """A dependency that is down may refuse some calls and let others hang."""
    assert isinstance(after(fault(1), fault(11, fingerprint="hung"), fault(2), fault(3)), OpenState)


def test_an_answered_message_neither_extends_nor_resets_the_streak() -> None:
    state = breaker.decided(after(fault(1), fault(2)), frozenset({"r7"}))
    assert isinstance(after(fault(3), state=state), OpenState)


def test_a_limit_of_zero_failures_never_opens_the_breaker() -> None:
    policy = BreakerPolicy(failures=0)
    state: State = CALM
    for number in range(100):
        decision = failed(state, fault(number), policy=policy)
        assert decision == BreakerDecision(state=CALM, excused=False)
        state = decision.state


def test_an_open_breaker_admits_nothing_during_the_pause_and_one_message_after_it() -> None:
    state = opened()
    assert (breaker.admits(state, now=NOW), breaker.opens_at(state, now=NOW)) == (0, NOW + 0.5)
    assert breaker.admits(state, now=NOW + 0.5) == 1
    assert breaker.opens_at(state, now=NOW + 0.5) is None
    assert breaker.admits(probing(), now=NOW + 10) == 0
    assert (breaker.admits(CALM, now=NOW), breaker.opens_at(CALM, now=NOW)) == (None, None)


def test_an_execution_begun_during_the_pause_is_not_a_probe() -> None:
    assert breaker.began(opened(), frozenset({"r9"}), now=NOW) == opened()


def test_an_open_breaker_excuses_only_failures_with_its_fingerprint() -> None:
    assert failed(opened(), fault(4)).excused
    assert not failed(opened(), fault(4, fingerprint="a bug")).excused


def test_a_second_kind_of_failure_seen_before_the_opening_belongs_to_the_same_outage() -> None:
    hung = [fault(number, fingerprint="hung") for number in (11, 12, 13)]
    assert failed(after(hung[0], hung[1], fault(1), fault(2), fault(3)), hung[2]).excused
    state = breaker.began(after(hung[0], hung[1], fault(1), fault(2), fault(3)), frozenset({"r13"}), now=NOW + 1)
    decision = failed(state, hung[2])
    assert decision.excused
    assert isinstance(decision.state, OpenState)


def test_each_failed_probe_lengthens_the_pause_up_to_the_maximum() -> None:
    ceilings = []
    state: State = opened()
    for number in range(10, 16):
        now = NOW + 100.0 * number
        state = breaker.began(state, frozenset({f"r{number}"}), now=now)
        decision = failed(state, fault(number), random=1.0, now=now)
        assert decision.excused
        state = decision.state
        assert isinstance(state, OpenState)
        assert state.probe is None
        ceilings.append(state.until - now)
    assert ceilings == [2.0, 4.0, 8.0, 8.0, 8.0, 8.0]
    assert isinstance(state, OpenState)
    assert (state.probes, state.opened_at) == (6, NOW)


def test_a_successful_probe_closes_the_breaker() -> None:
    assert breaker.succeeded(probing(), frozenset({"r9"})) is CALM


def test_a_success_of_work_begun_before_the_opening_changes_nothing() -> None:
    assert breaker.succeeded(opened(), frozenset({"r1"})) == opened()
    assert breaker.succeeded(probing(), frozenset({"r1"})) == probing()


def test_a_probe_that_fails_differently_closes_the_breaker_and_is_not_excused() -> None:
    decision = failed(probing(), fault(9, fingerprint="a bug"))
    assert isinstance(decision.state, ClosedState)
    assert not decision.excused


def test_after_closing_without_a_success_one_failure_of_the_old_kind_reopens_the_breaker() -> None:
    closed = breaker.decided(probing(), frozenset({"r9"}))
    assert isinstance(closed, ClosedState)
    assert failed(closed, fault(20)).excused
    assert isinstance(after(fault(20), state=closed), OpenState)


def test_an_abandoned_probe_allows_another() -> None:
    state = breaker.left(probing(), frozenset({"r9"}))
    assert breaker.admits(state, now=NOW + 10) == 1
    assert breaker.left(probing(), frozenset({"r1"})) == probing()


# A probe that hangs


def with_hung_probe() -> OpenState:
    """Return the state in which message 9 hangs since `NOW` + 10 and message 10 is the second probe."""
    state = breaker.began(probing(), frozenset({"r10"}), now=NOW + 10 + PROBE_SECONDS)
    assert isinstance(state, OpenState)
    assert (state.probe, state.overdue) == (frozenset({"r10"}), (frozenset({"r9"}),))
    return state


def test_an_overdue_probe_allows_a_second_one() -> None:
    due_at = NOW + 10 + PROBE_SECONDS
    assert breaker.admits(probing(), now=due_at - 1) == 0
    assert breaker.opens_at(probing(), now=due_at - 1) == due_at
    assert breaker.admits(probing(), now=due_at) == 1
    assert breaker.opens_at(probing(), now=due_at) is None
    assert breaker.admits(with_hung_probe(), now=due_at) == 0


def test_each_hung_probe_doubles_the_wait_for_the_next_up_to_the_maximum() -> None:
    state: State = opened()
    began_at, waits = [NOW + 10], []
    for number in range(12):
        state = breaker.began(state, frozenset({f"hung {number}"}), now=began_at[-1])
        next_at = breaker.opens_at(state, now=began_at[-1])
        assert next_at is not None
        waits.append(next_at - began_at[-1])
        began_at.append(next_at)
    assert waits[:4] == [PROBE_SECONDS, 2 * PROBE_SECONDS, 4 * PROBE_SECONDS, 8 * PROBE_SECONDS]
    assert waits[-1] == PROBE_SECONDS_MAX


@pytest.mark.parametrize("receipt", ["r9", "r10"])
def test_a_success_or_answer_of_either_probe_closes_the_breaker(receipt: str) -> None:
    assert breaker.succeeded(with_hung_probe(), frozenset({receipt})) is CALM
    assert isinstance(breaker.decided(with_hung_probe(), frozenset({receipt})), ClosedState)


def test_a_hung_probe_that_fails_is_excused_and_leaves_the_second_probe_running() -> None:
    decision = failed(with_hung_probe(), fault(9), now=NOW + 200)
    assert decision.excused
    assert isinstance(decision.state, OpenState)
    assert (decision.state.probe, decision.state.overdue, decision.state.probes) == (frozenset({"r10"}), (), 0)


def test_a_failed_second_probe_starts_the_usual_pause() -> None:
    decision = failed(with_hung_probe(), fault(10), now=NOW + 200)
    assert decision.excused
    assert breaker.opens_at(decision.state, now=NOW + 200) == NOW + 201
    assert breaker.admits(decision.state, now=NOW + 201) == 1
    at_last = failed(decision.state, fault(9), now=NOW + 200.5)
    assert breaker.opens_at(at_last.state, now=NOW + 200.5) == NOW + 201


def test_either_probe_may_be_abandoned() -> None:
    state = with_hung_probe()
    hung_left = breaker.left(state, frozenset({"r9"}))
    assert isinstance(hung_left, OpenState)
    assert (hung_left.probe, hung_left.overdue) == (state.probe, ())
    other_left = breaker.left(state, frozenset({"r10"}))
    assert breaker.admits(other_left, now=NOW + 80) == 1


def test_a_limit_of_one_failure_opens_the_breaker_for_each_kind() -> None:
    policy = BreakerPolicy(failures=1)
    first = failed(CALM, fault(1), policy=policy)
    assert first.excused
    state = breaker.began(first.state, frozenset({"r2"}), now=NOW + 10)
    second = failed(state, fault(2, fingerprint="hung"), policy=policy)
    assert isinstance(second.state, OpenState)
    assert second.state.fingerprint == "hung"


def test_an_excused_message_is_delayed_beyond_the_pause() -> None:
    state = opened()
    for random in (lambda: 0.0, lambda: 0.999):
        delay = breaker.delay_seconds(state, policy=POLICY, now=NOW, random=random)
        assert state.until - NOW < delay <= state.until - NOW + 1.0
    assert 0.5 <= breaker.delay_seconds(CALM, policy=POLICY, now=NOW, random=lambda: 0.0) <= 1.0


def test_the_delay_of_an_excused_message_grows_with_its_tries() -> None:
    state = opened()
    delays = [
        breaker.delay_seconds(state, policy=POLICY, now=state.until, random=lambda: 0.0, tries=tries)
        for tries in range(1, 30)
    ]
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
    assert delays[-1] == breaker.EXTRA_SECONDS_MAX / 2


def test_remembered_failures_are_bounded() -> None:
    state = after(*[fault(number, fingerprint=f"kind {number}") for number in range(100)])
    assert len(state.streaks) == breaker.FINGERPRINTS_MAX
    state = opened()
    for number in range(100):
        state = after(fault(number), state=state)
    assert len(state.streaks["refused"]) == POLICY.failures


def test_a_tried_message_is_passed_over_while_others_are_found() -> None:
    tried = TriedMessages()
    tried.add(frozenset({"m1"}))
    assert not tried.pass_over("m2")
    assert tried.pass_over("m1")
    tried.add(frozenset({"m2"}))
    assert tried.pass_over("m1"), "another message was found since"
    assert not tried.pass_over("m1"), "no other message was found since"
    assert tried.pass_over("m2")


def test_tries_are_counted_by_message() -> None:
    tried = TriedMessages()
    for _ in range(3):
        tried.add(frozenset({"m1", "m2"}))
    tried.add(frozenset({"m1"}))
    assert [tried.tries(frozenset(ids)) for ids in ({"m1"}, {"m2"}, {"m1", "m2"}, {"m3"}, ())] == [4, 3, 4, 0, 0]


def test_remembered_tried_messages_are_bounded() -> None:
    tried = TriedMessages(messages_max=2)
    for number in range(3):
        tried.add(frozenset({f"m{number}"}))
    assert [tried.pass_over(f"m{number}") for number in range(3)] == [False, True, True]


@pytest.mark.parametrize("numbers", [{"failures": -1}, {"pause_seconds_max": 0.0}])
def test_invalid_numbers_are_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="has to be"):
        BreakerPolicy(**numbers)  # type: ignore[arg-type]
