"""Batches that replace rows, published beside a compaction and another writer, explored completely.

Two publishers, a compaction and a foreign program that append, merge and remove the same files; each may be paused
between two steps for any time, and publishers may die or lose a reply. A file is the set of its rows. Batch 1 has rows
of objects a and b in one file, batch 2 replaces a, batch 3 adds c and batch 4 replaces c: so a publish has rows to
keep, and batches to show together. The model shares no code with the product; `Mutation` names the rules that can be
dropped.
"""

import sys
from collections import Counter, deque
from collections.abc import Iterator
from enum import Flag, auto
from typing import NamedTuple

import pytest

STATES_MIN, STATES_MAX = 3_000, 60_000
FOREIGN = "f"  # the row of another writer


class Mutation(Flag):
    """A rule that is dropped."""

    NONE = 0
    UNCONDITIONAL = auto()  # a commit that removes files does not depend on the snapshot that they were found in
    PLAN_KEPT = auto()  # after a conflict, the files found in the old snapshot are removed from the new one
    POSITION_UNCHECKED = auto()  # after a conflict, the position is not read again
    SPLIT = auto()  # the rows that are replaced leave in a commit of their own, after the batch was added
    OWN_ROWS_LEAVE = auto()  # the batch's own rows count as earlier rows of its objects
    REST_LOST = auto()  # the other rows of a removed file are not written again
    BY_MANIFEST = auto()  # the files to remove are those that earlier batches wrote, not those of the snapshot
    SHOWN_TOGETHER = auto()  # a batch that replaces rows may follow others in one commit
    COMPACTION_UNCHECKED = auto()  # the compaction does not check that its files are still there
    FOREIGN_UNCHECKED = auto()  # (a rule of other writers) neither does the foreign program


Row = str
File = tuple[Row, ...]


class Batch(NamedTuple):
    file: File
    replaces: str = ""  # an object


BATCHES = (Batch(("a1", "b1")), Batch(("a2",), "a"), Batch(("c1",)), Batch(("c2",), "c"))


class Publisher(NamedTuple):
    phase: str = "idle"  # idle | loaded | planned | removing
    version: int = 0
    seen: int = 0  # the position
    files: tuple[File, ...] = ()  # of the snapshot
    upto: int = 0
    removed: tuple[File, ...] = ()
    added: tuple[File, ...] = ()
    stale: bool = False  # it met a conflict with a plan


class Merger(NamedTuple):
    """The compaction, or the foreign program."""

    merged: tuple[File, ...] = ()
    left: int = 1  # commits


class State(NamedTuple):
    committed: int = 0  # batches in the ledger
    version: int = 0
    position: int = 0
    files: tuple[File, ...] = ()  # of the table
    publishers: tuple[Publisher, Publisher] = (Publisher(), Publisher())
    compaction: Merger = Merger()
    foreign: Merger = Merger()
    appends: int = 1  # of the foreign program


Move = tuple[str, State]


def moves(s: State, m: Mutation) -> Iterator[Move]:
    if s.committed < len(BATCHES):
        yield f"batch {s.committed + 1} is committed", s._replace(committed=s.committed + 1)
    for i in (0, 1):
        if i and s.publishers[0] == s.publishers[1]:
            continue  # the same moves, by symmetry
        yield from _publish(s, i, m)
    yield from _merge(s, "compaction", s.compaction, Mutation.COMPACTION_UNCHECKED in m)
    yield from _merge(s, "foreign", s.foreign, Mutation.FOREIGN_UNCHECKED in m)
    if s.appends and s.files:
        yield "the foreign program appends", _table(s, files=(*s.files, (FOREIGN,)))._replace(appends=s.appends - 1)


def _table(s: State, *, files: tuple[File, ...], position: int | None = None) -> State:
    where = s.position if position is None else position
    return s._replace(version=s.version + 1, files=tuple(sorted(files)), position=where)


def _publish(s: State, i: int, m: Mutation) -> Iterator[Move]:
    it = s.publishers[i]

    def now(publisher: Publisher, state: State = s) -> State:
        pair = (publisher, s.publishers[1]) if i == 0 else (s.publishers[0], publisher)
        return state._replace(publishers=pair)

    if it.phase == "idle":
        if s.committed > s.position:
            yield f"publisher {i} loads", now(Publisher("loaded", s.version, s.position, s.files))
        return
    yield f"publisher {i} dies", now(Publisher())
    if it.phase == "loaded":
        for upto in _chunks(it.seen, s.committed, m):
            removed, added = _plan(it, upto, m)
            yield (
                f"publisher {i} plans the batches up to {upto}",
                now(it._replace(phase="planned", upto=upto, removed=removed, added=added)),
            )
    elif it.phase == "planned":
        if s.version == it.version or (it.removed and Mutation.UNCONDITIONAL in m):
            yield from _commits(s, i, it, now, m)
        else:
            yield f"publisher {i} meets a conflict", now(_after_conflict(s, it, m))
    elif it.phase == "removing":
        files = Counter(s.files) - Counter(it.removed) + Counter(it.added)
        yield f"publisher {i} removes the replaced rows", now(Publisher(), _table(s, files=tuple(files.elements())))


def _chunks(seen: int, committed: int, m: Mutation) -> Iterator[int]:
    """Yield possible ends of a commit: a batch that replaces rows begins one."""
    for upto in range(seen + 1, committed + 1):
        if upto > seen + 1 and BATCHES[upto - 1].replaces and Mutation.SHOWN_TOGETHER not in m:
            return
        yield upto


def _plan(it: Publisher, upto: int, m: Mutation) -> tuple[tuple[File, ...], tuple[File, ...]]:
    """Return the files to remove, and those to add: the batches', and what is left of the removed ones."""
    batches = BATCHES[it.seen : upto]
    replaced = {batch.replaces for batch in batches if batch.replaces}
    own = [batch.file for batch in batches]
    known = {batch.file for batch in BATCHES[: it.seen]}
    removed = [
        file
        for file in it.files
        if any(row[0] in replaced for row in file) and (Mutation.BY_MANIFEST not in m or file in known)
    ]
    rest = [tuple(row for row in file if row[0] not in replaced) for file in removed]
    if Mutation.OWN_ROWS_LEAVE in m:
        own = [tuple(row for row in file if row[0] not in replaced) for file in own]
    added = own if Mutation.REST_LOST in m else [*own, *rest]
    return tuple(removed), tuple(file for file in added if file)


def _commits(s: State, i: int, it: Publisher, now: object, m: Mutation) -> Iterator[Move]:
    become = now  # of type (Publisher, State) -> State
    assert callable(become)
    if Mutation.SPLIT in m and it.removed:
        own = tuple(batch.file for batch in BATCHES[it.seen : it.upto])
        rest = tuple((Counter(it.added) - Counter(own)).elements())
        shown = _table(s, files=(*s.files, *own), position=it.upto)
        yield f"publisher {i} adds", become(it._replace(phase="removing", added=rest), shown)
        return
    files = Counter(s.files) - Counter(it.removed) + Counter(it.added)
    shown = _table(s, files=tuple(files.elements()), position=it.upto)
    yield f"publisher {i} commits up to {it.upto}", become(Publisher(), shown)
    # A lost reply counts as a conflict: it loads the table again, as after any other.
    lost = _after_conflict(shown, it, m)
    yield f"publisher {i} commits up to {it.upto} and loses the reply", become(lost, shown)


def _after_conflict(s: State, it: Publisher, m: Mutation) -> Publisher:
    """Return the publisher as it goes on: it loads the table again, and plans anew."""
    if Mutation.PLAN_KEPT in m and it.removed and s.position == it.seen:
        return it._replace(version=s.version, files=s.files)
    if Mutation.POSITION_UNCHECKED in m:
        return Publisher("loaded", s.version, it.seen, s.files)
    return Publisher()


def _merge(s: State, name: str, it: Merger, unchecked: bool) -> Iterator[Move]:
    """Merge all files, on the snapshot in which they were found or a later one that still has them."""

    def now(merger: Merger, state: State = s) -> State:
        return state._replace(compaction=merger) if name == "compaction" else state._replace(foreign=merger)

    if not it.merged:
        if it.left and len(s.files) > 1:
            yield f"the {name} merges", now(Merger(merged=s.files, left=it.left - 1))
        return
    yield f"the {name} gives up", now(it._replace(merged=()))
    gone = Counter(it.merged) - Counter(s.files)
    if not gone or unchecked:
        rows = tuple(sorted(row for file in it.merged for row in file))
        files = Counter(s.files) - Counter(it.merged) + Counter([rows])
        yield f"the {name} commits", now(it._replace(merged=()), _table(s, files=tuple(files.elements())))


def violation(s: State) -> str | None:
    """Check that the table shows the batches up to its position, and each row of the foreign program."""
    shown = Counter(row for file in s.files for row in file)
    if max(shown.values(), default=0) > 1:
        return "a row is visible twice"
    expected: set[Row] = {FOREIGN} if s.appends == 0 else set()
    for batch in BATCHES[: s.position]:
        expected = {row for row in expected if row[0] != batch.replaces} | set(batch.file)
    if shown.keys() - expected:
        return "a replaced row is visible"
    return "a row is missing" if expected - shown.keys() else None


class Exploration(NamedTuple):
    states: int
    violation: str | None
    trace: tuple[str, ...]
    finished: int


def explore(m: Mutation) -> Exploration:
    """Visit every state, breadth first, up to the first that breaks the promise."""
    start = State()
    came: dict[State, tuple[State, str] | None] = {start: None}
    waiting = deque([start])
    finished = 0
    while waiting:
        state = waiting.popleft()
        finished += state.position == len(BATCHES)
        for name, there in moves(state, m):
            canonical = _canonical(there)
            if canonical in came:
                continue
            came[canonical] = (state, name)
            if (bad := violation(canonical)) is not None:
                return Exploration(len(came), bad, _trace(came, canonical), finished)
            assert len(came) < STATES_MAX, "a model that grew by accident"
            waiting.append(canonical)
    return Exploration(len(came), None, (), finished)


def _canonical(s: State) -> State:
    """Return one of the states that differ only in the names of publishers and the numbers of versions.

    A version matters only by being the newest one or not.
    """
    pair = sorted(_aged(it, s) for it in s.publishers)
    return s._replace(version=1, publishers=(pair[0], pair[1]))


def _aged(it: Publisher, s: State) -> Publisher:
    return it._replace(version=int(it.version == s.version and it.phase != "idle"))


def _trace(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps: list[str] = []
    at = came[state]
    while at is not None:
        steps.append(at[1])
        at = came[at[0]]
    return tuple(reversed(steps))


MUTANTS = {
    Mutation.UNCONDITIONAL: "a row is visible twice",
    Mutation.PLAN_KEPT: "a row is visible twice",
    Mutation.POSITION_UNCHECKED: "a row is visible twice",
    Mutation.SPLIT: "a replaced row is visible",
    Mutation.OWN_ROWS_LEAVE: "a row is missing",
    Mutation.REST_LOST: "a row is missing",
    Mutation.BY_MANIFEST: "a replaced row is visible",
    Mutation.SHOWN_TOGETHER: "a replaced row is visible",
    Mutation.COMPACTION_UNCHECKED: "a row is visible twice",
    Mutation.FOREIGN_UNCHECKED: "a row is visible twice",
}


def test_every_version_of_the_table_shows_the_batches_up_to_its_position() -> None:
    found = explore(Mutation.NONE)
    sys.stdout.write(f"\n{found.states:,} states\n")
    assert found.violation is None, found.trace
    assert found.states >= STATES_MIN
    assert found.finished > 0


@pytest.mark.parametrize("mutation", [one for one in Mutation if one], ids=lambda one: str(one.name))
def test_dropping_a_rule_breaks_the_promise(mutation: Mutation) -> None:
    found = explore(mutation)
    sys.stdout.write("\n" + "\n".join(found.trace) + "\n")
    assert found.violation == MUTANTS[mutation]
