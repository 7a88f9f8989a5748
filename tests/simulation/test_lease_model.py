"""Heartbeats, explored completely: the lease of a living handler never ends, and no claim outlives its message's lease.

One running message, with its lease at the broker and its claim in the ledger. The broker responds at once, the ledger
at any time, and a beat may need any number of consecutive calls to it. The worker may die at any moment. The schedules
cover the order in which claim and lease are extended; this model covers what waits for what. It shares no code with the
product; `Mutation` names the rules that can be dropped.
"""

from collections import Counter
from collections.abc import Iterator
from enum import Flag, auto
from typing import NamedTuple

import pytest

LEASE, BEAT = 6, 2
CLAIM = LEASE - 1  # from the start of the beat that extends it
LOST = "the message of a living handler is delivered to another worker"
BUSY = "the message of a dead worker is redelivered before its claim has ended"


class Mutation(Flag):
    NONE = 0
    LEASE_FOLLOWS_CLAIM = auto()  # a beat extends the claims, and then the leases
    BEAT_AWAITS_CLAIM = auto()  # a beat extends the leases first, and the next one begins when the claims are extended
    CLAIM_FROM_ITS_CALL = auto()  # a claim is extended as if the beat had begun with its call


MUTANTS = {
    Mutation.LEASE_FOLLOWS_CLAIM: LOST,
    Mutation.BEAT_AWAITS_CLAIM: LOST,
    Mutation.CLAIM_FROM_ITS_CALL: BUSY,
}


class State(NamedTuple):
    lease: int = LEASE  # remaining time
    claim: int = CLAIM
    alive: bool = True
    to_beat: int = BEAT
    asking: int = -1  # how long the ledger calls of a beat have taken so far; -1: none are in progress


def moves(s: State, m: Mutation) -> Iterator[tuple[str, State]]:
    waits = s.asking >= 0 and bool(m & (Mutation.LEASE_FOLLOWS_CLAIM | Mutation.BEAT_AWAITS_CLAIM))
    if s.alive and s.to_beat == 0 and not waits:
        yield "a beat", _beat(s, m)
    else:
        yield "time passes", _later(s)
    if not s.alive:
        return
    yield "the worker dies", s._replace(alive=False)
    if s.asking >= 0:
        yield "the calls to the ledger end", _over(s, m)
        late = 0 if Mutation.CLAIM_FROM_ITS_CALL in m else s.asking
        yield "the ledger extends the claim", s._replace(claim=max(CLAIM - late, CLAIM // 2))


def _beat(s: State, m: Mutation) -> State:
    """Begin a beat. Calls of the previous beat for claims continue if they have not ended."""
    begun = s._replace(to_beat=BEAT, asking=max(s.asking, 0))
    return begun if Mutation.LEASE_FOLLOWS_CLAIM in m else begun._replace(lease=LEASE)


def _over(s: State, m: Mutation) -> State:
    over = s._replace(asking=-1)
    return over._replace(lease=LEASE) if Mutation.LEASE_FOLLOWS_CLAIM in m else over


def _later(s: State) -> State:
    return s._replace(
        lease=max(s.lease - 1, 0),
        claim=max(s.claim - 1, 0),
        to_beat=max(s.to_beat - 1, 0),
        asking=s.asking if s.asking < 0 else min(s.asking + 1, LEASE),
    )


def violation(s: State) -> str | None:
    if s.lease == 0 and s.alive:
        return LOST
    return BUSY if s.lease == 0 and s.claim > 0 else None


def explore(m: Mutation) -> tuple[int, Counter[str], list[str]]:
    """Visit every state. Return their number, the moves taken, and the violations."""
    seen, waiting, taken, broken = {State()}, [State()], Counter[str](), list[str]()
    for state in waiting:
        for name, there in moves(state, m):
            taken[name] += 1
            if there not in seen:
                seen.add(there)
                waiting.append(there)
                broken += [bad for bad in [violation(there)] if bad]
    return len(seen), taken, broken


def test_no_lease_of_a_living_handler_ends_and_no_claim_outlives_its_lease() -> None:
    states, taken, broken = explore(Mutation.NONE)
    assert broken == []
    assert states > 80, "a model that shrinks by accident proves less than it claims"
    assert len(taken) == 5, "every move happens"


@pytest.mark.parametrize("mutation", MUTANTS, ids=lambda mutation: str(mutation.name))
def test_dropping_a_rule_breaks_the_promise(mutation: Mutation) -> None:
    assert MUTANTS[mutation] in explore(mutation)[2]


def test_every_rule_is_dropped_once() -> None:
    assert {*MUTANTS} == {*Mutation}
