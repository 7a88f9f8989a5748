"""One representative of all states that differ only in the names of objects, attempts, drivers and publishers.

Any choice of representative is sound, since the model treats all names alike; a bad choice only costs states.
"""

from tests.simulation.model import FREE, IDS, NO_ATTEMPT, A, State

_FORGOTTEN = A()
_REMEMBERED = ("none", "open")
_SWAPPED = (0, 2, 1, 3)  # a set of objects, with the objects' names exchanged


def canonical(s: State) -> State:
    """Return the representative. Attempts that no state refers to are forgotten, so that their ids can be reused."""
    s = forget(s)
    if s.drivers[0] > s.drivers[1]:
        s = s._replace(drivers=s.drivers[::-1])
    if s.publishers[0] > s.publishers[1]:
        s = s._replace(publishers=s.publishers[::-1])
    if _objects_reversed(s):
        s = _objects_swapped(s)
    x, y, z = keys = [_attempt_key(s, a) for a in IDS]
    if x <= y <= z:
        return s
    return _attempts_renamed(s, sorted(IDS, key=keys.__getitem__))


def forget(s: State) -> State:
    """Reduce ended attempts to the facts that the state still refers to. Names stay as they are."""
    if all(it.state in _REMEMBERED for it in s.attempts):
        return s
    attempts = [it if it.state in _REMEMBERED else _forgotten(s, a) for a, it in enumerate(s.attempts)]
    return s._replace(attempts=tuple(attempts))


def _forgotten(s: State, a: int) -> A:
    it = s.attempts[a]
    if a in s.batches or a in s.owners or a in s.table.live or s.table.tip == a or a in [p.tip for p in s.publishers]:
        return it
    if s.drivers[0].attempt == a or s.drivers[1].attempt == a or any(attempt == a for attempt, _ in s.sending):
        return it
    return A(it.state, 0, 0, it.file, it.writing) if it.file or it.writing else _FORGOTTEN


def _objects_reversed(s: State) -> bool:
    """Return True if object 1 comes before object 0. Cheap marks nearly always decide."""
    first, second = s.owners
    one = (min(first, 0), s.acked & 1, s.table.compacted[0])
    two = (min(second, 0), s.acked >> 1, s.table.compacted[1])
    return one > two or (one == two and _object_key(s, 1) > _object_key(s, 2))


def _object_key(s: State, bit: int) -> tuple[object, ...]:
    return (
        [s.attempts[a].content & bit > 0 for a in s.batches if a >= 0],
        sorted([(it.state, it.claimed & bit > 0, it.content & bit > 0, it.file, it.writing) for it in s.attempts]),
    )


def _objects_swapped(s: State) -> State:
    return s._replace(
        attempts=tuple(it._replace(claimed=_SWAPPED[it.claimed], content=_SWAPPED[it.content]) for it in s.attempts),
        owners=s.owners[::-1],
        acked=_SWAPPED[s.acked],
        table=s.table._replace(compacted=s.table.compacted[::-1]),
    )


def _attempt_key(s: State, a: int) -> tuple[object, ...]:
    d, e = s.drivers
    return (
        s.batches.index(a) if a in s.batches else 3,
        s.attempts[a],
        s.owners[0] == a,
        (d.attempt == a) + 2 * (e.attempt == a),
    )


def _attempts_renamed(s: State, order: list[int]) -> State:
    """Rename attempts. ``order[n]`` is the old name of the attempt that is now called ``n``."""
    name = {old: new for new, old in enumerate(order)} | {NO_ATTEMPT: NO_ATTEMPT, FREE: FREE, -2: -2}
    return s._replace(
        attempts=tuple(s.attempts[old] for old in order),
        owners=tuple(name[a] for a in s.owners),
        batches=tuple(name[a] for a in s.batches),
        sending=tuple(sorted((name[a], seq) for a, seq in s.sending)),
        drivers=tuple(sorted([d._replace(attempt=name[d.attempt]) for d in s.drivers])),
        publishers=tuple(sorted([p._replace(tip=name[p.tip]) for p in s.publishers])),
        table=s.table._replace(tip=name[s.table.tip], live=tuple(sorted(name[a] for a in s.table.live))),
    )
