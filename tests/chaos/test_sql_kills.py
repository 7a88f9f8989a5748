"""The process group is killed at the steps of the protocol, with the ledger on an SQL server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos import books
from tests.chaos.oracle import Truth, attempts, check_done, check_meanwhile, truth
from tests.chaos.runs import IN_PROCESS, KILLED, write_objects
from tests.chaos.sql_case import SqlCase
from tests.chaos.test_kill_steps import AFTER_A_DEATH, STORY, THREE_BATCHES

from penstock.messaging.steps import Step

pytestmark = pytest.mark.timeout(900)

OBJECTS = 40
OPTIONS = ("--max-batch-objects", "20")  # two batches

# The steps around the ledger's transactions; the others are as with a ledger beside the table.
LEDGERS = (Step.ATTEMPT_OPENED, Step.COMMITTING, Step.COMMITTED)
ALL = [step for step in STORY if step is not Step.ANNOUNCED]  # the test announces
TWICE = [step for step in ALL if step not in AFTER_A_DEATH]

on_both = pytest.mark.parametrize("server", ["mariadb", "postgresql"])


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path, server: str) -> Iterator[SqlCase]:
    """Return a case without Spark: the ledger gets the same calls from every engine."""
    made = SqlCase(tmp_path, request.getfixturevalue(f"{server}_url"), module=IN_PROCESS)
    yield made
    made.close()


def prepared(case: SqlCase) -> Truth:
    write_objects(case.source, range(OBJECTS))
    assert case.announce() == OBJECTS
    return truth(case.source)


def kill_and_check(case: SqlCase, whole: Truth, kill_at: str, options: tuple[str, ...] = OPTIONS) -> None:
    ended = case.ingest(*options, code=KILLED, kill_at=kill_at)
    found = check_meanwhile(whole, case.table, ledger=case.ledger)
    books.check_books(case.ledger)
    print(f"killed at {kill_at} after {ended.seconds:.1f} s: {found}")  # noqa: T201 - shown when the test fails


def finish_and_check(case: SqlCase, whole: Truth) -> None:
    case.ingest(*OPTIONS)
    check_done(whole, case.table, ledger=case.ledger)
    books.check_idle(case.ledger)
    assert books.states(case.ledger) == {"processed": OBJECTS}


@on_both
def test_kills_at_each_ledger_call_in_turn_lose_nothing(case: SqlCase) -> None:
    whole = prepared(case)
    for step in LEDGERS:
        kill_and_check(case, whole, step.value)
    finish_and_check(case, whole)
    assert attempts(case.table, ledger=case.ledger)["abandoned"] >= 1, "a death in a claim leaves an abandoned attempt"


@pytest.mark.slow
@on_both
def test_kills_at_every_step_in_turn_lose_nothing(case: SqlCase) -> None:
    whole = prepared(case)
    for step in ALL:
        kill_and_check(case, whole, step.value)
    finish_and_check(case, whole)


@pytest.mark.slow
@on_both
@pytest.mark.parametrize("step", TWICE)
def test_a_kill_at_the_second_time_of_one_step_loses_nothing(case: SqlCase, step: Step) -> None:
    whole = prepared(case)
    kill_and_check(case, whole, f"{step.value}:2", THREE_BATCHES)
    finish_and_check(case, whole)
