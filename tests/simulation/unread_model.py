"""A model of objects that seem deleted or replaced before they are read, small enough to be explored completely.

One key, whose content is A, B or nothing, and changes a few times; the object A, its messages, and two workers that
claim, check and commit. Notifications may be lost, late, or repeated; a listing may report A; a mount may be missing
for less time than two checks are apart. The model shares no code with the product.
"""

from collections.abc import Iterator
from enum import Flag, auto
from typing import NamedTuple

NOTHING, A, B = 0, 1, 2
NEVER = -1  # no time, no sequencer


class Mutation(Flag):
    """A rule of the protocol that is dropped."""

    NONE = 0
    ENDS_ARE_FINAL = auto()  # deleted and superseded objects are never claimed again
    SINCE_THE_END = auto()  # news is a message enqueued after the end was recorded
    SINCE_THE_RECORD = auto()  # ... after the first check was recorded, not after its attempt began
    ORDER_IS_KEPT = auto()  # an object keeps its first sequencer
    LISTINGS_IGNORED = auto()  # an object superseded by the order of events is not claimed again for a listing
    ATTEMPTS_ARE_CHECKS = auto()  # deleted at the second attempt, whatever the failure of the first one
    CHECKS_AT_ONCE = auto()  # deleted at the second check, however soon it follows the first
    CHECKS_OUTLIVE_NEWS = auto()  # a check counts although the object was notified since
    OLD_MESSAGES_RESTORE = auto()  # any message claims a deleted object again
    PROCESSED_ONES_RETURN = auto()  # news claims processed objects again too
    HELD_ONES_ARE_TAKEN = auto()  # without the compare-and-set on the state


class Message(NamedTuple):
    time: int  # of its sending
    sequencer: int  # NEVER: from a listing
    phase: str = "queued"  # queued | taken | acked
    lives: int = 0  # the number of lives that it began


class Row(NamedTuple):
    state: str = "new"  # new | unprocessed | held | processed | gone | superseded
    sequencer: int = NEVER
    missed: bool = False  # by a check, and found by none since
    sought_at: int = NEVER
    apart: bool = False  # enough time has passed since the first check that missed it
    ended_at: int = NEVER
    attempts: int = 0
    original_message: int = NEVER


class Worker(NamedTuple):
    phase: str = "idle"  # idle | claimed | checked
    message: int = NEVER
    began_at: int = NEVER
    missed_before: bool = False  # as the claim found it
    apart: bool = False
    saw: int = NEVER


class State(NamedTuple):
    content: int = NOTHING
    unmounted: bool = False
    outages: int = 1
    failures: int = 1  # of a kind other than missing
    repeats: int = 1  # of acked messages
    changes: int = 3
    room: int = 2  # for messages
    sequencer: int = 0
    pending: tuple[tuple[int, int], ...] = ()  # notifications in flight: content, sequencer
    announced: bool = False  # since A was last put
    processed_b: int = NEVER  # the latest sequencer of B that was processed
    row: Row = Row()
    rows: int = 0  # how many times A's rows are in the table
    messages: tuple[Message, ...] = ()
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    now: int = 0


Move = tuple[str, State]


def moves(s: State, m: Mutation) -> Iterator[Move]:
    """Yield all possible next moves."""
    yield from _world(s)
    yield from _messages(s)
    for number in (0, 1):
        if number and s.workers[0] == s.workers[1]:
            continue  # the same moves, by symmetry
        worker = s.workers[number]
        if worker.phase == "idle":
            for position, message in enumerate(s.messages):
                if message.phase == "queued":
                    yield _claim(s, number, position, m)
        elif worker.phase == "claimed":
            saw = NOTHING if s.unmounted else s.content
            yield "check", _work(s, number, worker._replace(phase="checked", saw=saw))
            if s.failures:
                yield "fail", _retry(s._replace(failures=s.failures - 1), number, Row())
        else:
            yield "commit", _commit(s, number, m)


def _world(s: State) -> Iterator[Move]:
    if s.changes:
        sequencer = s.sequencer + 1
        changed = s._replace(changes=s.changes - 1, sequencer=sequencer)
        for content in (A, B):
            if content != s.content:
                put = changed._replace(content=content, pending=(*s.pending, (content, sequencer)), announced=False)
                yield "put", put
        if s.content != NOTHING:
            yield "delete", changed._replace(content=NOTHING)
    if s.unmounted:
        yield "mount", s._replace(unmounted=False)
    else:
        if s.outages and s.content == A:
            yield "unmount", s._replace(unmounted=True, outages=s.outages - 1)
        if s.row.missed and not s.row.apart:  # no outage lasts as long as the time between two checks
            yield "time passes", s._replace(row=s.row._replace(apart=True))


def _messages(s: State) -> Iterator[Move]:
    room = len(s.messages) < s.room
    for position, (content, sequencer) in enumerate(s.pending):
        rest = s._replace(pending=s.pending[:position] + s.pending[position + 1 :])
        yield "lose", rest
        if content == B:
            yield "process B", rest._replace(processed_b=max(s.processed_b, sequencer))
        elif room:
            yield "notify", _sent(rest, sequencer, news=s.content == A and sequencer == s.sequencer)
    if room and s.content == A and not s.unmounted:
        yield "list", _sent(s, NEVER, news=True)
    if s.repeats:
        for position, message in enumerate(s.messages):
            if message.phase == "acked":
                again = _put(s, position, message._replace(phase="queued"))
                yield "redeliver", again._replace(repeats=s.repeats - 1)


def _sent(s: State, sequencer: int, *, news: bool) -> State:
    now = s.now + 1
    messages = (*s.messages, Message(time=now, sequencer=sequencer))
    return s._replace(messages=messages, announced=s.announced or news, now=now)


def _put(s: State, position: int, message: Message) -> State:
    return s._replace(messages=(*s.messages[:position], message, *s.messages[position + 1 :]))


def _work(s: State, number: int, worker: Worker) -> State:
    return s._replace(workers=(worker, s.workers[1]) if number == 0 else (s.workers[0], worker))


def _claim(s: State, number: int, position: int, m: Mutation) -> Move:
    row, message, now = s.row, s.messages[position], s.now + 1
    free = row.state in ("new", "unprocessed") or (row.state == "held" and Mutation.HELD_ONES_ARE_TAKEN in m)
    if not free and _restores(s, position, m):
        free, row = True, Row(sequencer=row.sequencer)
        message = message._replace(lives=message.lives + 1)
    if (
        row.missed
        and row.state == "unprocessed"
        and Mutation.CHECKS_OUTLIVE_NEWS not in m
        and _is_news(row, s, position)
    ):
        row = row._replace(missed=False, sought_at=NEVER, apart=False)
    if row.state == "held" and not free:
        return "busy", s  # released, to be redelivered
    if not free:
        return "ack", _put(s, position, message._replace(phase="acked"))
    sequencer = _order(row, message) if row.state != "new" or row.sequencer != NEVER else message.sequencer
    if Mutation.ORDER_IS_KEPT in m and row.sequencer != NEVER:
        sequencer = row.sequencer
    if sequencer != NEVER and s.processed_b > sequencer:
        ended = Row(state="superseded", sequencer=sequencer, ended_at=now)
        return "overtaken", _put(s._replace(row=ended, now=now), position, message._replace(phase="acked"))
    taken = row._replace(state="held", sequencer=sequencer, attempts=row.attempts + 1, original_message=position)
    held = _put(s._replace(row=taken, now=now), position, message._replace(phase="taken"))
    missed = row.attempts > 0 if Mutation.ATTEMPTS_ARE_CHECKS in m else row.missed
    worker = Worker("claimed", position, began_at=now, missed_before=missed, apart=row.apart)
    return "claim", _work(held, number, worker)


def _order(row: Row, message: Message) -> int:
    return NEVER if NEVER in (row.sequencer, message.sequencer) else max(row.sequencer, message.sequencer)


def _restores(s: State, position: int, m: Mutation) -> bool:
    """Return True if a message revives an object that has ended."""
    row, message = s.row, s.messages[position]
    may_return = ("gone", "superseded") + (("processed",) if Mutation.PROCESSED_ONES_RETURN in m else ())
    if row.state not in may_return or Mutation.ENDS_ARE_FINAL in m:
        return False
    if Mutation.OLD_MESSAGES_RESTORE in m:
        return True
    if row.sought_at == NEVER and not (_is_later(row, message)):
        return message.sequencer == NEVER and Mutation.LISTINGS_IGNORED not in m
    return _is_news(row, s, position, since_the_end=Mutation.SINCE_THE_END in m)


def _is_later(row: Row, message: Message) -> bool:
    return NEVER not in (message.sequencer, row.sequencer) and message.sequencer > row.sequencer


def _is_news(row: Row, s: State, position: int, *, since_the_end: bool = False) -> bool:
    """Return True if a message may be newer than the checks so far."""
    message = s.messages[position]
    since = row.ended_at if since_the_end else row.sought_at
    return _is_later(row, message) or (message.time > since and position != row.original_message)


def _commit(s: State, number: int, m: Mutation) -> State:
    worker, now = s.workers[number], s.now + 1
    done = s.messages[worker.message]._replace(phase="acked")
    ended = _put(_work(s._replace(now=now), number, Worker()), worker.message, done)
    if worker.saw == A:
        return ended._replace(row=Row(state="processed", sequencer=s.row.sequencer, ended_at=now), rows=s.rows + 1)
    if worker.saw == B:
        row = s.row._replace(state="superseded", missed=False, sought_at=worker.began_at, ended_at=now)
        return ended._replace(row=row)
    counts = worker.apart or bool({Mutation.CHECKS_AT_ONCE, Mutation.ATTEMPTS_ARE_CHECKS} & {*m})
    first = now if Mutation.SINCE_THE_RECORD in m else worker.began_at
    missed = s.row._replace(missed=True, sought_at=s.row.sought_at if s.row.missed else first)
    if worker.missed_before and counts:
        return ended._replace(row=missed._replace(state="gone", ended_at=now))
    return _retry(s._replace(now=now), number, missed)


def _retry(s: State, number: int, checks: Row) -> State:
    """Release the object and its message, with the checks so far of ``checks``."""
    message = s.workers[number].message
    released = _put(_work(s, number, Worker()), message, s.messages[message]._replace(phase="queued"))
    row = s.row._replace(state="unprocessed", missed=checks.missed, sought_at=checks.sought_at, apart=checks.apart)
    return released._replace(row=row)


def violation(s: State) -> str | None:
    """Return the first invariant that this state breaks."""
    if s.rows > 1:
        return "rows of an object are in the table twice"
    if any(message.lives > 1 for message in s.messages):
        return "one message begins two lives of an object"
    is_stable = not s.unmounted and all(message.phase == "acked" for message in s.messages)
    if is_stable and s.content == A and s.announced and not s.rows:
        return "content that exists and was notified was never read"
    return None


def canonical(s: State) -> State:
    """Return the same state with times reduced to their order."""
    times = sorted(
        {NEVER, s.row.sought_at, s.row.ended_at, *(w.began_at for w in s.workers), *(g.time for g in s.messages)}
    )
    rank = {time: place - 1 for place, time in enumerate(times)}
    row = s.row._replace(
        sought_at=rank[s.row.sought_at], ended_at=rank[s.row.ended_at], attempts=min(s.row.attempts, 1)
    )
    first, second = sorted(worker._replace(began_at=rank[worker.began_at]) for worker in s.workers)
    messages = tuple(message._replace(time=rank[message.time]) for message in s.messages)
    pending = tuple(sorted(s.pending))
    return s._replace(row=row, workers=(first, second), messages=messages, pending=pending, now=len(times))
