"""A model of claim -> write -> commit -> publish -> gc, small enough to be explored completely.

Two drivers, two publishers, expiry, gc and compaction; two objects with a message each; three attempt ids, reused once
no state refers to them, so that the number of attempts is unbounded. Time is adversarial: a lease may end at any
moment, a reply may be lost, any process may crash between any two actions, a message may be redelivered at any time,
and executors of an abandoned attempt may continue writing.

The model shares no code with the product. `moves` is the protocol; promise.py has the invariants; `Mutation` names the
rules that can be dropped, each of which must then lead to a violation.
"""

from collections.abc import Iterator
from enum import Flag, auto
from typing import Any, NamedTuple

IDS = (0, 1, 2)  # attempt ids
NO_ATTEMPT = -1
FREE, PROCESSED = -1, -2  # the owner of an object; an attempt id while it is being processed
BOTH = 3  # objects are bits: 1 and 2


class Mutation(Flag):
    """A rule of the protocol that is dropped."""

    NONE = 0
    NO_FENCE = auto()  # the commit checks neither the attempt's state nor the owner of its objects
    NO_ATTEMPT_CAS = auto()  # the commit checks the objects only, not that the attempt is open
    CLAIM_IGNORES_STATE = auto()  # the claim takes objects whatever their state
    FREE_WITHOUT_TOKEN = auto()  # objects of an abandoned attempt are freed by key, not by attempt id
    UNLOCKED_SEQUENCE = auto()  # a counter yields the sequence, as AUTO_INCREMENT does; commits arrive in any order
    GAPS_SKIPPED = auto()  # (with UNLOCKED_SEQUENCE) a publisher takes the next batch despite a gap
    ACK_BEFORE_COMMIT = auto()
    UNKNOWN_IS_SUCCESS = auto()  # a lost reply to COMMIT is treated as a success
    UNKNOWN_RERUNS_BLINDLY = auto()  # ... as a failure: the batch is inserted again without a check
    UNKNOWN_DELETES_FILES = auto()  # ... as a failure: the driver deletes its files
    PUBLISH_UNCONDITIONAL = auto()  # the append does not depend on the handle that was checked
    PUBLISH_REPEATED = auto()  # a lost reply to an append is followed by the same append on a fresh handle
    PUBLISH_BEFORE_COMMIT = auto()  # the driver publishes its files before the ledger has recorded them
    POSITION_FROM_FILES = auto()  # the published position is derived from the table's files, not from a stored position
    COMPACTION_DROPS_POSITION = auto()
    NO_LEDGER_CHECK = auto()  # the publisher does not compare the table's tip with the ledger's batch
    NO_TOMBSTONE = auto()  # gc deletes the files of seemingly expired attempts without marking them first
    TOMBSTONE_FROM_ANY_STATE = auto()  # the mark does not require `open`
    NO_EXPIRY = auto()  # a dead driver's attempt is never abandoned


class A(NamedTuple):
    """An attempt with its files."""

    state: str = "none"  # none | open | committed | abandoned
    claimed: int = 0  # objects
    content: int = 0  # objects whose rows its files hold; the others failed
    file: bool = False
    writing: bool = False  # executors that may still write, even after the attempt was abandoned


class Driver(NamedTuple):
    phase: str = "idle"  # absent | idle | writing | written | transaction | unknown | committed
    attempt: int = NO_ATTEMPT
    seq: int = 0  # read in the transaction


class Publisher(NamedTuple):
    phase: str = "idle"  # absent | idle | loaded | repeating | halted
    seen: int = 0  # the position of the handle
    tip: int = NO_ATTEMPT  # the attempt that the handle names for that position


class Table(NamedTuple):
    position: int = 0
    tip: int = NO_ATTEMPT
    live: tuple[int, ...] = ()  # attempts whose files the table names, once for each time they were appended
    compacted: tuple[int, ...] = (0, 0)  # how many times compacted files show the rows of each object


ABSENT = Driver("absent"), Publisher("absent")


class State(NamedTuple):
    attempts: tuple[A, ...] = (A(), A(), A())
    owners: tuple[int, ...] = (FREE, FREE)
    acked: int = 0
    batches: tuple[int, ...] = ()  # attempt ids by sequence - 1; NO_ATTEMPT if a sequence was drawn and is not used yet
    sending: tuple[tuple[int, int], ...] = ()  # (attempt, seq) of COMMITs in flight whose sender no longer waits
    drivers: tuple[Driver, ...] = (Driver(), Driver())
    publishers: tuple[Publisher, ...] = (Publisher(), Publisher())
    table: Table = Table()
    ledger: str = "faithful"  # faithful | fallible (may forget its newest commit, once: outside the promise) | forgot


ALONE = State(drivers=(ABSENT[0], Driver()), publishers=(ABSENT[1], Publisher()))  # one of each

Move = tuple[str, tuple[int, ...], State]  # the action, its ids, the resulting state

# Actions of a healthy system. Recovery must be possible with these alone, without a crash or luck.
HEALTHY = frozenset(
    {
        "claim",
        "write",
        "begin",
        "commit",
        "commit_refused",
        "resolve",
        "settle",
        "ack_ended",
        "late_commit",
        "late_rollback",
        "load",
        "publish",
        "conflict",
        "mark",
        "free",
        "delete",
        "writer_stops",
        "compact",
        "vacuum",
    }
)
ADVERSE = frozenset(
    {
        "write_partly",
        "commit_reply_lost",
        "settle_lost",
        "publish_reply_lost",
        "straggler",
        "crash",
        "crash_publisher",
    }
)


def _put(items: Any, index: int, value: object) -> Any:
    """Return the tuple with one item replaced."""
    return (*items[:index], value, *items[index + 1 :])


def _bits(mask: int) -> tuple[int, ...]:
    return ((), (0,), (1,), (0, 1))[mask]


def moves(s: State, m: Mutation) -> Iterator[Move]:
    """Yield all possible next actions."""
    for i in (0, 1):
        if i and s.drivers[0] == s.drivers[1]:
            continue  # the same moves, by symmetry
        yield from _driver_moves(s, i, m)
    for i in (0, 1):
        if i and s.publishers[0] == s.publishers[1]:
            continue
        yield from _publisher_moves(s, i, m)
    yield from _server_moves(s, m)
    yield from _expiry_moves(s, m)
    yield from _gc_moves(s, m)
    yield from _world_moves(s, m)


# --- drivers ---------------------------------------------------------------------------------------------------------


def _driver_moves(s: State, i: int, m: Mutation) -> Iterator[Move]:
    driver = s.drivers[i]
    phase, a, _ = driver
    if phase == "idle":
        yield from _receive(s, i, m)
    if phase in ("idle", "absent"):
        return
    yield "crash", (i, a), _drive(s, i, Driver())
    if phase == "writing":
        yield from _write(s, i, a)
    elif phase == "written":
        yield from _begin(s, i, a, m)
    elif phase == "transaction":
        yield from _commit(s, i, driver, m)
    elif phase == "unknown":
        yield from _resolve(s, i, a, m)
    elif phase == "committed":
        acked = s._replace(acked=s.acked | s.attempts[a].content)
        yield "settle", (i, a), _drive(acked, i, Driver())
        yield "settle_lost", (i, a), _drive(s, i, Driver())  # the messages are redelivered


def _drive(s: State, i: int, driver: Driver) -> State:
    return s._replace(drivers=_put(s.drivers, i, driver))


def _receive(s: State, i: int, m: Mutation) -> Iterator[Move]:
    """Receive messages, acked ones too. Claim those of their objects that are free, and ack those that have ended."""
    fresh = next((a for a in IDS if s.attempts[a].state == "none"), None)
    takes_all = Mutation.CLAIM_IGNORES_STATE in m
    for wanted in (1, 2, 3):
        mine = sum(1 << o for o in _bits(wanted) if takes_all or s.owners[o] == FREE)
        ended = sum(1 << o for o in _bits(wanted) if s.owners[o] == PROCESSED)
        if mine and fresh is not None:
            owners = tuple(fresh if mine >> o & 1 else s.owners[o] for o in (0, 1))
            opened = _put(s.attempts, fresh, A(state="open", claimed=mine, writing=True))
            claimed = s._replace(attempts=opened, owners=owners)
            yield "claim", (i, fresh, mine), _drive(claimed, i, Driver("writing", fresh))
        elif not mine and ended & ~s.acked:
            yield "ack_ended", (i, ended), s._replace(acked=s.acked | ended)


def _write(s: State, i: int, a: int) -> Iterator[Move]:
    claimed = s.attempts[a].claimed
    for content in (0, 1, 2, 3):
        if content & ~claimed:
            continue
        it = s.attempts[a]._replace(content=content, file=s.attempts[a].file or content > 0, writing=False)
        written = _drive(s._replace(attempts=_put(s.attempts, a, it)), i, Driver("written", a))
        yield ("write" if content == claimed else "write_partly"), (i, a, content), written


def _begin(s: State, i: int, a: int, m: Mutation) -> Iterator[Move]:
    """Begin the transaction: lock the pipeline's row, and read the sequence under the lock."""
    if Mutation.ACK_BEFORE_COMMIT in m:
        s = s._replace(acked=s.acked | s.attempts[a].content)
    if Mutation.PUBLISH_BEFORE_COMMIT in m and s.attempts[a].content:
        s = s._replace(table=s.table._replace(live=(*s.table.live, a)))
    if Mutation.UNLOCKED_SEQUENCE in m:
        if len(s.batches) < 3:
            drawn = s._replace(batches=(*s.batches, NO_ATTEMPT))
            yield "begin", (i, a), _drive(drawn, i, Driver("transaction", a, len(drawn.batches)))
        return
    locked = s.sending or any(d.phase == "transaction" for d in s.drivers)
    if not locked:
        yield "begin", (i, a), _drive(s, i, Driver("transaction", a, len(s.batches) + 1))


def _commit(s: State, i: int, driver: Driver, m: Mutation) -> Iterator[Move]:
    _, a, seq = driver
    if any(attempt == a for attempt, _ in s.sending):
        return  # an earlier COMMIT of this attempt is still in flight and holds its row
    if not _checks_hold(s, a, m):
        for _, _, resolved in _resolve(s, i, a, m):  # a late COMMIT of the same attempt looks like a fence
            yield "commit_refused", (i, a), resolved
        return
    yield "commit", (i, a, seq), _drive(_committed(s, a, seq), i, Driver("committed", a))
    after = Driver("committed" if Mutation.UNKNOWN_IS_SUCCESS in m else "unknown", a)
    sent = s._replace(sending=tuple(sorted((*s.sending, (a, seq)))))
    yield "commit_reply_lost", (i, a, seq), _drive(sent, i, after)


def _checks_hold(s: State, a: int, m: Mutation) -> bool:
    """Evaluate the two CAS of the commit: the attempt is open, and it still owns every object that it claimed."""
    it = s.attempts[a]
    if Mutation.NO_FENCE in m:
        return all(s.owners[o] >= 0 for o in _bits(it.claimed))
    if Mutation.UNKNOWN_RERUNS_BLINDLY in m:
        return it.state != "abandoned"
    if Mutation.NO_ATTEMPT_CAS not in m and it.state != "open":
        return False
    return all(s.owners[o] == a for o in _bits(it.claimed))


def _committed(s: State, a: int, seq: int) -> State:
    it = s.attempts[a]
    owners = tuple(
        s.owners[o] if not it.claimed >> o & 1 else PROCESSED if it.content >> o & 1 else FREE for o in (0, 1)
    )
    attempts = _put(s.attempts, a, it._replace(state="committed", claimed=it.content, writing=False))
    batches = s.batches
    if it.content:
        batches = _put(batches, seq - 1, a) if seq <= len(batches) else (*batches, a)
    return s._replace(attempts=attempts, owners=owners, batches=batches)


def _resolve(s: State, i: int, a: int, m: Mutation) -> Iterator[Move]:
    """After an unknown outcome or a failed check, read the attempt's state; then continue, run again, or stop."""
    state = s.attempts[a].state
    if Mutation.UNKNOWN_DELETES_FILES in m:
        cleaned = s._replace(attempts=_put(s.attempts, a, s.attempts[a]._replace(file=False)))
        yield "resolve", (i, a), _drive(cleaned, i, Driver())
    elif Mutation.UNKNOWN_RERUNS_BLINDLY in m:
        yield "resolve", (i, a), _drive(s, i, Driver("written", a))
    else:
        known = {"open": Driver("written", a), "committed": Driver("committed", a)}
        yield "resolve", (i, a), _drive(s, i, known.get(state, Driver()))


def _server_moves(s: State, m: Mutation) -> Iterator[Move]:
    """COMMITs in flight arrive, or their connection breaks first. Until then they hold their locks."""
    for entry in s.sending:
        rest = s._replace(sending=tuple(e for e in s.sending if e != entry))
        yield "late_commit", entry, _committed(rest, *entry)
        yield "late_rollback", entry, rest
    if s.ledger == "fallible" and s.batches and not s.sending:
        a = s.batches[-1]
        owners = tuple(a if s.attempts[a].content >> o & 1 else s.owners[o] for o in (0, 1))
        reopened = _put(s.attempts, a, s.attempts[a]._replace(state="open"))
        yield "failover", (a,), s._replace(attempts=reopened, owners=owners, batches=s.batches[:-1], ledger="forgot")


# --- publishers ------------------------------------------------------------------------------------------------------


def _publisher_moves(s: State, i: int, m: Mutation) -> Iterator[Move]:
    phase, seen, _ = s.publishers[i]
    position = _position(s, m)
    if phase == "idle" and len(s.batches) > position:
        yield "load", (i,), _publish_as(s, i, Publisher("loaded", position, s.table.tip))
    if phase in ("idle", "halted", "absent"):
        return
    yield "crash_publisher", (i,), _publish_as(s, i, Publisher())
    if not _ledger_agrees(s, s.publishers[i], m):
        yield "halt", (i,), _publish_as(s, i, Publisher("halted"))
    elif position == seen or phase == "repeating" or Mutation.PUBLISH_UNCONDITIONAL in m:
        for upto in _publishable(s, seen, m):
            shown = s._replace(table=_appended(s, seen, upto))
            yield "publish", (i, seen, upto), _publish_as(shown, i, Publisher())
            again = s.publishers[i]._replace(phase="repeating")
            after = again if Mutation.PUBLISH_REPEATED in m else Publisher()
            yield "publish_reply_lost", (i, seen, upto), _publish_as(shown, i, after)
    else:
        yield "conflict", (i,), _publish_as(s, i, Publisher())


def _publish_as(s: State, i: int, publisher: Publisher) -> State:
    return s._replace(publishers=_put(s.publishers, i, publisher))


def _position(s: State, m: Mutation) -> int:
    if Mutation.POSITION_FROM_FILES not in m:
        return s.table.position
    named = [a in s.table.live for a in s.batches]
    return named.index(False) if False in named else len(named)


def _ledger_agrees(s: State, handle: Publisher, m: Mutation) -> bool:
    """Return True if the ledger's batch at the handle's position is the one that the handle names."""
    if not handle.seen or Mutation.NO_LEDGER_CHECK in m or Mutation.POSITION_FROM_FILES in m:
        return True
    return s.batches[handle.seen - 1 : handle.seen] == (handle.tip,)


def _publishable(s: State, seen: int, m: Mutation) -> Iterator[int]:
    """Yield possible ends of a run of batches without a gap. The ledger may have been read any time since the load."""
    for seq in range(seen + 1, len(s.batches) + 1):
        if s.batches[seq - 1] != NO_ATTEMPT:
            yield seq
        elif Mutation.GAPS_SKIPPED not in m:
            return


def _appended(s: State, seen: int, upto: int) -> Table:
    added = tuple(a for a in s.batches[seen:upto] if a != NO_ATTEMPT)
    return s.table._replace(position=upto, tip=s.batches[upto - 1], live=tuple(sorted((*s.table.live, *added))))


# --- expiry, gc, and uncontrolled events -----------------------------------------------------------------------------


def _expiry_moves(s: State, m: Mutation) -> Iterator[Move]:
    """When a lease ends, mark the attempt, then free its objects. The product does both at once; the model need not."""
    if Mutation.NO_EXPIRY in m:
        return
    locked = [a for a, _ in s.sending]  # rows of a COMMIT in flight
    for a in IDS:
        it = s.attempts[a]
        expired = it.state == "open" or (it.state == "committed" and Mutation.TOMBSTONE_FROM_ANY_STATE in m)
        if expired and a not in locked:
            yield "mark", (a,), s._replace(attempts=_put(s.attempts, a, it._replace(state="abandoned")))
        elif it.state == "abandoned" and Mutation.FREE_WITHOUT_TOKEN in m:
            owners = tuple(FREE if it.claimed >> o & 1 else s.owners[o] for o in (0, 1))
            yield "free", (a,), s._replace(owners=owners)
        elif it.state == "abandoned" and a in s.owners:
            yield "free", (a,), s._replace(owners=tuple(FREE if o == a else o for o in s.owners))


def _gc_moves(s: State, m: Mutation) -> Iterator[Move]:
    """Delete the files of durably abandoned attempts, repeatedly, since stragglers write new ones.

    gc checks first and deletes later. This needs no step in the model, since `abandoned` is final.
    """
    for a in IDS:
        it = s.attempts[a]
        if it.file and (it.state == "abandoned" or (it.state == "open" and Mutation.NO_TOMBSTONE in m)):
            yield "delete", (a,), s._replace(attempts=_put(s.attempts, a, it._replace(file=False)))


def _world_moves(s: State, m: Mutation) -> Iterator[Move]:
    """Executors that outlive their attempt; compaction, and the removal of the replaced files."""
    for a in IDS:
        it = s.attempts[a]
        if it.state == "abandoned" and it.writing:
            yield "writer_stops", (a,), s._replace(attempts=_put(s.attempts, a, it._replace(writing=False)))
            if not it.file:
                yield "straggler", (a,), s._replace(attempts=_put(s.attempts, a, it._replace(file=True)))
        elif it.file and a in s.batches[: s.table.position] and a not in s.table.live:
            yield "vacuum", (a,), s._replace(attempts=_put(s.attempts, a, it._replace(file=False)))
    if s.table.live:
        table = s.table._replace(live=(), compacted=(visible(s, 0), visible(s, 1)))
        if Mutation.COMPACTION_DROPS_POSITION in m:
            table = table._replace(position=0, tip=NO_ATTEMPT)
        yield "compact", (), s._replace(table=table)


def visible(s: State, o: int) -> int:
    """Return how many times the table shows the rows of object ``o``."""
    return s.table.compacted[o] + sum(s.attempts[a].content >> o & 1 for a in s.table.live)
