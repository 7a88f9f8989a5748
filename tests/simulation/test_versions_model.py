"""Versions of one object that two workers claim, read and commit, explored completely: the table ends as the store.

The store changes a few times between two versions, so that one comes back, and may lose the object. Every message may
be late or repeated, a worker may die, and any of them may be paused between two steps for any time. Two versions may be
claimed together and are read one after another. The model shares no code with the product; `Mutation` names the rules
that can be dropped.
"""

import sys
from collections import deque
from collections.abc import Iterator
from enum import Flag, auto
from typing import NamedTuple

import pytest

STATES_MIN, STATES_MAX = 2_000, 100_000
VERSIONS = (0, 1)
NONE, CHANGES, DUPLICATES, DEATHS = -1, 3, 1, 1
FREE, PROCESSED = -1, -2  # the owner of a version, or a worker


class Mutation(Flag):
    """A rule that is dropped."""

    NONE = 0
    READS_ANY = auto()  # a run does not check that the store has the version
    CHECKS_FIRST = auto()  # ... or checks it before the claim
    COMMITS_ANY = auto()  # the commit does not check which versions were committed since the claim
    TOGETHER = auto()  # a batch may have two versions of an object
    FIRST_PLANNED = auto()  # (with COMMITS_ANY) the claim, and not the commit, decides if earlier rows are replaced
    STAYS_PROCESSED = auto()  # a version that was replaced is never read again
    ACKS_TOO_EARLY = auto()  # a processed version is acked while another one is being read, which may replace it


class Worker(NamedTuple):
    claimed: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()
    found: tuple[int, ...] = ()  # those that the store had
    since: int = 0  # the number of batches at the claim
    earlier: bool = False  # at the claim, another version was committed


class Batch(NamedTuple):
    versions: tuple[int, ...]
    replaces: bool


class State(NamedTuple):
    stored: int = NONE
    changes: int = CHANGES
    messages: tuple[int, ...] = ()  # versions, sorted
    duplicates: int = DUPLICATES
    deaths: int = DEATHS
    owners: tuple[int, ...] = (FREE, FREE)
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    batches: tuple[Batch, ...] = ()


Move = tuple[str, State]


def moves(s: State, m: Mutation) -> Iterator[Move]:
    if s.changes:
        for stored in (*VERSIONS, NONE):
            if stored != s.stored:
                sent = () if stored == NONE else (stored,)
                yield f"the store has version {stored}", _sent(s, *sent)._replace(stored=stored, changes=s.changes - 1)
    if s.duplicates:
        for version in VERSIONS:
            yield f"a late duplicate names version {version}", _sent(s, version)._replace(duplicates=s.duplicates - 1)
    for i in (0, 1):
        if i and s.workers[0] == s.workers[1]:
            continue  # the same moves, by symmetry
        yield from _claim(s, i, m)
        yield from _read(s, i, m)
        yield from _commit(s, i, m)
        if s.deaths and s.workers[i].claimed:
            yield f"worker {i} dies", _released(s, i)._replace(deaths=s.deaths - 1)


def _sent(s: State, *versions: int) -> State:
    """Send a message each. Two of one version do as much as one that is redelivered."""
    return s._replace(messages=tuple(sorted({*s.messages, *versions})))


def _worker(s: State, i: int, worker: Worker) -> State:
    return s._replace(workers=(worker, s.workers[1]) if i == 0 else (s.workers[0], worker))


def _own(s: State, versions: tuple[int, ...], owner: int) -> State:
    return s._replace(owners=tuple(owner if v in versions else s.owners[v] for v in VERSIONS))


def _claim(s: State, i: int, m: Mutation) -> Iterator[Move]:
    if s.workers[i].claimed:
        return
    for named in ((0,), (1,), (0, 1)):
        if not set(named) <= set(s.messages):
            continue
        free = tuple(v for v in named if s.owners[v] == FREE or (s.owners[v] == PROCESSED and _is_replaced(s, v, m)))
        rest = tuple(v for v in s.messages if v not in named)
        if not free:
            reading = any(s.owners[v] >= 0 for v in VERSIONS) and Mutation.ACKS_TOO_EARLY not in m
            if all(s.owners[v] == PROCESSED for v in named) and not reading:
                yield f"worker {i} acks {named}, already processed", s._replace(messages=rest)
            continue
        found = tuple(v for v in free if v == s.stored) if Mutation.CHECKS_FIRST in m else ()
        if Mutation.CHECKS_FIRST in m:  # the claim comes later, with the number of batches at that time
            if free == named:
                checked = Worker(claimed=free, found=found, since=-1, earlier=bool(s.batches))
                yield f"worker {i} checks {free} and claims them later", _worker(s, i, checked)._replace(messages=rest)
            continue
        worker = Worker(claimed=free, unread=free, since=len(s.batches), earlier=bool(s.batches))
        busy = tuple(v for v in named if v not in free)
        claimed = _own(_worker(s, i, worker), free, i)
        yield f"worker {i} claims {free}", claimed._replace(messages=tuple(sorted({*rest, *busy})))


def _is_replaced(s: State, version: int, m: Mutation) -> bool:
    """Return True for a processed version that another one replaced."""
    last = next((batch for batch in reversed(s.batches)), None)
    return Mutation.STAYS_PROCESSED not in m and last is not None and version not in last.versions


def _read(s: State, i: int, m: Mutation) -> Iterator[Move]:
    it = s.workers[i]
    if it.since == -1 and all(s.owners[v] == FREE or _is_replaced(s, v, m) for v in it.claimed):
        yield f"worker {i} claims {it.claimed}", _own(_worker(s, i, it._replace(since=len(s.batches))), it.claimed, i)
    if it.unread:
        version = it.unread[0]
        found = it.found if version != s.stored and Mutation.READS_ANY not in m else (*it.found, version)
        read = it._replace(unread=it.unread[1:], found=found)
        yield f"worker {i} reads {version} and finds {found}", _worker(s, i, read)


def _commit(s: State, i: int, m: Mutation) -> Iterator[Move]:
    it = s.workers[i]
    if not it.claimed or it.unread or it.since == -1:
        return
    ended = _own(_own(_worker(s, i, Worker()), it.claimed, FREE), it.found, PROCESSED)
    if not it.found:
        yield f"worker {i} ends {it.claimed} as superseded", ended
        return
    others = [v for batch in s.batches[it.since :] for v in batch.versions if v not in it.found or len(it.found) > 1]
    moved = bool(others) and Mutation.COMMITS_ANY not in m
    if moved or (len(it.found) > 1 and Mutation.TOGETHER not in m):
        yield f"worker {i} releases {it.claimed}: versions moved", _released(s, i)
        return
    replaces = it.earlier if Mutation.FIRST_PLANNED in m else bool(s.batches)
    batch = Batch(it.found, replaces)
    yield f"worker {i} commits {it.found}", ended._replace(batches=(*s.batches, batch))


def _released(s: State, i: int) -> State:
    claimed = s.workers[i].claimed
    owned = tuple(v for v in claimed if s.owners[v] == i)
    return _own(_sent(_worker(s, i, Worker()), *claimed), owned, FREE)


def violation(s: State) -> str | None:
    shown: tuple[int, ...] = ()
    for batch in s.batches:
        shown = batch.versions if batch.replaces else (*shown, *batch.versions)
    if len(shown) > 1:
        return "two versions are visible"
    idle = not s.messages and not any(worker.claimed for worker in s.workers)
    if idle and s.stored != NONE and shown != (s.stored,):
        return "everything is processed, and the table does not show the store's version"
    return None


class Exploration(NamedTuple):
    states: int
    violation: str | None
    trace: tuple[str, ...]


def explore(m: Mutation) -> Exploration:
    """Visit every state, breadth first, up to the first that breaks the promise."""
    came: dict[State, tuple[State, str] | None] = {State(): None}
    waiting = deque(came)
    while waiting:
        state = waiting.popleft()
        for name, there in moves(state, m):
            if there in came:
                continue
            came[there] = (state, name)
            if (bad := violation(there)) is not None:
                return Exploration(len(came), bad, _trace(came, there))
            assert len(came) < STATES_MAX, "a model that grew by accident"
            waiting.append(there)
    return Exploration(len(came), None, ())


def _trace(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps: list[str] = []
    at = came[state]
    while at is not None:
        steps.append(at[1])
        at = came[at[0]]
    return tuple(reversed(steps))


TWO, STALE = "two versions are visible", "everything is processed, and the table does not show the store's version"
MUTANTS = {
    Mutation.READS_ANY: STALE,
    Mutation.CHECKS_FIRST: STALE,
    Mutation.COMMITS_ANY: STALE,
    Mutation.TOGETHER: TWO,
    Mutation.COMMITS_ANY | Mutation.FIRST_PLANNED: TWO,
    Mutation.STAYS_PROCESSED: STALE,
    Mutation.ACKS_TOO_EARLY: STALE,
}


def test_the_table_shows_one_version_and_in_the_end_the_stores() -> None:
    found = explore(Mutation.NONE)
    sys.stdout.write(f"\n{found.states:,} states\n")
    assert found.violation is None, found.trace
    assert found.states >= STATES_MIN


@pytest.mark.parametrize("mutation", MUTANTS, ids=lambda one: str(one.name))
def test_dropping_a_rule_breaks_the_promise(mutation: Mutation) -> None:
    found = explore(mutation)
    sys.stdout.write("\n" + "\n".join(found.trace) + "\n")
    assert found.violation == MUTANTS[mutation]


def test_every_mutation_is_tried() -> None:
    tried = Mutation.NONE
    for mutation in MUTANTS:
        tried |= mutation
    assert tried == ~Mutation.NONE
