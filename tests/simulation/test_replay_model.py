"""Messages, objects, dead letters and replays: no reachable state loses anything, and no rule can be dropped."""

import sys
from dataclasses import dataclass
from functools import cache

import pytest
from tests.simulation.replay_explorer import HEALTHY, Exploration, explore
from tests.simulation.replay_model import MAIN, NO_HOLDER, M, Mutation, O, R, Rules, State, W
from tests.simulation.replay_rules import NONE

STATES_MAX = 300_000
LOST = "an object is lost: no dead letter names it, and no message revives it"
TOO_MANY = "a failed object has one dead letter too many"
SENT_AGAIN = "a dead letter was sent again without a crash or a lost lease that excuses it"
TWICE = "an object took effect twice"
REVIVED_TWICE = "a replay revived an object twice"


def message(id: int, *names: int) -> M:
    return M(MAIN, names, 0, NONE, 1, NO_HOLDER, id)


ONE = State(objects=(O(),), messages=(message(0, 0),))
TWO_WORKERS = ONE._replace(workers=(W(), W()))
TWO_MESSAGES = State(objects=(O(),), messages=(message(0, 0), message(1, 0)))
SHARED = State(objects=(O(), O()), messages=(message(0, 0, 1), message(1, 0)))
ANY_RULES = Rules()
PERSON = R()  # a person who replays dead letters by hand
ONCE = Rules(attempts_max=1)
SLEEPING = Rules(sleeps=True)
MOVING = Rules(replays_max=2)  # dead letters made by the broker are replayed


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A start, its rules, and the minimum number of states: with fewer, the test would prove less than it claims."""

    start: State
    rules: Rules = ANY_RULES
    states_min: int


WORLDS = {
    "two messages of an object, workers that die and lose leases": World(
        start=TWO_MESSAGES._replace(crashes=2, lapses=1), states_min=15_000
    ),
    "two workers, where brokers deduplicate": World(start=TWO_WORKERS._replace(crashes=1, lapses=1), states_min=2_200),
    "two workers, where brokers do not": World(
        start=TWO_WORKERS._replace(crashes=1, lapses=1), rules=Rules(deduplicates=False), states_min=4_500
    ),
    "a person beside the replayer": World(
        start=ONE._replace(crashes=1, replays=1, person=PERSON), rules=ONCE, states_min=12_000
    ),
    "a person and a console, where brokers do not deduplicate": World(
        start=ONE._replace(crashes=1, replays=1, person=PERSON, redrives=1),
        rules=ONCE._replace(deduplicates=False),
        states_min=21_000,
    ),
    "a reconcile": World(start=TWO_WORKERS._replace(crashes=1, reconciles=1), rules=ONCE, states_min=7_500),
    "messages that share an object": World(
        start=SHARED._replace(crashes=1), rules=ONCE._replace(deduplicates=False), states_min=19_000
    ),
    "a batch of several messages": World(
        start=SHARED._replace(crashes=1), rules=ONCE._replace(batch_max=2), states_min=19_000
    ),
    "a broker whose clock is behind": World(
        start=ONE._replace(crashes=2, lapses=1),
        rules=ONCE._replace(deduplicates=False, behind=True),
        states_min=10_000,
    ),
    "several replays in a row": World(
        start=ONE._replace(crashes=2), rules=ONCE._replace(deduplicates=False, replays_max=2), states_min=14_000
    ),
    "workers that sleep between receiving and claiming": World(
        start=TWO_WORKERS._replace(crashes=1, lapses=1), rules=SLEEPING, states_min=3_300
    ),
    "the same, of two messages": World(
        start=TWO_MESSAGES._replace(lapses=1, workers=(W(), W())), rules=SLEEPING, states_min=3_000
    ),
    "workers that sleep, where brokers do not deduplicate": World(
        start=TWO_WORKERS._replace(crashes=1, lapses=1), rules=SLEEPING._replace(deduplicates=False), states_min=6_900
    ),
    "workers that sleep, and a console": World(
        start=TWO_WORKERS._replace(lapses=1, redrives=1), rules=SLEEPING._replace(deduplicates=False), states_min=2_900
    ),
    "workers that sleep, and a broker whose clock is behind": World(
        start=TWO_WORKERS._replace(lapses=1),
        rules=SLEEPING._replace(deduplicates=False, behind=True),
        states_min=700,
    ),
}
LARGE_WORLDS = {
    "a person and a console, where brokers deduplicate": World(
        start=ONE._replace(crashes=1, replays=1, person=PERSON, redrives=1), rules=ONCE, states_min=90_000
    ),
    "a person and a reconcile, where brokers do not deduplicate": World(
        start=ONE._replace(crashes=1, replays=1, person=PERSON, reconciles=1),
        rules=ONCE._replace(deduplicates=False),
        states_min=200_000,
    ),
    "two messages, two workers that sleep": World(
        start=TWO_MESSAGES._replace(crashes=2, lapses=1, workers=(W(), W())), rules=SLEEPING, states_min=60_000
    ),
    "messages that share an object, two workers": World(
        start=SHARED._replace(crashes=1, workers=(W(), W())),
        rules=ONCE._replace(deduplicates=False),
        states_min=50_000,
    ),
    "messages that share an object, and a person": World(
        start=SHARED._replace(replays=1, person=PERSON), rules=ONCE, states_min=70_000
    ),
    "workers that sleep, and a person": World(
        start=TWO_WORKERS._replace(lapses=1, replays=1, person=PERSON),
        rules=SLEEPING._replace(deduplicates=False),
        states_min=34_000,
    ),
    "workers that sleep, and a reconcile": World(
        start=TWO_WORKERS._replace(lapses=1, reconciles=1),
        rules=SLEEPING._replace(deduplicates=False),
        states_min=29_000,
    ),
}
MUTANTS = {
    Mutation.REVIVE_BEFORE_SEND: (ONE._replace(reconciles=1), ONCE, TOO_MANY),
    Mutation.REPLAY_WITHOUT_ID: (ONE, ONCE._replace(behind=True), LOST),
    Mutation.DELETE_BEFORE_SEND: (ONE._replace(crashes=1), ONCE, LOST),
    Mutation.NO_MARK: (ONE._replace(crashes=1), ONCE._replace(deduplicates=False), SENT_AGAIN),
    Mutation.REVIVE_OUTSIDE_CLAIM: (TWO_WORKERS._replace(crashes=1, reconciles=1), ONCE, TOO_MANY),
    Mutation.ORIGINAL_ACKED: (ONE._replace(crashes=1), ONCE, LOST),
    Mutation.OLD_MESSAGES_REVIVE: (TWO_MESSAGES, ONCE, TOO_MANY),
    Mutation.SPENT_REVIVES: (ONE._replace(crashes=1), ONCE, REVIVED_TWICE),
    Mutation.RECONCILE_SENDS_FOR_DEAD: (ONE._replace(reconciles=1), ONCE, TOO_MANY),
    Mutation.GIVEN_UP_DESPITE_INTENT: (
        ONE._replace(crashes=1, replays=1, person=PERSON),
        ONCE._replace(deduplicates=False),
        TOO_MANY,
    ),
    Mutation.SET_ASIDE_DELETES: (ONE, ONCE, LOST),
    Mutation.CLAIM_TAKES_PROCESSED: (TWO_MESSAGES, ONCE, TWICE),
    Mutation.NO_FENCE: (TWO_WORKERS._replace(lapses=2), ONCE, TWICE),
    Mutation.ACK_BEFORE_COMMIT: (ONE._replace(crashes=1), ONCE, LOST),
    Mutation.CLAIM_REPLACES_ORIGINAL: (TWO_WORKERS._replace(lapses=1), SLEEPING, LOST),
    Mutation.REPLAY_KEEPS_ORIGINAL: (ONE._replace(moved=1), MOVING, LOST),
}


@pytest.mark.parametrize("name", WORLDS)
def test_every_object_ends_processed_or_with_its_dead_letter(name: str) -> None:
    keeps_the_promise(WORLDS[name])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LARGE_WORLDS)
def test_every_object_ends_processed_or_with_its_dead_letter_in_larger_worlds(name: str) -> None:
    keeps_the_promise(LARGE_WORLDS[name])


def keeps_the_promise(world: World) -> None:
    whole = explore(world.start, world.rules, states_max=STATES_MAX, recovery=True)
    show(f"{whole.states:,} states, {whole.transitions:,} transitions, {whole.seconds:.1f} s")
    assert whole.violation is None, describe(whole)
    assert whole.states >= world.states_min
    assert whole.finished > 0
    assert whole.stranded == 0, "states that a handler that always fails cannot complete"


def test_every_move_happens_in_some_world() -> None:
    """A move that is never made proves nothing."""
    alone = ONCE._replace(deduplicates=False)
    worlds = (
        (ONE._replace(crashes=1), ONCE),
        (ONE._replace(crashes=1, lapses=1), alone),
        (ONE._replace(crashes=1, replays=1, person=PERSON), alone),
        (ONE._replace(redrives=1, reconciles=1), ONCE),
        (ONE._replace(moved=1), ONCE),
    )
    found = [explore(start, rules, states_max=STATES_MAX) for start, rules in worlds]
    made = {name for one in found for name in one.moves}
    adverse = {"process", "crash_worker", "crash_replayer", "crash_person", "choose", "redrive", "inspect", "lapse"}
    assert made == (HEALTHY - {"revive"}) | adverse | {"moved"}, "only a mutant has `revive`"


def test_a_stale_dead_letter_of_a_processed_object_is_harmless() -> None:
    """Its replay is acked. Every world includes this; here the test shows that it happens."""
    start = TWO_MESSAGES._replace(objects=(O("done", effects=1),))
    stale = start._replace(messages=(start.messages[0]._replace(place=1), start.messages[1]._replace(place=2)))
    found = explore(stale._replace(crashes=1, lapses=1, replays=1, person=PERSON), Rules(), states_max=STATES_MAX)
    assert found.violation is None, describe(found)
    assert found.moves["send"] > 0
    assert found.moves["claim_nothing"] > 0
    assert found.moves["claim"] == 0


def test_a_worker_that_sleeps_through_a_replay_before_its_claim_leaves_the_dead_letter() -> None:
    """It wakes with a deleted message, claims the object between attempts, and is not its original message."""
    start = TWO_WORKERS._replace(crashes=1, lapses=1)
    slept = [explore(start, Rules(sleeps=sleeps), states_max=STATES_MAX, recovery=True) for sleeps in (False, True)]
    assert slept[1].states > slept[0].states, "it does happen"
    assert slept[1].violation is None, describe(slept[1])
    assert slept[1].stranded == 0


@pytest.mark.parametrize("crashes", [0, 1])
def test_a_replay_of_a_message_dead_lettered_by_the_broker_revives_its_object(crashes: int) -> None:
    """The dead letter revives the object, and its replay arrives before that life ends and records the next failure.

    The work need not complete automatically: the dead letter of an object that never failed may wait for people.
    """
    found = explore(ONE._replace(moved=1, crashes=crashes), MOVING, states_max=STATES_MAX)
    show(f"{found.states:,} states")
    assert found.violation is None, describe(found)
    assert found.moves["moved"] > 0
    assert found.finished > 0


@pytest.mark.parametrize("mutation", MUTANTS, ids=lambda mutation: mutation.name or repr(mutation))
def test_dropping_a_rule_breaks_the_promise(mutation: Mutation) -> None:
    start, rules, sentence = MUTANTS[mutation]
    assert unbroken(start, rules), "only the dropped rule breaks it"
    found = explore(start, rules._replace(dropped=mutation), states_max=STATES_MAX)
    show(describe(found))
    assert found.violation == sentence
    assert found.trace


@cache
def unbroken(start: State, rules: Rules) -> bool:
    """Return True if no rule is dropped and nothing breaks. Cached, since several mutants have the same start."""
    return explore(start, rules, states_max=STATES_MAX).violation is None


def test_every_mutation_is_tried() -> None:
    tried = Mutation.NONE
    for mutation in MUTANTS:
        tried |= mutation
    assert tried == ~Mutation.NONE


# Not promised: the model shows why, and docs/why/guarantees.md states it


def test_a_console_cannot_revive_past_a_clock_that_is_behind() -> None:
    """A redrive has no replay id, and looks older than the failure: its message is acked as an older one."""
    found = explore(ONE._replace(redrives=1), ONCE._replace(behind=True), states_max=STATES_MAX)
    show(describe(found))
    assert found.violation == LOST
    assert found.trace[-1].startswith("redrive")


def test_a_worker_may_sleep_until_its_message_is_dead_lettered_and_replayed() -> None:
    """It happens if a broker dead-letters messages itself: the first message that claims an object is its original."""
    found = explore(TWO_WORKERS._replace(lapses=1, moved=1), SLEEPING, states_max=STATES_MAX)
    show(describe(found))
    assert found.violation == LOST
    assert any(line.startswith("moved") for line in found.trace)


def show(text: str) -> None:
    """Print for people; pytest shows it with -rP or -s."""
    sys.stdout.write(f"\n{text}\n")


def describe(found: Exploration) -> str:
    lines = [*found.trace, f"=> {found.violation} ({found.states:,} states, {found.seconds:.1f} s)"]
    return "\n".join(f"{number:3} {line}" for number, line in enumerate(lines, 1))
