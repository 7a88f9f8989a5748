"""The invariants of the model of replays, of its finished states, and the equivalence of states."""

from tests.simulation.replay_model import FINAL, MAIN, L, M, O, R, State
from tests.simulation.replay_rules import NONE, gives_life

ANY = 0  # a placeholder for values that no longer matter


def violation(s: State) -> str | None:
    """Return the first invariant that this state breaks."""
    for one in s.log:
        if one.sends > 1 + one.excuses:
            return "a dead letter was sent again without a crash or a lost lease that excuses it"
    dead_letters = _waiting(s)
    for n, o in enumerate(s.objects):
        if o.effects > 1:
            return "an object took effect twice"
        if o.twice:
            return "a replay revived an object twice"
        if o.state == "done":
            continue
        named = [m for m in dead_letters if n in m.names]
        if not named and not any(_acts(m, n, o) for m in s.messages):
            return "an object is lost: no dead letter names it, and no message revives it"
        if o.state == "dead" and _is_single_object(s) and len(named) > 1 + s.doubles:
            return "a failed object has one dead letter too many"
    return None


def _waiting(s: State) -> list[M]:
    """Return the dead letters, without sent ones that only wait for deletion."""
    sent = {one.id for one in s.log if one.sends}
    return [m for m in s.messages if m.place != MAIN and m.id not in sent]


def _acts(m: M, n: int, o: O) -> bool:
    """Return True if the message, when delivered, has an effect on the object."""
    if m.place != MAIN or n not in m.names:
        return False
    if o.state != "dead" or m.id == o.original_message:
        return True
    return gives_life(m.id, m.time, m.replay, original_message=o.original_message, dead_at=o.dead_at, spent=o.spent)


def _is_single_object(s: State) -> bool:
    """Return True for one object. If messages name several, a replay for one object revives the others, too."""
    return len(s.objects) == 1


def finished(s: State) -> bool:
    """Return True if nothing is in progress, and failed objects wait for people with exactly one dead letter each."""
    if s.found_missing or any(m.place != FINAL for m in s.messages):
        return False
    if any(w.phase != "idle" for w in s.workers) or any(r.dead_letter is not None for r in (s.replayer, s.person)):
        return False
    dead_letters = _waiting(s)
    exact = not _is_single_object(s) or s.doubles or len(dead_letters) == sum(o.state == "dead" for o in s.objects)
    return bool(exact) and all(o.state in ("done", "dead") for o in s.objects)


# --- equivalent states -----------------------------------------------------------------------------------------------


def canonical(s: State) -> State:
    """Return one representative of all states that differ only in ids, times, workers' names, or the past."""
    return _workers_sorted(_renamed(_timed(_forgotten(s))))


def _forgotten(s: State) -> State:
    copies = tuple(w._replace(messages=tuple(m._replace(tally=ANY, holder=ANY) for m in w.messages)) for w in s.workers)
    replayers = [_held(r) for r in (s.replayer, s.person)]
    dead_letters = [r.dead_letter for r in replayers if r.dead_letter is not None]
    live = {m.id for m in s.messages}
    kept = live | {dead_letter.id for dead_letter in dead_letters}
    carried = kept | {m.replay for m in s.messages} | {m.replay for w in copies for m in w.messages}
    original_messages = live | {m.id for w in copies for m in w.messages}
    objects = tuple(
        O("done", effects=o.effects)
        if o.state == "done"
        else o._replace(
            attempts=ANY if o.state == "dead" else o.attempts,
            original_message=o.original_message if o.original_message in original_messages else NONE,
            spent=tuple(number for number in o.spent if number in carried),
        )
        for o in s.objects
    )
    messages = tuple(m if m.place == MAIN else m._replace(time=ANY) for m in s.messages)
    log = tuple(one for one in s.log if one.id in kept and one != L(one.id))
    return s._replace(
        objects=objects, messages=messages, workers=copies, replayer=replayers[0], person=replayers[1], log=log
    )


def _held(r: R) -> R:
    return r if r.dead_letter is None else r._replace(dead_letter=r.dead_letter._replace(time=ANY, holder=ANY))


def _timed(s: State) -> State:
    """Reduce times to which failures a message is newer than: failures are even, messages odd."""
    deaths = sorted({o.dead_at for o in s.objects if o.dead_at})

    def timed(m: M) -> M:
        return m if m.place != MAIN else m._replace(time=2 * sum(death < m.time for death in deaths) + 1)

    objects = tuple(o._replace(dead_at=2 * deaths.index(o.dead_at) + 2) if o.dead_at else o for o in s.objects)
    return s._replace(
        objects=objects,
        messages=tuple(map(timed, s.messages)),
        workers=tuple(w._replace(messages=tuple(map(timed, w.messages))) for w in s.workers),
    )


def _renamed(s: State) -> State:
    known = {one.id: one[1:] for one in s.log}
    nothing = L(0)[1:]
    order = sorted(
        s.messages, key=lambda m: (m.place, m.names, m.tally, m.holder, m.time, known.get(m.id, nothing), m.replay)
    )
    ids = [m.id for m in order]
    ids += [r.dead_letter.id for r in (s.replayer, s.person) if r.dead_letter is not None]
    ids += [m.id for w in s.workers for m in w.messages]
    ids += [m.replay for m in order]
    ids += [m.replay for w in s.workers for m in w.messages]
    name = {NONE: NONE}
    for number in ids:
        name.setdefault(number, len(name) - 1)

    def named(m: M) -> M:
        return m._replace(id=name[m.id], replay=name[m.replay])

    def held(r: R) -> R:
        return (
            r
            if r.dead_letter is None
            else r._replace(dead_letter=r.dead_letter._replace(id=name[r.dead_letter.id], replay=NONE))
        )

    return s._replace(
        objects=tuple(
            o._replace(
                original_message=name[o.original_message], spent=tuple(sorted(name[number] for number in o.spent))
            )
            for o in s.objects
        ),
        messages=tuple(sorted(map(named, s.messages))),
        workers=tuple(
            w._replace(
                messages=tuple(map(named, w.messages)),
                outcomes=tuple((kind, name.get(original_message, NONE)) for kind, original_message in w.outcomes),
            )
            for w in s.workers
        ),
        replayer=held(s.replayer),
        person=held(s.person),
        log=tuple(sorted(one._replace(id=name[one.id]) for one in s.log)),
    )


def _workers_sorted(s: State) -> State:
    if len(s.workers) < 2 or s.workers[0] <= s.workers[1]:
        return s
    swapped = {0: 1, 1: 0}
    return s._replace(
        workers=s.workers[::-1],
        messages=tuple(sorted(m._replace(holder=swapped.get(m.holder, m.holder)) for m in s.messages)),
        objects=tuple(
            o._replace(holder=swapped.get(o.holder, o.holder)) if o.state == "held" else o for o in s.objects
        ),
    )
