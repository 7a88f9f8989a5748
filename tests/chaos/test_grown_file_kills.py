"""Files grow between ingests that read only what was appended, and the process group is killed at every step.

At every moment a reader sees all lines of one version of each file, and at the end those in the folder, each once. In
CI one test goes through the steps that matter, without Spark; the slow tests take every step, also on Spark and in
Iceberg.
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.chaos.oracle import query
from tests.chaos.runs import DELTA, ICEBERG, IN_PROCESS, KILLED, ON_SPARK, Case, line, write_objects
from tests.chaos.test_changed_file_kills import LINES, OBJECTS, STORY, Versions

from penstock.messaging.steps import Step

pytestmark = pytest.mark.timeout(900)

OPTIONS = ("--max-batch-objects", "6", "--on-change", "tail")
APPENDED = 3  # lines, each time
CORRECTED = OBJECTS - 1
GROWING = [number for number in range(CORRECTED) if number % 4]  # the others are compressed
SHORT_STORY = (Step.WRITTEN, Step.RECORDED, Step.COMMITTING, Step.COMMITTED, Step.ROWS_PUBLISHED)


def append(case: Case, number: int, first: int) -> None:
    with (case.source / f"object-{number:04}.jsonl").open("ab") as file:
        file.writelines(line(number, first + place) + b"\n" for place in range(APPENDED))


def correct(case: Case, text: str) -> None:
    path = case.source / f"object-{CORRECTED:04}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([line(CORRECTED, 0, s=text) + b"\n", *lines[1:]]))


def totals(case: Case) -> tuple[int, int, int, int]:
    """Return the objects that grew, the appended rows, the changed objects and the replaced rows of all batches."""
    columns = ", ".join(
        f"coalesce(sum({name}), 0)" for name in ("grown_objects", "appended_rows", "replaced_objects", "replaced_rows")
    )
    ((grown, appended, objects, rows),) = query(case.table, f"SELECT {columns} FROM batches")
    return int(grown), int(appended), int(objects), int(rows)


def story(case: Case, steps: Sequence[Step]) -> None:
    """Append to a file and correct another one before each kill; check after it, and once all is processed."""
    write_objects(case.source, range(OBJECTS))
    versions = Versions()
    versions.note(case.source)
    case.ingest(*OPTIONS)
    versions.check_done(case)
    for number, step in enumerate(steps):
        append(case, GROWING[number % len(GROWING)], LINES + number // len(GROWING) * APPENDED)
        if step is Step.REWRITTEN:  # only then does a file of the table change
            correct(case, f"before {step}")
        versions.note(case.source)
        case.ingest(*OPTIONS, code=KILLED, kill_at=step.value)
        versions.check_meanwhile(case)
    append(case, GROWING[0], LINES + 100)
    versions.note(case.source)
    case.ingest(*OPTIONS)
    versions.check_done(case)
    corrections = steps.count(Step.REWRITTEN)
    grown, appended, objects, rows = totals(case)
    assert appended == (len(steps) + 1) * APPENDED, "no file that grew was read whole"
    assert 0 < grown <= len(steps) + 1, "a file may grow twice before it is read"
    assert (objects, rows) == (corrections, corrections * LINES)


def test_kills_in_turn_leave_each_line_of_files_that_grow_once(case: Case) -> None:
    story(case, SHORT_STORY)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [DELTA, ICEBERG])
def test_kills_at_every_step_in_turn_leave_each_line_of_files_that_grow_once(case: Case) -> None:
    story(case, [step for step in STORY if step is not Step.QUARANTINE_PUBLISHED])  # there are no new bad lines


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "module"),
    [
        *((step, IN_PROCESS) for step in STORY if step not in (Step.QUARANTINE_PUBLISHED, Step.REWRITTEN)),
        (Step.WRITTEN, ON_SPARK),
        (Step.COMMITTED, ON_SPARK),
    ],
)
def test_the_run_after_a_kill_reports_the_rows_it_made_visible(tmp_path: Path, step: Step, module: str) -> None:
    with closing(Case(tmp_path, module=module, scheme=DELTA)) as case:
        write_objects(case.source, range(OBJECTS))
        versions = Versions()
        versions.note(case.source)
        case.ingest(*OPTIONS)
        append(case, 1, LINES)
        versions.note(case.source)
        case.ingest(*OPTIONS, code=KILLED, kill_at=step.value)
        versions.check_meanwhile(case)
        report = case.ingest(*OPTIONS).report
        versions.check_done(case)
        shown_before = STORY.index(step) >= STORY.index(Step.ROWS_PUBLISHED)
        said = report["grown_objects"], report["appended_rows"]
        assert said == ((0, 0) if shown_before else (1, APPENDED))
        assert totals(case) == (1, APPENDED, 0, 0)
