"""When a breaker opens, what a probe decides, and which failures are excused."""

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


def test_it_opens_once_so_many_different_messages_failed_alike_and_the_last_one_is_excused() -> None:
    verdicts = [failed(CALM, fault(1))]
    for number in (2, 3):
        verdicts.append(failed(verdicts[-1].state, fault(number)))
    assert [verdict.excused for verdict in verdicts] == [False, False, True]
    assert [type(verdict.state) for verdict in verdicts] == [ClosedState, ClosedState, OpenState]
    state = verdicts[-1].state
    assert isinstance(state, OpenState)
    assert (state.fingerprint, state.failures, state.error, state.opened_at) == ("refused", 3, "refused: no", NOW)
    assert state.until == NOW + 0.5


def test_one_message_that_fails_again_and_again_does_not_open_it() -> None:
    assert isinstance(after(*[fault(1)] * 20, *[fault(2)] * 20), ClosedState)


def test_batches_that_have_a_message_in_common_count_once() -> None:
    assert isinstance(after(*[fault(1, number) for number in range(2, 30)]), ClosedState)
    assert isinstance(after(fault(1, 2), fault(3, 4), fault(5, 6)), OpenState)


def test_a_success_in_between_forgets_the_row() -> None:
    state = breaker.succeeded(after(fault(1), fault(2)), frozenset({"r3"}))
    assert state is CALM
    assert isinstance(after(fault(4), fault(5), state=state), ClosedState)


def test_a_row_goes_on_over_failures_of_another_kind() -> None:
    """What is down may refuse some calls and let others hang."""
    assert isinstance(after(fault(1), fault(11, fingerprint="hung"), fault(2), fault(3)), OpenState)


def test_a_message_of_its_own_mind_neither_counts_nor_interrupts() -> None:
    state = breaker.decided(after(fault(1), fault(2)), frozenset({"r7"}))
    assert isinstance(after(fault(3), state=state), OpenState)


def test_no_failures_is_never() -> None:
    policy = BreakerPolicy(failures=0)
    state: State = CALM
    for number in range(100):
        verdict = failed(state, fault(number), policy=policy)
        assert verdict == BreakerDecision(state=CALM, excused=False)
        state = verdict.state


def test_nothing_is_admitted_until_the_pause_is_over_and_then_one() -> None:
    state = opened()
    assert (breaker.admits(state, now=NOW), breaker.opens_at(state, now=NOW)) == (0, NOW + 0.5)
    assert breaker.admits(state, now=NOW + 0.5) == 1
    assert breaker.opens_at(state, now=NOW + 0.5) is None
    assert breaker.admits(probing(), now=NOW + 10) == 0
    assert (breaker.admits(CALM, now=NOW), breaker.opens_at(CALM, now=NOW)) == (None, None)


def test_what_begins_during_the_pause_is_no_probe() -> None:
    assert breaker.began(opened(), frozenset({"r9"}), now=NOW) == opened()


def test_failures_of_the_kind_are_excused_while_it_is_open_and_others_are_not() -> None:
    assert failed(opened(), fault(4)).excused
    assert not failed(opened(), fault(4, fingerprint="a bug")).excused


def test_another_kind_that_came_with_the_first_is_the_same_outage() -> None:
    hung = [fault(number, fingerprint="hung") for number in (11, 12, 13)]
    assert failed(after(hung[0], hung[1], fault(1), fault(2), fault(3)), hung[2]).excused
    state = breaker.began(after(hung[0], hung[1], fault(1), fault(2), fault(3)), frozenset({"r13"}), now=NOW + 1)
    verdict = failed(state, hung[2])
    assert verdict.excused
    assert isinstance(verdict.state, OpenState)


def test_a_probe_that_fails_in_the_same_way_is_followed_by_a_longer_pause_up_to_the_bound() -> None:
    ceilings = []
    state: State = opened()
    for number in range(10, 16):
        now = NOW + 100.0 * number
        state = breaker.began(state, frozenset({f"r{number}"}), now=now)
        verdict = failed(state, fault(number), random=1.0, now=now)
        assert verdict.excused
        state = verdict.state
        assert isinstance(state, OpenState)
        assert state.probe is None
        ceilings.append(state.until - now)
    assert ceilings == [2.0, 4.0, 8.0, 8.0, 8.0, 8.0]
    assert isinstance(state, OpenState)
    assert (state.probes, state.opened_at) == (6, NOW)


def test_a_probe_that_succeeds_closes_it() -> None:
    assert breaker.succeeded(probing(), frozenset({"r9"})) is CALM


def test_the_success_of_what_began_before_it_opened_says_nothing() -> None:
    assert breaker.succeeded(opened(), frozenset({"r1"})) == opened()
    assert breaker.succeeded(probing(), frozenset({"r1"})) == probing()


def test_a_probe_that_fails_in_another_way_closes_it_and_is_that_message_s_own_failure() -> None:
    verdict = failed(probing(), fault(9, fingerprint="a bug"))
    assert isinstance(verdict.state, ClosedState)
    assert not verdict.excused


def test_after_a_close_without_a_success_one_failure_of_the_old_kind_opens_it_again() -> None:
    closed = breaker.decided(probing(), frozenset({"r9"}))
    assert isinstance(closed, ClosedState)
    assert failed(closed, fault(20)).excused
    assert isinstance(after(fault(20), state=closed), OpenState)


def test_a_probe_that_was_broken_off_makes_room_for_another() -> None:
    state = breaker.left(probing(), frozenset({"r9"}))
    assert breaker.admits(state, now=NOW + 10) == 1
    assert breaker.left(probing(), frozenset({"r1"})) == probing()


# A probe that hangs


def beside_one_that_hangs() -> OpenState:
    """Message 9 hangs since `NOW` + 10, and message 10 is tried beside it."""
    state = breaker.began(probing(), frozenset({"r10"}), now=NOW + 10 + PROBE_SECONDS)
    assert isinstance(state, OpenState)
    assert (state.probe, state.overdue) == (frozenset({"r10"}), (frozenset({"r9"}),))
    return state


def test_a_probe_is_the_only_one_for_a_while_and_after_that_another_is_tried_beside_it() -> None:
    due_at = NOW + 10 + PROBE_SECONDS
    assert breaker.admits(probing(), now=due_at - 1) == 0
    assert breaker.opens_at(probing(), now=due_at - 1) == due_at
    assert breaker.admits(probing(), now=due_at) == 1
    assert breaker.opens_at(probing(), now=due_at) is None
    assert breaker.admits(beside_one_that_hangs(), now=due_at) == 0


def test_the_more_probes_hang_the_longer_it_is_until_the_next() -> None:
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
def test_whichever_of_them_succeeds_closes_it(receipt: str) -> None:
    assert breaker.succeeded(beside_one_that_hangs(), frozenset({receipt})) is CALM
    assert isinstance(breaker.decided(beside_one_that_hangs(), frozenset({receipt})), ClosedState)


def test_one_that_hung_and_fails_at_last_is_excused_and_holds_up_nobody() -> None:
    verdict = failed(beside_one_that_hangs(), fault(9), now=NOW + 200)
    assert verdict.excused
    assert isinstance(verdict.state, OpenState)
    assert (verdict.state.probe, verdict.state.overdue, verdict.state.probes) == (frozenset({"r10"}), (), 0)


def test_one_that_fails_beside_one_that_hangs_is_followed_by_the_usual_pause() -> None:
    verdict = failed(beside_one_that_hangs(), fault(10), now=NOW + 200)
    assert verdict.excused
    assert breaker.opens_at(verdict.state, now=NOW + 200) == NOW + 201
    assert breaker.admits(verdict.state, now=NOW + 201) == 1
    at_last = failed(verdict.state, fault(9), now=NOW + 200.5)
    assert breaker.opens_at(at_last.state, now=NOW + 200.5) == NOW + 201


def test_either_may_be_broken_off() -> None:
    state = beside_one_that_hangs()
    hung_left = breaker.left(state, frozenset({"r9"}))
    assert isinstance(hung_left, OpenState)
    assert (hung_left.probe, hung_left.overdue) == (state.probe, ())
    other_left = breaker.left(state, frozenset({"r10"}))
    assert breaker.admits(other_left, now=NOW + 80) == 1


def test_a_breaker_of_one_failure_opens_for_each_kind() -> None:
    policy = BreakerPolicy(failures=1)
    first = failed(CALM, fault(1), policy=policy)
    assert first.excused
    state = breaker.began(first.state, frozenset({"r2"}), now=NOW + 10)
    second = failed(state, fault(2, fingerprint="hung"), policy=policy)
    assert isinstance(second.state, OpenState)
    assert second.state.fingerprint == "hung"


def test_what_was_excused_stays_away_longer_than_the_pause() -> None:
    state = opened()
    for random in (lambda: 0.0, lambda: 0.999):
        away = breaker.delay_seconds(state, policy=POLICY, now=NOW, random=random)
        assert state.until - NOW < away <= state.until - NOW + 1.0
    assert 0.5 <= breaker.delay_seconds(CALM, policy=POLICY, now=NOW, random=lambda: 0.0) <= 1.0


def test_what_was_excused_again_and_again_stays_away_longer_each_time() -> None:
    state = opened()
    away = [
        breaker.delay_seconds(state, policy=POLICY, now=state.until, random=lambda: 0.0, tries=tries)
        for tries in range(1, 30)
    ]
    assert away[:4] == [0.5, 1.0, 2.0, 4.0]
    assert away[-1] == breaker.EXTRA_SECONDS_MAX / 2


def test_what_is_remembered_is_bounded() -> None:
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
    assert tried.pass_over("m1"), "another one was found since"
    assert not tried.pass_over("m1"), "and now none was"
    assert tried.pass_over("m2")


def test_tries_are_counted_by_message() -> None:
    tried = TriedMessages()
    for _ in range(3):
        tried.add(frozenset({"m1", "m2"}))
    tried.add(frozenset({"m1"}))
    assert [tried.tries(frozenset(ids)) for ids in ({"m1"}, {"m2"}, {"m1", "m2"}, {"m3"}, ())] == [4, 3, 4, 0, 0]


def test_how_many_tried_messages_are_remembered_is_bounded() -> None:
    tried = TriedMessages(messages_max=2)
    for number in range(3):
        tried.add(frozenset({f"m{number}"}))
    assert [tried.pass_over(f"m{number}") for number in range(3)] == [False, True, True]


@pytest.mark.parametrize("numbers", [{"failures": -1}, {"pause_seconds_max": 0.0}])
def test_numbers_that_cannot_work_are_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="has to be"):
        BreakerPolicy(**numbers)  # type: ignore[arg-type]
