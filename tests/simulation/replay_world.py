"""The model's moves of replayers, people, consoles and reconciles, and of leases that end."""

from collections.abc import Iterator

from tests.simulation.replay_model import (
    DEAD_HOLDER,
    FIRST,
    MAIN,
    NOBODY,
    NOW,
    PERSON,
    REPLAYER,
    SECOND,
    SENT,
    L,
    M,
    Move,
    Mutation,
    R,
    Rules,
    State,
    free,
    worker_moves,
)
from tests.simulation.replay_rules import NONE, sent_back, way_back

ANEW = 0  # the count that a person's replay begins with


def moves(s: State, rules: Rules) -> Iterator[Move]:
    """Everything that may happen next."""
    yield from worker_moves(s, rules)
    yield from _replayer_moves(s, REPLAYER, s.replayer, rules)
    yield from _replayer_moves(s, PERSON, s.person, rules)
    yield from _console_moves(s, rules)
    yield from _broker_moves(s)
    yield from _reconcile_moves(s, rules)
    yield from _lease_moves(s, rules)


# --- the replayer, and the person who does the same ------------------------------------------------------------------


def _replayer_moves(s: State, who: int, r: R, rules: Rules) -> Iterator[Move]:
    if r.phase == "absent":
        return
    if r.letter is None:
        yield from _take(s, who, rules)
        return
    if r.phase == "taken":
        yield from _intend(s, who, r.letter, rules)
    elif r.phase == "intended":
        yield from _send(s, who, r, rules)
    elif r.phase == "giving_up":
        yield "set_aside", _turn(_set_aside(s, r, rules), who, R())
    elif r.phase == "sent":
        marked = s if Mutation.NO_MARK in rules.dropped else _noted(s, _record(s, r.letter)._replace(record=SENT))
        yield "mark", _turn(marked, who, r._replace(phase="marked"))
    elif r.phase == "marked":
        yield "delete", _turn(_deleted(s, who, r.letter, rules), who, R())
    if s.crashes:
        yield ("crash_replayer" if who == REPLAYER else "crash_person"), _died(s, who, r)


def _take(s: State, who: int, rules: Rules) -> Iterator[Move]:
    """The replayer leases letters of the first tier. A person looks at any, where the broker lets them look."""
    if who == PERSON and not s.replays:
        return
    looks = who == PERSON and rules.deduplicates
    for m in s.messages:
        if m.place == MAIN or (who == REPLAYER and m.place != FIRST) or (m.holder != NOBODY and not looks):
            continue
        messages = s.messages if looks else _with(s, m, m._replace(holder=who))
        after = s._replace(messages=messages, replays=s.replays - (who == PERSON))
        yield ("take" if who == REPLAYER else "choose"), _turn(after, who, R("taken", m))


def _intend(s: State, who: int, letter: M, rules: Rules) -> Iterator[Move]:
    """What is on record already counts: what is sent is only deleted, and a person's intent is kept."""
    on_record = _record(s, letter)
    if on_record.record == SENT:
        yield "find_sent", _turn(s, who, R("marked", letter))
        return
    count = ANEW if who == PERSON else way_back(letter.id, letter.tally, rules.replays_max)
    if count is None and (on_record.record == NONE or Mutation.GIVEN_UP_DESPITE_INTENT in rules.dropped):
        yield "give_up", _turn(s, who, R("giving_up", letter))
        return
    if Mutation.REVIVE_BEFORE_SEND in rules.dropped:
        objects = tuple(
            free(o)._replace(attempts=0) if n in letter.names and o.state == "dead" else o
            for n, o in enumerate(s.objects)
        )
        s = s._replace(objects=objects)
    if Mutation.DELETE_BEFORE_SEND in rules.dropped:
        s = _deleted(s, who, letter, rules)
    if count is None or (who == REPLAYER and on_record.record != NONE):
        count = on_record.record
    if on_record.record == NONE:
        s = _noted(s, on_record._replace(record=count))
    yield "intend", _turn(s, who, R("intended", letter, count))


def _set_aside(s: State, r: R, rules: Rules) -> State:
    assert r.letter is not None
    here = _where(s, r.letter)
    if here is None or here.holder != REPLAYER:
        return s  # its lease was lost
    if Mutation.SET_ASIDE_DELETES in rules.dropped:
        return s._replace(messages=_with(s, here))
    on_record = _record(s, here)
    late = on_record.sends > 0 and Mutation.GIVEN_UP_DESPITE_INTENT not in rules.dropped  # sent since it was looked at
    aside = here._replace(place=SECOND, holder=NOBODY, id=_fresh(s))  # another place, so another replay id
    return s._replace(messages=_with(s, here, aside), doubles=s.doubles + late)


def _send(s: State, who: int, r: R, rules: Rules) -> Iterator[Move]:
    assert r.letter is not None
    on_record = _record(s, r.letter)
    turned = r._replace(phase="sent")
    if on_record.sends and rules.deduplicates:
        yield "send_again", _turn(s, who, turned)
        return
    gone = on_record.sends == 0 and _where(s, r.letter) is None  # moved away meanwhile, and so there twice
    doubled = on_record.sends > 0 or (gone and Mutation.DELETE_BEFORE_SEND not in rules.dropped)
    noted = _noted(s, on_record._replace(sends=on_record.sends + 1))
    after = _turn(noted._replace(doubles=s.doubles + doubled), who, turned)
    count, replay = sent_back(r.letter.id, r.letter.tally, r.tally)
    if Mutation.REPLAY_WITHOUT_ID in rules.dropped:
        replay = NONE
    for time in (NOW, 0) if rules.behind else (NOW,):
        message = M(MAIN, r.letter.names, count, replay, time, NOBODY, _fresh(s))
        yield ("send_twice" if on_record.sends else "send"), after._replace(messages=(*after.messages, message))


def _deleted(s: State, who: int, letter: M, rules: Rules) -> State:
    """A lease that was lost deletes nothing; a person deletes by the id, where the broker lets them look."""
    here = _where(s, letter)
    if here is None or not (here.holder == who or (who == PERSON and rules.deduplicates)):
        return s
    return s._replace(messages=_with(s, here))


def _died(s: State, who: int, r: R) -> State:
    assert r.letter is not None
    if r.phase == "sent":
        on_record = _record(s, r.letter)
        s = _noted(s, on_record._replace(excuses=on_record.excuses + 1))
    messages = tuple(m._replace(holder=DEAD_HOLDER) if m.holder == who else m for m in s.messages)
    return _turn(s._replace(messages=messages, crashes=s.crashes - 1), who, R())


def _turn(s: State, who: int, r: R) -> State:
    if who == REPLAYER:
        return s._replace(replayer=r)
    return s._replace(person=R("absent") if r.letter is None and not s.replays else r)


def _record(s: State, letter: M) -> L:
    return next((one for one in s.log if one.id == letter.id), L(letter.id))


def _noted(s: State, record: L) -> State:
    return s._replace(log=(*(one for one in s.log if one.id != record.id), record))


def _where(s: State, letter: M) -> M | None:
    """Return the dead letter if it is still in its queue."""
    return next((m for m in s.messages if (m.id, m.place) == (letter.id, letter.place)), None)


def _with(s: State, before: M, after: M | None = None) -> tuple[M, ...]:
    rest = tuple(m for m in s.messages if m is not before)
    return rest if after is None else (*rest, after)


def _fresh(s: State) -> int:
    ids = {m.id for m in s.messages} | {one.id for one in s.log} | {m.replay for m in s.messages}
    ids |= {number for o in s.objects for number in (*o.spent, o.original_message)}
    ids |= {number for w in s.workers for m in w.messages for number in (m.id, m.replay)}
    ids |= {r.letter.id for r in (s.replayer, s.person) if r.letter is not None}
    return max(ids, default=0) + 1


# --- everybody else --------------------------------------------------------------------------------------------------


def _console_moves(s: State, rules: Rules) -> Iterator[Move]:
    """A console moves a letter as it is: a new id, a new time, and whatever replay id it carries from before."""
    if not s.redrives:
        return
    for m in s.messages:
        if m.place == MAIN or m.holder != NOBODY:
            continue
        message = m._replace(place=MAIN, time=0 if rules.behind else NOW, id=_fresh(s))
        doubled = _record(s, m).sends > 0
        after = s._replace(messages=_with(s, m, message), redrives=s.redrives - 1, doubles=s.doubles + doubled)
        yield "redrive", after


def _broker_moves(s: State) -> Iterator[Move]:
    """A broker that counts receives makes a letter of a message whose objects have not ended."""
    if not s.moved:
        return
    for m in s.messages:
        if m.place == MAIN and m.holder == NOBODY:
            letter = m._replace(place=FIRST)
            yield "moved", s._replace(messages=_with(s, m, letter), moved=s.moved - 1, doubles=s.doubles + 1)


def _reconcile_moves(s: State, rules: Rules) -> Iterator[Move]:
    """It looks, and sends later for what was missing then: what had neither an end nor a living attempt."""
    if s.looked:
        fresh = _fresh(s)
        sent = tuple(M(MAIN, (n,), 0, NONE, NOW, NOBODY, fresh + at) for at, n in enumerate(s.looked))
        late = sum(s.objects[n].state == "dead" for n in s.looked)  # it died since somebody looked
        late = 0 if Mutation.RECONCILE_SENDS_FOR_DEAD in rules.dropped else late
        yield "reconcile", s._replace(messages=(*s.messages, *sent), looked=(), doubles=s.doubles + late)
    elif s.reconciles:
        states = {"free", "dead"} if Mutation.RECONCILE_SENDS_FOR_DEAD in rules.dropped else {"free"}
        missing = tuple(n for n, o in enumerate(s.objects) if o.state in states)
        if missing:
            yield "look", s._replace(looked=missing, reconciles=s.reconciles - 1)


def _lease_moves(s: State, rules: Rules) -> Iterator[Move]:
    """Leases of the dead end some time, those of the living when they starve."""
    for n, o in enumerate(s.objects):
        if o.state != "held" or (o.holder != DEAD_HOLDER and not s.lapses):
            continue
        objects = (*s.objects[:n], free(o), *s.objects[n + 1 :])
        yield from _ended(s._replace(objects=objects), o.holder)
    for m in s.messages:
        if m.holder == NOBODY or (m.holder != DEAD_HOLDER and not s.lapses):
            continue
        sleeps = any(w.phase == "received" and m.id in [it.id for it in w.messages] for w in s.workers)
        if sleeps and m.holder != DEAD_HOLDER and not rules.sleeps:
            continue
        after = s._replace(messages=_with(s, m, m._replace(holder=NOBODY)))
        if m.holder in (REPLAYER, PERSON):
            on_record = _record(after, m)
            after = _noted(after, on_record._replace(excuses=on_record.excuses + 1))
        yield from _ended(after, m.holder)


def _ended(s: State, holder: int) -> Iterator[Move]:
    if holder == DEAD_HOLDER:
        yield "expire", s
    else:
        yield "lapse", s._replace(lapses=s.lapses - 1)
