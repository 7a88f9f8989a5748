"""No recorded end hides content that exists and was notified, and no rule of it can be dropped."""

from collections import Counter

import pytest
from tests.simulation.collector import no_garbage_collection
from tests.simulation.unread_model import Mutation, State, canonical, moves, violation

STATES_MAX = 150_000
STARTS = {  # with the minimum number of states
    "whole": (State(), 100_000),
    "only missing": (State(failures=0), 50_000),
    "two changes": (State(changes=2), 14_000),
    "three messages": (State(room=3, outages=0, failures=0, repeats=0), 35_000),
}
SLOW = {"whole"}
UNREAD = "content that exists and was notified was never read"
TWICE = "rows of an object are in the table twice"
MUTANTS = {
    Mutation.ENDS_ARE_FINAL: UNREAD,
    Mutation.SINCE_THE_END: UNREAD,
    Mutation.SINCE_THE_RECORD: UNREAD,
    Mutation.CHECKS_OUTLIVE_NEWS: UNREAD,
    Mutation.ORDER_IS_KEPT: UNREAD,
    Mutation.LISTINGS_IGNORED: UNREAD,
    Mutation.ATTEMPTS_ARE_CHECKS: UNREAD,
    Mutation.CHECKS_AT_ONCE: UNREAD,
    Mutation.OLD_MESSAGES_RESTORE: "one message begins two lives of an object",
    Mutation.PROCESSED_ONES_RETURN: TWICE,
    Mutation.HELD_ONES_ARE_TAKEN: TWICE,
}


def explore(mutation: Mutation, first: State = STARTS["whole"][0]) -> tuple[int, Counter[str], str | None, list[str]]:
    """Visit states until one breaks the promise. Return their number, the moves taken, the violation and its path."""
    with no_garbage_collection():
        return _explore(mutation, canonical(first))


def _explore(mutation: Mutation, start: State) -> tuple[int, Counter[str], str | None, list[str]]:
    frontier, predecessors, taken = [start], {start: ("start", start)}, Counter[str]()
    for state in frontier:
        for name, raw in moves(state, mutation):
            taken[name] += 1
            there = canonical(raw)
            if there in predecessors:
                continue
            predecessors[there] = (name, state)
            assert len(predecessors) < STATES_MAX, "the model grew by accident"
            frontier.append(there)
            if bad := violation(there):
                return len(predecessors), taken, bad, _way(there, predecessors)
    return len(predecessors), taken, None, []


def _way(state: State, predecessors: dict[State, tuple[str, State]]) -> list[str]:
    names: list[str] = []
    while predecessors[state][0] != "start":
        name, state = predecessors[state]
        names.append(name)
    return names[::-1]


@pytest.mark.parametrize(
    ("first", "states_min"),
    [pytest.param(*start, marks=pytest.mark.slow if name in SLOW else (), id=name) for name, start in STARTS.items()],
)
def test_no_reachable_state_breaks_the_promise(first: State, states_min: int) -> None:
    states, taken, bad, way = explore(Mutation.NONE, first)

    assert bad is None, (bad, way)
    assert states >= states_min, "a model that shrinks by accident proves less than it claims"
    expected = {"put", "delete", "notify", "list", "lose", "process B", "overtaken", "busy", "claim", "check", "commit"}
    expected |= {"unmount", "mount"} if first.outages else set()
    expected |= {"fail"} if first.failures else set()
    expected |= {"redeliver"} if first.repeats else set()
    assert expected <= {*taken}


@pytest.mark.parametrize("mutation", MUTANTS, ids=lambda mutation: mutation.name or repr(mutation))
def test_dropping_a_rule_breaks_the_promise(mutation: Mutation) -> None:
    _, _, bad, way = explore(mutation)

    assert bad == MUTANTS[mutation], way
    assert way


def test_every_rule_is_dropped_once() -> None:
    assert {*MUTANTS} == {*Mutation}
