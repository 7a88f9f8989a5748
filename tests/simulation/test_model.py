"""The protocol keeps its promise in every reachable state, and no rule of it can be dropped."""

import sys

import pytest
from tests.simulation.explorer import Exploration, explore
from tests.simulation.model import ADVERSE, ALONE, HEALTHY, Mutation

STATES_MIN, STATES_MAX = 190_000, 260_000  # a model that shrinks by accident proves less than it claims
FALLIBLE = ALONE._replace(ledger="fallible")

MUTANTS = {
    Mutation.NO_FENCE: "a file of a committed batch was deleted before it was published",
    Mutation.NO_ATTEMPT_CAS: "a file of a committed batch was deleted before it was published",
    Mutation.CLAIM_IGNORES_STATE: "an object is not in exactly the batch it was processed in",
    Mutation.FREE_WITHOUT_TOKEN: "an object is not in exactly the batch it was processed in",
    Mutation.UNLOCKED_SEQUENCE: "a drawn sequence is never committed: later batches wait forever",
    Mutation.UNLOCKED_SEQUENCE
    | Mutation.GAPS_SKIPPED: "the table at a position is not the sum of the batches up to it",
    Mutation.ACK_BEFORE_COMMIT: "an object is acked and its rows are not committed",
    Mutation.UNKNOWN_IS_SUCCESS: "an object is acked and its rows are not committed",
    Mutation.UNKNOWN_RERUNS_BLINDLY: "an object is not in exactly the batch it was processed in",
    Mutation.UNKNOWN_DELETES_FILES: "a file of a committed batch was deleted before it was published",
    Mutation.PUBLISH_UNCONDITIONAL: "rows of an object are visible twice",
    Mutation.PUBLISH_REPEATED: "rows of an object are visible twice",
    Mutation.PUBLISH_BEFORE_COMMIT: "the table names a file of an attempt that is not committed",
    Mutation.POSITION_FROM_FILES: "rows of an object are visible twice",
    Mutation.COMPACTION_DROPS_POSITION: "the table at a position is not the sum of the batches up to it",
    Mutation.NO_TOMBSTONE: "a file of a committed batch was deleted before it was published",
    Mutation.TOMBSTONE_FROM_ANY_STATE: "a file of a committed batch was deleted before it was published",
}
ELSEWHERE = Mutation.NO_LEDGER_CHECK | Mutation.NO_EXPIRY  # these have their own tests


def test_no_reachable_state_breaks_the_promise_and_every_state_can_still_finish() -> None:
    whole = explore(states_max=STATES_MAX, recovery=True)  # once for all checks: most of this file\'s time
    show(f"{whole.states:,} states, {whole.transitions:,} transitions, {whole.seconds:.1f} s")

    assert whole.violation is None, describe(whole)
    assert whole.states >= STATES_MIN
    assert set(whole.actions) == HEALTHY | ADVERSE
    assert whole.finished > 0
    assert whole.stranded == 0, "states that only a crash or luck can leave"


@pytest.mark.parametrize("mutation", MUTANTS, ids=lambda mutation: mutation.name or repr(mutation))
def test_dropping_a_rule_breaks_the_promise(mutation: Mutation) -> None:
    found = explore(mutation, states_max=STATES_MAX)

    show(describe(found))
    assert found.violation == MUTANTS[mutation]
    assert found.trace


def test_every_mutation_is_tried() -> None:
    tried = ELSEWHERE
    for mutation in MUTANTS:
        tried |= mutation

    assert tried == ~Mutation.NONE


def test_a_ledger_that_forgot_a_commit_halts_publishing_before_rows_double() -> None:
    found = explore(states_max=STATES_MAX, start=FALLIBLE)

    assert found.violation is None, describe(found)
    assert found.actions["failover"] > 0
    assert found.actions["halt"] > 0


def test_without_the_ledger_check_a_forgotten_commit_doubles_rows() -> None:
    found = explore(Mutation.NO_LEDGER_CHECK, states_max=STATES_MAX, start=FALLIBLE)

    show(describe(found))
    assert found.violation == "rows of an object are visible twice"
    assert found.trace


def test_without_expiry_a_dead_driver_strands_its_objects() -> None:
    found = explore(Mutation.NO_EXPIRY, states_max=STATES_MAX, start=ALONE, recovery=True)

    assert found.violation is None, describe(found)
    assert found.finished > 0
    assert found.stranded > 0


def show(text: str) -> None:
    """Print for people; pytest shows it with -rP or -s."""
    sys.stdout.write(f"\n{text}\n")


def describe(found: Exploration) -> str:
    lines = [*found.trace, f"=> {found.violation} ({found.states:,} states, {found.seconds:.1f} s)"]
    return "\n".join(f"{number:3} {line}" for number, line in enumerate(lines, 1))
