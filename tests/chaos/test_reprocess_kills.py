"""Processed objects are read again, and the processes are killed between reopening and the table's new version.

At every moment a reader sees all lines of each object once: those of the earlier reading or those of the new one. In
CI one test goes through some steps in turn; the slow one takes every step, in both table formats.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.chaos.oracle import abandoned_folders, attempts, messages, query, read_quarantine, read_table, truth
from tests.chaos.runs import DELTA, ICEBERG, KILLED, Case, write_objects
from tests.chaos.test_changed_file_kills import OPTIONS, STORY, replaced

from penstock.messaging.steps import Step

pytestmark = pytest.mark.timeout(900)

OBJECTS, LINES = 12, 20
SHORT_STORY = (Step.ATTEMPT_OPENED, Step.RECORDED, Step.COMMITTED, Step.REWRITTEN)


def reprocess(case: Case, *, kill_at: Step | None = None) -> None:
    settings: dict[str, object] = {} if kill_at is None else {"kill_at": kill_at.value}
    options = ("--all", "--yes", "--table", case.address)
    case.command("objects", "reprocess", *options, code=KILLED if kill_at else 0, **settings)


def test_kills_in_turn_leave_the_rows_of_one_reading(case: Case) -> None:
    story(case, (Step.REOPENED,), SHORT_STORY)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [DELTA, ICEBERG])
def test_kills_at_every_step_leave_the_rows_of_one_reading(case: Case) -> None:
    steps = [step for step in STORY if step is not Step.ANNOUNCED]  # the command has sent the notifications
    story(case, (Step.REOPENED, Step.ANNOUNCED), steps)


def check_meanwhile(case: Case) -> None:
    """Check that the table has every good line once. Bad lines of both readings are in the quarantine's table."""
    known, rows = truth(case.source), read_table(case.table).rows
    assert len(rows) == len(known.good)
    assert dict(rows) == known.good
    assert {place for place, _ in read_quarantine(case.table).rows} == known.bad.keys()


def check_done(case: Case) -> None:
    check_meanwhile(case)
    assert attempts(case.table)["open"] == 0
    assert messages(case.table) == 0
    assert messages(case.table, dead=True) == 0
    assert not abandoned_folders(case.table)


def open_bad_lines(case: Case) -> Sequence[Sequence[Any]]:
    return query(case.table, "SELECT uri, state, replaced_seq FROM quarantined ORDER BY uri")


def story(case: Case, commands: Sequence[Step], ingests: Sequence[Step]) -> None:
    write_objects(case.source, range(OBJECTS))
    case.ingest(*OPTIONS)
    check_done(case)
    bad = open_bad_lines(case)
    for step in commands:
        reprocess(case, kill_at=step)
        check_meanwhile(case)
    reprocess(case)
    for step in ingests:
        case.ingest(*OPTIONS, code=KILLED, kill_at=step.value)
        check_meanwhile(case)
    case.ingest(*OPTIONS)
    check_done(case)
    assert replaced(case) == (OBJECTS, OBJECTS * LINES)
    assert open_bad_lines(case) == bad, "those of the new reading"
    assert query(case.table, "SELECT DISTINCT state FROM reopenings") == [("read",)]
