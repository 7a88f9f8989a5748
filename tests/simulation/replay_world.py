"""The model's moves of replayers, people, consoles and reconciles, and of leases that end."""

from collections.abc import Iterator

from tests.simulation.replay_model import (
    DEAD_HOLDER,
    DLQ,
    FINAL,
    MAIN,
    NO_HOLDER,
    NOW,
    PERSON,
    REPLAYER,
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

ANEW = 0  # the initial count of a person's replay


def moves(s: State, rules: Rules) -> Iterator[Move]:
    """Yield all possible next moves."""
    yield from worker_moves(s, rules)
    yield from _replayer_moves(s, REPLAYER, s.replayer, rules)
    yield from _replayer_moves(s, PERSON, s.person, rules)
    yield from _console_moves(s, rules)
    yield from _broker_moves(s)
    yield from _reconcile_moves(s, rules)
    yield from _lease_moves(s, rules)


# --- the replayer, and the person who does the same ------------------------------------------------------------------


def _replayer_moves(s: State, actor: int, r: R, rules: Rules) -> Iterator[Move]:
    if r.phase == "absent":
        return
    if r.dead_letter is None:
        yield from _take(s, actor, rules)
        return
    if r.phase == "taken":
        yield from _intend(s, actor, r.dead_letter, rules)
    elif r.phase == "intended":
        yield from _send(s, actor, r, rules)
    elif r.phase == "giving_up":
        yield "set_aside", _turn(_set_aside(s, r, rules), actor, R())
    elif r.phase == "sent":
        marked = s if Mutation.NO_MARK in rules.dropped else _noted(s, _record(s, r.dead_letter)._replace(record=SENT))
        yield "mark", _turn(marked, actor, r._replace(phase="marked"))
    elif r.phase == "marked":
        yield "delete", _turn(_deleted(s, actor, r.dead_letter, rules), actor, R())
    if s.crashes:
        yield ("crash_replayer" if actor == REPLAYER else "crash_person"), _crashed(s, actor, r)


def _take(s: State, actor: int, rules: Rules) -> Iterator[Move]:
    """The replayer leases dead letters of the DLQ. A person may choose any, without a lease if the broker allows it."""
    if actor == PERSON and not s.replays:
        return
    unleased = actor == PERSON and rules.deduplicates
    for m in s.messages:
        if m.place == MAIN or (actor == REPLAYER and m.place != DLQ) or (m.holder != NO_HOLDER and not unleased):
            continue
        messages = s.messages if unleased else _with(s, m, m._replace(holder=actor))
        after = s._replace(messages=messages, replays=s.replays - (actor == PERSON))
        yield ("take" if actor == REPLAYER else "choose"), _turn(after, actor, R("taken", m))


def _intend(s: State, actor: int, dead_letter: M, rules: Rules) -> Iterator[Move]:
    """Apply a recorded intent: a sent dead letter is only deleted, and a person's intent is kept."""
    on_record = _record(s, dead_letter)
    if on_record.record == SENT:
        yield "find_sent", _turn(s, actor, R("marked", dead_letter))
        return
    count = ANEW if actor == PERSON else way_back(dead_letter.id, dead_letter.tally, rules.replays_max)
    if count is None and (on_record.record == NONE or Mutation.GIVEN_UP_DESPITE_INTENT in rules.dropped):
        yield "give_up", _turn(s, actor, R("giving_up", dead_letter))
        return
    if Mutation.REVIVE_BEFORE_SEND in rules.dropped:
        objects = tuple(
            free(o)._replace(attempts=0) if n in dead_letter.names and o.state == "dead" else o
            for n, o in enumerate(s.objects)
        )
        s = s._replace(objects=objects)
    if Mutation.DELETE_BEFORE_SEND in rules.dropped:
        s = _deleted(s, actor, dead_letter, rules)
    if count is None or (actor == REPLAYER and on_record.record != NONE):
        count = on_record.record
    if on_record.record == NONE:
        s = _noted(s, on_record._replace(record=count))
    yield "intend", _turn(s, actor, R("intended", dead_letter, count))


def _set_aside(s: State, r: R, rules: Rules) -> State:
    assert r.dead_letter is not None
    here = _where(s, r.dead_letter)
    if here is None or here.holder != REPLAYER:
        return s  # its lease was lost
    if Mutation.SET_ASIDE_DELETES in rules.dropped:
        return s._replace(messages=_with(s, here))
    on_record = _record(s, here)
    late = on_record.sends > 0 and Mutation.GIVEN_UP_DESPITE_INTENT not in rules.dropped  # sent since it was read
    moved = here._replace(place=FINAL, holder=NO_HOLDER, id=_fresh(s))  # a new place, so a new replay id
    return s._replace(messages=_with(s, here, moved), doubles=s.doubles + late)


def _send(s: State, actor: int, r: R, rules: Rules) -> Iterator[Move]:
    assert r.dead_letter is not None
    on_record = _record(s, r.dead_letter)
    turned = r._replace(phase="sent")
    if on_record.sends and rules.deduplicates:
        yield "send_again", _turn(s, actor, turned)
        return
    moved = on_record.sends == 0 and _where(s, r.dead_letter) is None  # moved away meanwhile, so that it exists twice
    doubled = on_record.sends > 0 or (moved and Mutation.DELETE_BEFORE_SEND not in rules.dropped)
    noted = _noted(s, on_record._replace(sends=on_record.sends + 1))
    after = _turn(noted._replace(doubles=s.doubles + doubled), actor, turned)
    count, replay = sent_back(r.dead_letter.id, r.dead_letter.tally, r.tally)
    if Mutation.REPLAY_WITHOUT_ID in rules.dropped:
        replay = NONE
    for time in (NOW, 0) if rules.behind else (NOW,):
        message = M(MAIN, r.dead_letter.names, count, replay, time, NO_HOLDER, _fresh(s))
        yield ("send_twice" if on_record.sends else "send"), after._replace(messages=(*after.messages, message))


def _deleted(s: State, actor: int, dead_letter: M, rules: Rules) -> State:
    """Delete a dead letter. A lost lease deletes nothing; a person deletes by id if the broker allows it."""
    here = _where(s, dead_letter)
    if here is None or not (here.holder == actor or (actor == PERSON and rules.deduplicates)):
        return s
    return s._replace(messages=_with(s, here))


def _crashed(s: State, actor: int, r: R) -> State:
    assert r.dead_letter is not None
    if r.phase == "sent":
        on_record = _record(s, r.dead_letter)
        s = _noted(s, on_record._replace(excuses=on_record.excuses + 1))
    messages = tuple(m._replace(holder=DEAD_HOLDER) if m.holder == actor else m for m in s.messages)
    return _turn(s._replace(messages=messages, crashes=s.crashes - 1), actor, R())


def _turn(s: State, actor: int, r: R) -> State:
    if actor == REPLAYER:
        return s._replace(replayer=r)
    return s._replace(person=R("absent") if r.dead_letter is None and not s.replays else r)


def _record(s: State, dead_letter: M) -> L:
    return next((one for one in s.log if one.id == dead_letter.id), L(dead_letter.id))


def _noted(s: State, record: L) -> State:
    return s._replace(log=(*(one for one in s.log if one.id != record.id), record))


def _where(s: State, dead_letter: M) -> M | None:
    """Return the dead letter if it is still in its queue."""
    return next((m for m in s.messages if (m.id, m.place) == (dead_letter.id, dead_letter.place)), None)


def _with(s: State, before: M, after: M | None = None) -> tuple[M, ...]:
    rest = tuple(m for m in s.messages if m is not before)
    return rest if after is None else (*rest, after)


def _fresh(s: State) -> int:
    ids = {m.id for m in s.messages} | {one.id for one in s.log} | {m.replay for m in s.messages}
    ids |= {number for o in s.objects for number in (*o.spent, o.original_message)}
    ids |= {number for w in s.workers for m in w.messages for number in (m.id, m.replay)}
    ids |= {r.dead_letter.id for r in (s.replayer, s.person) if r.dead_letter is not None}
    return max(ids, default=0) + 1


# --- the other processes ---------------------------------------------------------------------------------------------


def _console_moves(s: State, rules: Rules) -> Iterator[Move]:
    """A console moves a dead letter unchanged: a new id, a new time, and any replay id that it already has."""
    if not s.redrives:
        return
    for m in s.messages:
        if m.place == MAIN or m.holder != NO_HOLDER:
            continue
        message = m._replace(place=MAIN, time=0 if rules.behind else NOW, id=_fresh(s))
        doubled = _record(s, m).sends > 0
        after = s._replace(messages=_with(s, m, message), redrives=s.redrives - 1, doubles=s.doubles + doubled)
        yield "redrive", after


def _broker_moves(s: State) -> Iterator[Move]:
    """A broker that counts receives dead-letters a message whose objects have not ended."""
    if not s.moved:
        return
    for m in s.messages:
        if m.place == MAIN and m.holder == NO_HOLDER:
            dead_letter = m._replace(place=DLQ)
            yield "moved", s._replace(messages=_with(s, m, dead_letter), moved=s.moved - 1, doubles=s.doubles + 1)


def _reconcile_moves(s: State, rules: Rules) -> Iterator[Move]:
    """Find missing objects, which have neither an end nor a live attempt, and later send messages for them."""
    if s.found_missing:
        fresh = _fresh(s)
        sent = tuple(M(MAIN, (n,), 0, NONE, NOW, NO_HOLDER, fresh + at) for at, n in enumerate(s.found_missing))
        late = sum(s.objects[n].state == "dead" for n in s.found_missing)  # failed since the reconcile read its state
        late = 0 if Mutation.RECONCILE_SENDS_FOR_DEAD in rules.dropped else late
        yield "reconcile", s._replace(messages=(*s.messages, *sent), found_missing=(), doubles=s.doubles + late)
    elif s.reconciles:
        states = {"free", "dead"} if Mutation.RECONCILE_SENDS_FOR_DEAD in rules.dropped else {"free"}
        missing = tuple(n for n, o in enumerate(s.objects) if o.state in states)
        if missing:
            yield "inspect", s._replace(found_missing=missing, reconciles=s.reconciles - 1)


def _lease_moves(s: State, rules: Rules) -> Iterator[Move]:
    """Leases of dead processes end at some time, those of living ones if they are not extended."""
    for n, o in enumerate(s.objects):
        if o.state != "held" or (o.holder != DEAD_HOLDER and not s.lapses):
            continue
        objects = (*s.objects[:n], free(o), *s.objects[n + 1 :])
        yield from _ended(s._replace(objects=objects), o.holder)
    for m in s.messages:
        if m.holder == NO_HOLDER or (m.holder != DEAD_HOLDER and not s.lapses):
            continue
        sleeps = any(w.phase == "received" and m.id in [it.id for it in w.messages] for w in s.workers)
        if sleeps and m.holder != DEAD_HOLDER and not rules.sleeps:
            continue
        after = s._replace(messages=_with(s, m, m._replace(holder=NO_HOLDER)))
        if m.holder in (REPLAYER, PERSON):
            on_record = _record(after, m)
            after = _noted(after, on_record._replace(excuses=on_record.excuses + 1))
        yield from _ended(after, m.holder)


def _ended(s: State, holder: int) -> Iterator[Move]:
    if holder == DEAD_HOLDER:
        yield "expire", s
    else:
        yield "lapse", s._replace(lapses=s.lapses - 1)
