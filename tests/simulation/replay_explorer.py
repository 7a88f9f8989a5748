"""Explores every state that the model of replays can reach, breadth first, and shows the shortest way to a bad one."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation.collector import no_garbage_collection
from tests.simulation.replay_model import Rules, State
from tests.simulation.replay_promise import canonical, finished, violation
from tests.simulation.replay_world import moves

# What happens by itself, with a handler that always fails: with this alone everything comes to its end.
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
    """The result. ``trace`` leads from the start to the violation, a move a line; empty where there is none."""

    states: int
    transitions: int
    seconds: float
    moves: Counter[str]
    violation: str | None
    trace: tuple[str, ...]
    finished: int  # states in which everything is done
    stranded: int  # states that no healthy way leads out of to a finished one; 0 if not asked for


def explore(start: State, rules: Rules, *, states_max: int, recovery: bool = False) -> Exploration:
    """Visit states until one breaks the promise or all are seen.

    Raises `AssertionError` beyond ``states_max`` states: a model that grew by accident.
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
    """The frontier and the way back. States are numbered in the order of their discovery."""

    def __init__(self, start: State, rules: Rules, keep_edges: bool) -> None:
        self.states = [start]
        self.taken: Counter[str] = Counter()
        self._rules = rules
        self._numbers = {start: 0}
        self._came_from = [(-1, "start")]
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
        """The way to the newest state."""
        number, way = len(self.states) - 1, []
        while number >= 0:
            way.append(number)
            number = self._came_from[number][0]
        for number in reversed(way):
            yield f"{self._came_from[number][1]:15} {told(self.states[number])}"

    def stranded(self, done: list[int]) -> int:
        """How many states have no way of healthy moves to a finished one."""
        reached, stack = set(done), list(done)
        while stack:
            for number in self._before[stack.pop()]:
                if number not in reached:
                    reached.add(number)
                    stack.append(number)
        self.lost = next((n for n in range(len(self.states)) if n not in reached), None)
        return len(self.states) - len(reached)

    def _add(self, state: State, here: int, name: str) -> int:
        self._numbers[state] = there = len(self.states)
        self.states.append(state)
        self._came_from.append((here, name))
        self._before.append([])
        return there


def told(s: State) -> str:
    """A state in a line; ids change from line to line."""
    places = ("queue", "first tier", "second tier")
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
