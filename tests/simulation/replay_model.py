"""A model of message x claim x failure x replay x reconcile, small enough to be explored completely.

Objects; messages that name them; workers that receive, claim, commit and settle; a replayer that intends, sends, marks
and deletes; a person who does the same with a chosen dead letter at the same time; a console that moves a dead letter
back; a reconcile that sends messages for missing objects. Each of them may die between two steps or lose its lease, as
often as the start allows. Time is adversarial: leases of dead processes end at any moment, and every process may be
arbitrarily slow. Brokers move a dead letter atomically and fence its settlement. SQS does neither; the kill tests cover
the consequences.

For decisions that the product makes in pure functions, the model calls these functions (replay_rules.py).
`replay_world.py` has the moves of all but the workers, `replay_promise.py` has the invariants, and `Mutation` names the
rules that can be dropped, each of which must then lead to a violation.
"""

from collections.abc import Iterator
from enum import Flag, auto
from itertools import permutations
from typing import NamedTuple

from tests.simulation.replay_rules import NONE, Outcome, ended, failed, gives_life, is_final_failure, settlement

MAIN, DLQ, FINAL = 0, 1, 2  # places of a message: its queue, the DLQ and the final DLQ
NO_HOLDER, REPLAYER, PERSON, DEAD_HOLDER = -1, 2, 3, 9  # holders of a lease; 0 and 1 are workers
NOW = 99  # later than everything before; `canonical` turns such times into small numbers


class Mutation(Flag):
    """A rule that is dropped."""

    NONE = 0
    REVIVE_BEFORE_SEND = auto()  # the replayer itself revives the object, and then sends
    REPLAY_WITHOUT_ID = auto()
    DELETE_BEFORE_SEND = auto()
    NO_MARK = auto()
    REVIVE_OUTSIDE_CLAIM = auto()  # a worker revives in a separate transaction, and then claims
    ORIGINAL_ACKED = auto()  # a redelivered original message finds its object failed and is acked
    OLD_MESSAGES_REVIVE = auto()  # any message but the original one revives, whenever it was enqueued
    SPENT_REVIVES = auto()  # a replay id revives repeatedly
    RECONCILE_SENDS_FOR_DEAD = auto()
    GIVEN_UP_DESPITE_INTENT = auto()  # at its limit, a dead letter is set aside despite a recorded intent to replay it
    SET_ASIDE_DELETES = auto()  # moving to the final DLQ deletes
    CLAIM_TAKES_PROCESSED = auto()
    NO_FENCE = auto()  # a commit counts even if another attempt owns the objects now
    ACK_BEFORE_COMMIT = auto()
    CLAIM_REPLACES_ORIGINAL = auto()  # any claim of a revived object makes its message the original one
    REPLAY_KEEPS_ORIGINAL = auto()  # the message that revived an object stays the original one despite a replay


class M(NamedTuple):
    """A message or a dead letter."""

    place: int
    names: tuple[int, ...]
    tally: int  # replays in a row
    replay: int  # the replay id that it carries
    time: int  # when it was enqueued
    holder: int
    id: int


class O(NamedTuple):  # noqa: E742 - an object, as M is a message
    state: str = "free"  # free | held | done | dead
    holder: int = NO_HOLDER
    attempts: int = 0
    original_message: int = NONE  # of its failure, and then of its next life
    dead_at: int = 0  # its last failure; 0: it never failed
    spent: tuple[int, ...] = ()  # replay ids
    effects: int = 0
    twice: bool = False  # one replay, sent before the object failed, revived it after that failure


class W(NamedTuple):
    """A worker, with its received messages as they were then."""

    phase: str = "idle"  # absent | idle | received | revived | claimed | settling
    messages: tuple[M, ...] = ()
    outcomes: tuple[Outcome, ...] = ()  # by object; ("ours", original message) for claimed ones


class R(NamedTuple):
    """A replayer, or a person who replays."""

    phase: str = "idle"  # absent | idle | taken | giving_up | intended | sent | marked
    dead_letter: M | None = None
    tally: int = 0  # consecutive replays that the message will record


class L(NamedTuple):
    """The ledger's record of a replay, and what the test tracks in addition."""

    id: int
    record: int = NONE  # the count that was intended, or SENT
    sends: int = 0
    excuses: int = 0  # times that a replayer died or lost its lease without knowing whether it had sent


SENT = 99


class Rules(NamedTuple):
    attempts_max: int = 2
    replays_max: int = 1
    batch_max: int = 1
    deduplicates: bool = True  # such brokers also allow reading dead letters without a lease
    behind: bool = False  # the broker's clock may be behind the ledger's
    sleeps: bool = False  # a worker may lose its lease between receiving and claiming, and not notice
    dropped: Mutation = Mutation.NONE


class State(NamedTuple):
    objects: tuple[O, ...]
    messages: tuple[M, ...]
    workers: tuple[W, ...] = (W(),)
    replayer: R = R()
    person: R = R("absent")
    log: tuple[L, ...] = ()
    found_missing: tuple[int, ...] = ()  # objects that a reconcile found missing
    doubles: int = 0  # extra messages, each with a valid reason
    crashes: int = 0  # what may still happen:
    lapses: int = 0
    redrives: int = 0
    replays: int = 0  # by the person
    reconciles: int = 0
    moved: int = 0  # messages that the broker itself dead-letters, as SQS does after too many receives


Move = tuple[str, State]


def worker_moves(s: State, rules: Rules) -> Iterator[Move]:
    for i, worker in enumerate(s.workers):
        if i and worker == s.workers[0]:
            continue  # the same moves, by symmetry
        if worker.phase == "idle":
            yield from _receive(s, i, rules)
        elif worker.phase in ("received", "revived"):
            yield from _claim(s, i, rules)
        elif worker.phase == "claimed":
            yield from _commit(s, i, rules)
        elif worker.phase == "settling":
            yield "settle", _settle(s, i)
        if worker.phase != "idle" and s.crashes:
            yield "crash_worker", _crashed(s, i)._replace(crashes=s.crashes - 1)


def _receive(s: State, i: int, rules: Rules) -> Iterator[Move]:
    visible = [m for m in s.messages if m.place == MAIN and m.holder == NO_HOLDER]
    for size in range(1, rules.batch_max + 1):
        for taken in permutations(visible, size):
            messages = tuple(m._replace(holder=i) if m in taken else m for m in s.messages)
            yield "receive", work(s._replace(messages=messages), i, W("received", tuple(taken)))


def _claim(s: State, i: int, rules: Rules) -> Iterator[Move]:
    """Claim in one transaction: revive objects that may be revived, take the free ones, read the state of the rest."""
    batch, dropped = s.workers[i].messages, rules.dropped
    if Mutation.REVIVE_OUTSIDE_CLAIM in dropped and s.workers[i].phase == "received":
        living = tuple(
            o._replace(state="free", attempts=0)
            if o.state == "dead" and _reviver(o, [m for m in batch if n in m.names], dropped)
            else o
            for n, o in enumerate(s.objects)
        )
        yield "revive", work(s._replace(objects=living), i, s.workers[i]._replace(phase="revived"))
        return
    objects, outcomes = list(s.objects), []
    for n, o in enumerate(s.objects):
        objects[n], outcome = _claimed(o, n, i, batch, dropped)
        outcomes.append(outcome)
    phase = "claimed" if any(kind == "ours" for kind, _ in outcomes) else "settling"
    claimed = work(s._replace(objects=tuple(objects)), i, W(phase, batch, tuple(outcomes)))
    if Mutation.ACK_BEFORE_COMMIT in dropped and phase == "claimed":
        claimed = claimed._replace(messages=tuple(m for m in s.messages if m.place != MAIN or m.holder != i))
    yield ("claim" if phase == "claimed" else "claim_nothing"), claimed


def _claimed(o: O, n: int, i: int, batch: tuple[M, ...], dropped: Mutation) -> tuple[O, Outcome]:
    original_messages = [m for m in batch if n in m.names]
    if not original_messages:
        return o, ("done", NONE)
    takes = o.state == "free" or (o.state == "done" and Mutation.CLAIM_TAKES_PROCESSED in dropped)
    reviver = _reviver(o, original_messages, dropped) if o.dead_at else original_messages[0]
    if not takes and (o.state != "dead" or reviver is None):
        if o.state == "held":
            return o, ("later", NONE)
        outcome = ended(o.state, o.original_message)
        return o, ("done", NONE) if Mutation.ORIGINAL_ACKED in dropped else outcome
    attempts = 1 if o.state == "dead" else o.attempts + 1
    taken = o._replace(state="held", holder=i, attempts=attempts)
    if o.dead_at and takes and Mutation.CLAIM_REPLACES_ORIGINAL in dropped:
        reviver = original_messages[0]
    if reviver is None or (o.dead_at and takes and Mutation.REPLAY_KEEPS_ORIGINAL in dropped):
        return taken, ("ours", o.original_message)
    twice = o.state == "dead" and reviver.replay in o.spent and reviver.time < o.dead_at
    spent = tuple(sorted({*o.spent, reviver.replay} - {NONE}))
    original_message = reviver.id if o.dead_at else NONE
    return taken._replace(original_message=original_message, spent=spent, twice=o.twice or twice), ("ours", reviver.id)


def _reviver(o: O, messages: list[M], dropped: Mutation) -> M | None:
    """Return the first message that may revive the object; it becomes its original message, as may others like it."""
    for m in messages:
        spent = () if Mutation.SPENT_REVIVES in dropped else o.spent
        old = Mutation.OLD_MESSAGES_REVIVE in dropped and m.id != o.original_message
        if old or gives_life(
            m.id, m.time, m.replay, original_message=o.original_message, dead_at=o.dead_at, spent=spent
        ):
            return m
    return None


def _commit(s: State, i: int, rules: Rules) -> Iterator[Move]:
    """Commit in one fenced transaction: every claimed object is processed, or fails."""
    outcomes = s.workers[i].outcomes
    ours = [n for n, (kind, _) in enumerate(outcomes) if kind == "ours"]
    fenced = Mutation.NO_FENCE not in rules.dropped
    if fenced and any((s.objects[n].state, s.objects[n].holder) != ("held", i) for n in ours):
        yield "commit_refused", _crashed(s, i)  # the worker drops everything, and its leases end
        return
    for processed in _subsets(ours):
        objects, results = list(s.objects), list(outcomes)
        for n in ours:
            o, original_message = objects[n], outcomes[n][1]
            if n in processed:
                objects[n], results[n] = O("done", effects=o.effects + 1), ("done", NONE)
                continue
            results[n] = failed(o.attempts, rules.attempts_max, original_message)
            dead = is_final_failure(o.attempts, rules.attempts_max)
            objects[n] = (
                o._replace(state="dead", holder=NO_HOLDER, dead_at=NOW, original_message=original_message)
                if dead
                else free(o)
            )
        after = s._replace(objects=tuple(objects))
        committed = work(after, i, s.workers[i]._replace(phase="settling", outcomes=tuple(results)))
        yield ("fail" if not processed else "process"), committed


def _subsets(ours: list[int]) -> Iterator[frozenset[int]]:
    for mask in range(1 << len(ours)):
        yield frozenset(n for bit, n in enumerate(ours) if mask >> bit & 1)


def _settle(s: State, i: int) -> State:
    """Settle the first unsettled message. A lost lease settles nothing."""
    worker = s.workers[i]
    m, rest = worker.messages[0], worker.messages[1:]
    after = work(s, i, worker._replace(messages=rest) if rest else W())
    here = next((it for it in s.messages if it.id == m.id and (it.place, it.holder) == (MAIN, i)), None)
    if here is None:
        return after
    others = tuple(it for it in s.messages if it is not here)
    match settlement(tuple(worker.outcomes[n] for n in m.names), m.id):
        case "release":
            others += (here._replace(holder=NO_HOLDER),)
        case "dead_letter":
            others += (here._replace(place=DLQ, holder=NO_HOLDER, time=NOW),)
    return after._replace(messages=others)


def _crashed(s: State, i: int) -> State:
    """Let the worker drop everything; its leases and claims expire."""
    objects = tuple(o._replace(holder=DEAD_HOLDER) if o.state == "held" and o.holder == i else o for o in s.objects)
    messages = tuple(m._replace(holder=DEAD_HOLDER) if m.holder == i else m for m in s.messages)
    return work(s._replace(objects=objects, messages=messages), i, W())


def free(o: O) -> O:
    return o._replace(state="free", holder=NO_HOLDER)


def work(s: State, i: int, worker: W) -> State:
    return s._replace(workers=(*s.workers[:i], worker, *s.workers[i + 1 :]))
