"""Explore every state that the model of replays can reach, breadth first, and show the shortest path to a bad one."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation.collector import no_garbage_collection
from tests.simulation.replay_model import Rules, State
from tests.simulation.replay_promise import canonical, finished, violation
from tests.simulation.replay_world import moves

# Moves that happen automatically, with a handler that always fails: these alone must lead every state to its end.
_WORKERS = ("receive", "revive", "claim", "claim_nothing", "fail", "commit_refused", "settle")
_REPLAYER = (
    "take",
    "find_sent",
    "give_up",
    "set_aside",
    "intend",
    "send",
    "send_again",
    "send_twice",
    "mark",
    "delete",
)
HEALTHY = frozenset({*_WORKERS, *_REPLAYER, "reconcile", "expire"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """The result. ``trace``: the moves from the start to the violation, one a line; empty without a violation."""

    states: int
    transitions: int
    seconds: float
    moves: Counter[str]
    violation: str | None
    trace: tuple[str, ...]
    finished: int  # states in which all work is done
    stranded: int  # states without a healthy path to a finished one; 0 unless requested


def explore(start: State, rules: Rules, *, states_max: int, recovery: bool = False) -> Exploration:
    """Visit states until one breaks the promise or all are seen.

    Raises `AssertionError` beyond ``states_max`` states: the model grew by accident.
    """
    begin = time.perf_counter()
    with no_garbage_collection():
        search = _Search(canonical(start), rules, recovery)
        bad = search.run(states_max)
        done = [n for n, state in enumerate(search.states) if finished(state)]
        stranded = search.stranded(done) if recovery and bad is None else 0
    return Exploration(
        states=len(search.states),
        transitions=sum(search.taken.values()),
        seconds=time.perf_counter() - begin,
        moves=search.taken,
        violation=bad,
        trace=tuple(search.trace()) if bad else (),
        finished=len(done),
        stranded=stranded,
    )


class _Search:
    """The frontier and the paths back to the start. States are numbered in the order of their discovery."""

    def __init__(self, start: State, rules: Rules, keep_edges: bool) -> None:
        self.states = [start]
        self.taken: Counter[str] = Counter()
        self._rules = rules
        self._numbers = {start: 0}
        self._predecessors = [(-1, "start")]
        self._keep_edges = keep_edges
        self._before: list[list[int]] = [[]]  # by healthy moves

    def run(self, states_max: int) -> str | None:
        here = 0
        while here < len(self.states):
            for name, raw in moves(self.states[here], self._rules):
                self.taken[name] += 1
                there = self._numbers.get(raw)
                if there is None:
                    state = canonical(raw)
                    there = self._numbers.get(state)
                if there is None:
                    there = self._add(state, here, name)
                    assert there < states_max, f"more than {states_max} states"
                    if bad := violation(state):
                        return bad
                if self._keep_edges and name in HEALTHY:
                    self._before[there].append(here)
            here += 1
        return None

    def trace(self) -> Iterator[str]:
        """Yield the path to the newest state."""
        number, way = len(self.states) - 1, []
        while number >= 0:
            way.append(number)
            number = self._predecessors[number][0]
        for number in reversed(way):
            yield f"{self._predecessors[number][1]:15} {describe(self.states[number])}"

    def stranded(self, done: list[int]) -> int:
        """Return the number of states without a path of healthy moves to a finished one."""
        reached, stack = set(done), list(done)
        while stack:
            for number in self._before[stack.pop()]:
                if number not in reached:
                    reached.add(number)
                    stack.append(number)
        return len(self.states) - len(reached)

    def _add(self, state: State, here: int, name: str) -> int:
        self._numbers[state] = there = len(self.states)
        self.states.append(state)
        self._predecessors.append((here, name))
        self._before.append([])
        return there


def describe(s: State) -> str:
    """Return a state as one line. Ids change from line to line."""
    places = ("queue", "DLQ", "final DLQ")
    objects = [
        f"{o.state}{f' by {o.holder}' if o.state == 'held' else ''}{f' {o.spent}' if o.spent else ''}"
        for o in s.objects
    ]
    messages = [
        f"{places[m.place]}: {m.id} of {m.names} replay {m.replay} n {m.tally} holder {m.holder} t {m.time}"
        for m in s.messages
    ]
    workers = [f"{w.phase} {[m.id for m in w.messages]}" for w in s.workers]
    return "; ".join([*objects, *messages, *workers, f"replayer {s.replayer.phase}", f"person {s.person.phase}"])
