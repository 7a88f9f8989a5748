"""Ingests of every format are killed around a run; running the same command again must recover.

Without Spark. Each kill comes with new objects, so that there is always a batch to do. All formats share the code after
a run, so the steps are spread over them. Every format is killed between writing and committing.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.chaos.format_objects import FORMATS, check_as_users_read, write_app
from tests.chaos.oracle import check_done, check_meanwhile
from tests.chaos.runs import IN_PROCESS, KILLED, Case

from penstock.messaging.steps import Step

pytestmark = pytest.mark.timeout(900)

OBJECTS = 6  # with each kill
BATCH_OBJECTS = 3  # one of which has a bad row
KILLS: Mapping[str, Sequence[Step]] = {
    "jsonl": (Step.WRITTEN, Step.COMMITTING, Step.ROWS_PUBLISHED, Step.SETTLING),
    "json": (Step.PLANNED, Step.WRITTEN, Step.COMMITTED, Step.QUARANTINE_PUBLISHED),
    "csv": (Step.WRITTEN, Step.MANIFESTED, Step.ROWS_PUBLISHED, Step.SETTLING),
    "text": (Step.PLANNED, Step.WRITTEN, Step.COMMITTING, Step.QUARANTINE_PUBLISHED),
    "parquet": (Step.WRITTEN, Step.MANIFESTED, Step.COMMITTED, Step.SETTLING),
    "avro": (Step.WRITTEN, Step.COMMITTING, Step.ROWS_PUBLISHED, Step.QUARANTINE_PUBLISHED),
    "orc": (Step.PLANNED, Step.WRITTEN, Step.MANIFESTED, Step.SETTLING),
    "binary": (Step.WRITTEN, Step.MANIFESTED, Step.COMMITTED, Step.ROWS_PUBLISHED),  # it has no bad rows
    "a function": (Step.WRITTEN, Step.COMMITTED, Step.QUARANTINE_PUBLISHED, Step.SETTLING),
}


# One of each way of reading; other kill tests have lines of JSON.
QUICK = ("json", "csv", "avro", "a function")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FORMATS]
)
def test_kills_around_a_run_lose_and_double_no_row(tmp_path: Path, name: str) -> None:
    case = Case(tmp_path, module=IN_PROCESS, content=FORMATS[name], objects_max_batch_objects=BATCH_OBJECTS)
    with closing(case):
        write_app(case)
        for number, step in enumerate(KILLS[name]):
            case.add_objects(range(number * OBJECTS, (number + 1) * OBJECTS))
            case.ingest(code=KILLED, kill_at=step.value)
            found = check_meanwhile(case.truth(), case.table)
            print(f"killed at {step}: {found}")  # noqa: T201 - shown when the test fails
        case.ingest()
        whole = case.truth()
        assert bool(whole.bad) == (name != "binary")
        check_done(whole, case.table)
        check_as_users_read(whole, case.table)
