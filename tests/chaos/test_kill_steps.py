"""The process group is killed at every step of the protocol; running the same command again must recover.

In CI, one test goes through all steps without Spark: killed at one step, started again, killed at the next, and so on.
Another test kills Spark at the steps that a run of Spark announces, and while it writes. The slow tests kill Spark at
each step alone, and at the second occurrence of a step that occurs twice.
"""

import inspect
import re
from dataclasses import dataclass
from types import ModuleType

import pytest
from tests.chaos import in_process
from tests.chaos.oracle import Truth, abandoned_folders, attempts, check_done, check_meanwhile, truth
from tests.chaos.runs import FORMATS, KILLED, Case, write_objects

from penstock.messaging.steps import Step
from penstock.pipeline.spark import run

pytestmark = pytest.mark.timeout(900)

OBJECTS = 40
OPTIONS = ("--max-batch-objects", "20")  # two batches
THREE_BATCHES = ("--max-batch-objects", "14")  # the first two may be published at once, the third is not

STORY = (
    Step.ANNOUNCED,
    Step.RECEIVED,
    Step.OBJECTS_REGISTERED,
    Step.ATTEMPT_OPENED,
    Step.ABANDONED,  # of the attempt before, when the next process finds its owner dead
    Step.PLANNED,
    Step.WRITTEN,
    Step.MANIFESTED,
    Step.RECORDED,
    Step.COMMITTING,
    Step.COMMITTED,
    Step.PUBLISHING,  # of that commit, at the next start
    Step.ROWS_PUBLISHED,
    Step.QUARANTINE_PUBLISHED,
    Step.SETTLING,
    Step.SETTLED,
    Step.DELETING,  # of the leftovers of the attempts before
    Step.DELETED,
)

OF_A_RUN = (Step.PLANNED, Step.WRITTEN, Step.MANIFESTED, Step.RECORDED)  # announced by the engine
OF_A_CLEANUP = {Step.CLEANING, Step.SET_ASIDE, Step.CLEANED}  # killed at in test_cleanup_processes.py
# killed at in tests/conformance/publishing/test_compact_leftovers.py
OF_A_COMPACTION = {Step.COMPACTED, Step.COMPACTION_COMMITTED, Step.LEFTOVER_MARKED}
OF_THE_QUARANTINE = {Step.NO_BAD_LINES_RECORDED}  # killed at in test_quarantine_progress_kills.py
OF_CHECKPOINTS = {Step.CHECKPOINTING, Step.CHECKPOINTED}  # killed at in test_checkpoint_kills.py
OF_OTHER_WRITERS = {Step.REPUBLISHING, Step.REPUBLISHED}  # killed at in test_overwritten_kills.py
OF_THE_ARCHIVE = {Step.ARCHIVE_WRITTEN, Step.ARCHIVING, Step.ARCHIVED}  # killed at in tests/cli/test_ledger.py
OF_A_REPAIR = {Step.REPAIRING, Step.REPAIRED}  # killed at in test_repair.py
OF_A_REPLAY = {Step.REPLAY_INTENDED, Step.REPLAY_SENT, Step.REPLAY_MARKED}  # killed at in test_replay_kills.py
OF_DEAD_LETTER_FILES = {
    Step.DEAD_LETTERS_WRITTEN,
    Step.DEAD_LETTERS_KEPT,
    Step.DEAD_LETTERS_REMOVED,
}  # killed at in test_dead_letter_file_kills.py

OF_REPLACED_ROWS = {Step.REWRITTEN}  # killed at in tests/cli/test_objects_retract.py
OF_READING_AGAIN = {Step.REOPENED}  # killed at in test_reprocess_kills.py
OF_MERGES = {Step.DELETES_WRITTEN, Step.DELETES_FOLDED}  # killed at in tests/conformance/publishing/test_merging.py
OF_EVOLUTION = {Step.COLUMNS_FOUND}  # killed at in test_evolution.py


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """The n-th occurrence of one step, and the step to kill at before, if it is reached only after a death."""

    step: Step
    nth: int = 1
    before: Step | None = None


ONCE = {Step.ANNOUNCED}  # forty objects are announced in one go
AFTER_A_DEATH = {Step.ABANDONED, Step.DELETING, Step.DELETED}


def alone() -> list[Alone]:
    cases = []
    for step in STORY:
        before = Step.WRITTEN if step in AFTER_A_DEATH else None
        cases.append(Alone(step=step, before=before))
        if step not in ONCE | AFTER_A_DEATH:
            cases.append(Alone(step=step, nth=2))
    return cases


def test_every_step_of_the_protocol_has_a_kill_test() -> None:
    elsewhere = OF_A_REPAIR | OF_A_CLEANUP | OF_A_COMPACTION | OF_THE_ARCHIVE | OF_A_REPLAY | OF_DEAD_LETTER_FILES
    elsewhere |= OF_READING_AGAIN | OF_MERGES | OF_CHECKPOINTS | OF_THE_QUARANTINE
    assert set(STORY) == set(Step) - elsewhere - OF_EVOLUTION - OF_OTHER_WRITERS - OF_REPLACED_ROWS
    assert {case.step for case in alone()} == set(STORY)
    assert {*OF_A_RUN, *OF_EVOLUTION} == announced_in(run) == announced_in(in_process), (
        "an engine announces other steps"
    )


def announced_in(module: ModuleType) -> set[Step]:
    return {Step[name] for name in re.findall(r"probe\(Step\.(\w+)\)", inspect.getsource(module))}


def kill_and_check(case: Case, whole: Truth, kill_at: str, options: tuple[str, ...] = OPTIONS) -> None:
    ended = case.ingest(*options, code=KILLED, kill_at=kill_at)
    found = check_meanwhile(whole, case.table)
    print(f"killed at {kill_at} after {ended.seconds:.1f} s: {found}")  # noqa: T201 - shown when the test fails


@pytest.mark.parametrize("scheme", FORMATS)
def test_kills_at_every_step_in_turn_lose_nothing(case: Case) -> None:
    write_objects(case.source, range(OBJECTS))
    whole = truth(case.source)
    for step in STORY:
        kill_and_check(case, whole, step.value)
    report = case.ingest(*OPTIONS).report
    check_done(whole, case.table)
    assert report["objects_found"] == OBJECTS
    assert report["objects_dead"] == 0
    assert attempts(case.table)["abandoned"] >= 5, "each death in a claim leaves an abandoned attempt"
    assert abandoned_folders(case.table) == []


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("death", alone(), ids=lambda death: f"{death.step.value}-{death.nth}")
def test_a_kill_at_one_step_loses_nothing(spark_case: Case, death: Alone) -> None:
    case = spark_case
    write_objects(case.source, range(OBJECTS))
    whole = truth(case.source)
    if death.before is not None:
        kill_and_check(case, whole, death.before.value)
    kill_and_check(case, whole, f"{death.step.value}:{death.nth}", OPTIONS if death.nth == 1 else THREE_BATCHES)
    report = case.ingest(*OPTIONS).report
    check_done(whole, case.table)
    assert report["objects_processed"] + report["objects_skipped"] == OBJECTS
