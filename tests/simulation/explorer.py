"""Explore every state that a model can reach, breadth first, and show the shortest path to a bad one."""

import time
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation.collector import no_garbage_collection
from tests.simulation.model import HEALTHY, Mutation, State, moves
from tests.simulation.promise import finished, violation
from tests.simulation.symmetry import canonical, forget

OBJECTS = ("no object", "object 0", "object 1", "both objects")
SENTENCES = {
    "claim": "driver {0} claims {objects} as attempt {1}",
    "ack_ended": "driver {0} acks {objects}, which were already processed",
    "write": "driver {0} has written attempt {1}: {objects}",
    "write_partly": "driver {0} has written attempt {1} with failures: {objects}",
    "begin": "driver {0} begins the commit of attempt {1}",
    "commit": "driver {0} commits attempt {1} as batch {2}",
    "commit_refused": "driver {0} finds that attempt {1} may not be committed, and reads why",
    "commit_reply_lost": "driver {0} sends COMMIT of attempt {1} as batch {2} and loses the connection",
    "late_commit": "the COMMIT of attempt {0} under way arrives",
    "late_rollback": "the COMMIT of attempt {0} under way never arrives",
    "resolve": "driver {0} reads the outcome of attempt {1}",
    "settle": "driver {0} acks the objects that attempt {1} processed",
    "settle_lost": "driver {0} acks the objects that attempt {1} processed, and the broker never receives it",
    "load": "publisher {0} loads the table",
    "publish": "publisher {0} appends the batches after {1} up to {2}",
    "publish_reply_lost": "publisher {0} appends the batches after {1} up to {2} and loses the reply",
    "conflict": "publisher {0} is refused: the table moved under its handle",
    "halt": "publisher {0} halts: table and ledger disagree",
    "mark": "attempt {0} expired and is marked abandoned",
    "free": "the objects of attempt {0} are freed",
    "delete": "gc deletes the files of attempt {0}",
    "straggler": "a late executor writes a file of attempt {0}",
    "writer_stops": "the last executor of attempt {0} ends",
    "compact": "compaction replaces the table's files",
    "vacuum": "the replaced files of attempt {0} are removed",
    "crash": "driver {0} dies with attempt {1}",
    "crash_publisher": "publisher {0} dies",
    "failover": "the ledger forgets its newest commit, attempt {0}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """The result. ``trace``: the actions from the start to the violation, one a line; empty without a violation."""

    states: int
    transitions: int
    seconds: float
    actions: Counter[str]  # how often each action was taken
    violation: str | None
    trace: tuple[str, ...]
    finished: int  # states in which all work is done
    stranded: int  # states without a healthy path to a finished one; 0 unless requested


def explore(
    mutation: Mutation = Mutation.NONE, *, start: State | None = None, states_max: int, recovery: bool = False
) -> Exploration:
    """Visit states until one breaks the promise or all are seen; ``recovery`` also checks that each can still finish.

    Raises `AssertionError` beyond ``states_max`` states: the model grew by accident.
    """
    begin = time.perf_counter()
    with no_garbage_collection():
        search = _Search(start or State())
        bad = search.run(mutation, states_max, recovery)
        done = [n for n, state in enumerate(search.states) if finished(state)]
        stranded = search.stranded(done) if recovery and bad is None else 0
    return Exploration(
        states=len(search.states),
        transitions=sum(search.actions.values()),
        seconds=time.perf_counter() - begin,
        actions=search.actions,
        violation=bad,
        trace=search.trace(mutation) if bad else (),
        finished=len(done),
        stranded=stranded,
    )


class _Search:
    """The frontier and the paths back to the start. States are numbered in the order of their discovery."""

    def __init__(self, start: State) -> None:
        self.states: list[State] = [start]
        self._numbers: dict[State, int] = {start: 0}
        self._predecessors: list[tuple[int, str]] = [(-1, "start")]
        self._healthy = array("i")  # pairs: from, to
        self.actions: Counter[str] = Counter()

    def run(self, mutation: Mutation, states_max: int, keep_edges: bool) -> str | None:
        states, numbers, actions = self.states, self._numbers, self.actions
        here = 0
        while here < len(states):
            for name, _, raw in moves(states[here], mutation):
                actions[name] += 1
                there = numbers.get(raw)
                if there is None:
                    state = canonical(raw)
                    there = numbers.get(state)
                if there is None:
                    there = numbers[state] = len(states)
                    assert there < states_max, f"more than {states_max} states"
                    states.append(state)
                    self._predecessors.append((here, name))
                    if bad := violation(state, mutation):
                        return bad
                if keep_edges and name in HEALTHY:
                    self._healthy.extend((here, there))
            here += 1
        return None

    def trace(self, mutation: Mutation) -> tuple[str, ...]:
        """Return the path to the newest state, with names that are the same in every line."""
        lines: list[str] = []
        state = self.states[0]
        for name, goal in self._way():
            ids, state = next(
                (ids, forget(after))
                for action, ids, after in moves(state, mutation)
                if action == name and canonical(after) == goal
            )
            lines.append(SENTENCES[name].format(*ids, objects=OBJECTS[ids[-1] % 4] if ids else ""))
        return tuple(lines)

    def _way(self) -> Iterator[tuple[str, State]]:
        """Return the actions to the newest state, each with its resulting state."""
        way: list[tuple[str, State]] = []
        number = len(self.states) - 1
        while number > 0:
            before, name = self._predecessors[number]
            way.append((name, self.states[number]))
            number = before
        return reversed(way)

    def stranded(self, done: list[int]) -> int:
        """Return the number of states without a path of healthy actions to a finished one."""
        before: list[list[int]] = [[] for _ in self.states]
        edges = iter(self._healthy)
        for here, there in zip(edges, edges, strict=True):
            before[there].append(here)
        reached = bytearray(len(self.states))
        stack = list(done)
        for number in stack:
            reached[number] = 1
        while stack:
            for number in before[stack.pop()]:
                if not reached[number]:
                    reached[number] = 1
                    stack.append(number)
        return len(self.states) - sum(reached)
