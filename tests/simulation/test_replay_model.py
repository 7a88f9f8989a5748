"""Messages, objects, dead letters and replays: no reachable state loses anything, and no rule can be dropped."""

import sys
from dataclasses import dataclass
from functools import cache

import pytest
from tests.simulation.replay_explorer import HEALTHY, Exploration, explore
from tests.simulation.replay_model import MAIN, NOBODY, M, Mutation, O, R, Rules, State, W
from tests.simulation.replay_rules import NONE

STATES_MAX = 300_000
LOST = "an object is lost: no letter tells of it, and no message brings it back"
TOO_MANY = "an object that died has a letter too many"
SENT_AGAIN = "a letter was sent again, and nobody had died or lost a lease while it was not known"
TWICE = "an object took effect twice"
REVIVED_TWICE = "a replay revived an object twice"


def message(id: int, *names: int) -> M:
    return M(MAIN, names, 0, NONE, 1, NOBODY, id)


ONE = State(objects=(O(),), messages=(message(0, 0),))
TWO_WORKERS = ONE._replace(workers=(W(), W()))
TWO_MESSAGES = State(objects=(O(),), messages=(message(0, 0), message(1, 0)))
SHARED = State(objects=(O(), O()), messages=(message(0, 0, 1), message(1, 0)))
ANY_RULES = Rules()
PERSON = R()  # who replays letters by hand
ONCE = Rules(attempts_max=1)
SLEEPING = Rules(sleeps=True)
MOVING = Rules(replays_max=2)  # what a broker made a letter of is replayed


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Where to begin, by which rules, and how many states there are at least: fewer would prove less than it says."""

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
    Mutation.CARRIER_ACKED: (ONE._replace(crashes=1), ONCE, LOST),
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
    Mutation.ANOTHER_CARRIES: (TWO_WORKERS._replace(lapses=1), SLEEPING, LOST),
    Mutation.NOBODY_ELSE_CARRIES: (ONE._replace(moved=1), MOVING, LOST),
}


@pytest.mark.parametrize("name", WORLDS)
def test_every_object_ends_processed_or_with_its_dead_letter(name: str) -> None:
    keeps_the_promise(WORLDS[name])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LARGE_WORLDS)
def test_every_object_ends_so_in_larger_worlds_too(name: str) -> None:
    keeps_the_promise(LARGE_WORLDS[name])


def keeps_the_promise(world: World) -> None:
    whole = explore(world.start, world.rules, states_max=STATES_MAX, recovery=True)
    show(f"{whole.states:,} states, {whole.transitions:,} transitions, {whole.seconds:.1f} s")
    assert whole.violation is None, tell(whole)
    assert whole.states >= world.states_min
    assert whole.finished > 0
    assert whole.stranded == 0, "states in which a handler that always fails leads to no end"


def test_every_move_is_made_in_some_world() -> None:
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
    adverse = {"process", "crash_worker", "crash_replayer", "crash_person", "choose", "redrive", "look", "lapse"}
    assert made == (HEALTHY - {"revive"}) | adverse | {"moved"}, "`revive` is a mutant's"


def test_a_stale_dead_letter_of_a_processed_object_does_no_harm() -> None:
    """What comes back for it is acked: it is in every world, and here it is shown that it happens."""
    start = TWO_MESSAGES._replace(objects=(O("done", effects=1),))
    stale = start._replace(messages=(start.messages[0]._replace(place=1), start.messages[1]._replace(place=2)))
    found = explore(stale._replace(crashes=1, lapses=1, replays=1, person=PERSON), Rules(), states_max=STATES_MAX)
    assert found.violation is None, tell(found)
    assert found.moves["send"] > 0
    assert found.moves["claim_nothing"] > 0
    assert found.moves["claim"] == 0


def test_a_worker_that_sleeps_through_a_replay_before_its_claim_leaves_the_dead_letter() -> None:
    """It wakes up with a message that is gone, claims the object between attempts, and is not its original message."""
    start = TWO_WORKERS._replace(crashes=1, lapses=1)
    slept = [explore(start, Rules(sleeps=sleeps), states_max=STATES_MAX, recovery=True) for sleeps in (False, True)]
    assert slept[1].states > slept[0].states, "it does happen"
    assert slept[1].violation is None, tell(slept[1])
    assert slept[1].stranded == 0


@pytest.mark.parametrize("crashes", [0, 1])
def test_a_replay_of_a_message_dead_lettered_by_the_broker_revives_its_object(crashes: int) -> None:
    """The object lives again by that letter, and its replay comes before it ends: nobody else tells of its next death.

    It need not come to an end by itself: an object that was never dead may have its letter among those for people.
    """
    found = explore(ONE._replace(moved=1, crashes=crashes), MOVING, states_max=STATES_MAX)
    show(f"{found.states:,} states")
    assert found.violation is None, tell(found)
    assert found.moves["moved"] > 0
    assert found.finished > 0


@pytest.mark.parametrize("mutation", MUTANTS, ids=lambda mutation: mutation.name or repr(mutation))
def test_dropping_a_rule_breaks_the_promise(mutation: Mutation) -> None:
    start, rules, sentence = MUTANTS[mutation]
    assert unbroken(start, rules), "it is the dropped rule that breaks it"
    found = explore(start, rules._replace(dropped=mutation), states_max=STATES_MAX)
    show(tell(found))
    assert found.violation == sentence
    assert found.trace


@cache
def unbroken(start: State, rules: Rules) -> bool:
    """Return True if nothing breaks while all rules hold. Several mutants begin alike."""
    return explore(start, rules, states_max=STATES_MAX).violation is None


def test_every_mutation_is_tried() -> None:
    tried = Mutation.NONE
    for mutation in MUTANTS:
        tried |= mutation
    assert tried == ~Mutation.NONE


# What is not promised: the model shows why, and docs/why/guarantees.md says so


def test_a_console_cannot_revive_past_a_clock_that_is_behind() -> None:
    """A redrive knows no replay id, and looks older than the death: its message is acked as one of before."""
    found = explore(ONE._replace(redrives=1), ONCE._replace(behind=True), states_max=STATES_MAX)
    show(tell(found))
    assert found.violation == LOST
    assert found.trace[-1].startswith("redrive")


def test_a_worker_may_sleep_until_its_message_is_dead_lettered_and_replayed() -> None:
    """Where a broker makes letters of messages by itself: whoever claims an object in its first life carries it."""
    found = explore(TWO_WORKERS._replace(lapses=1, moved=1), SLEEPING, states_max=STATES_MAX)
    show(tell(found))
    assert found.violation == LOST
    assert any(line.startswith("moved") for line in found.trace)


def show(text: str) -> None:
    """For people: pytest shows it with -rP or -s."""
    sys.stdout.write(f"\n{text}\n")


def tell(found: Exploration) -> str:
    lines = [*found.trace, f"=> {found.violation} ({found.states:,} states, {found.seconds:.1f} s)"]
    return "\n".join(f"{number:3} {line}" for number, line in enumerate(lines, 1))
