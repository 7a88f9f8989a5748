"""Twenty thousand different schedules over the real protocol code, none of them with a violation.

A plain run executes the first 600 of them, the long matrix (``make test-slow``) the others. A failure names its seed;
``python -m tests.simulation.replay SEED`` runs that schedule again and prints its log.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.simulation.harness import Sabotage, Schedule, ScheduleRunner, Violation
from tests.simulation.oracle import judge

from penstock.errors import PublishHalted
from penstock.messaging.steps import Step

FIRST = 600  # the schedules whose events one test checks
CHUNKS, CHUNK = 49, 400  # the other schedules, in chunks that can be distributed over processes
HONEST = Sabotage()
UPKEEP = {  # these steps have their own kill tests
    Step.REOPENED,
    Step.COLUMNS_FOUND,
    Step.COMPACTED,
    Step.DELETES_FOLDED,
    Step.DELETES_WRITTEN,
    Step.COMPACTION_COMMITTED,
    Step.LEFTOVER_MARKED,
    Step.REWRITTEN,
    Step.NO_BAD_LINES_RECORDED,
    Step.CHECKPOINTING,
    Step.CHECKPOINTED,
    Step.REPUBLISHING,
    Step.REPUBLISHED,
    Step.CLEANING,
    Step.SET_ASIDE,
    Step.CLEANED,
    Step.ARCHIVE_WRITTEN,
    Step.ARCHIVING,
    Step.ARCHIVED,
    Step.REPAIRING,
    Step.REPAIRED,
    Step.REPLAY_INTENDED,
    Step.REPLAY_SENT,
    Step.REPLAY_MARKED,
    Step.DEAD_LETTERS_WRITTEN,
    Step.DEAD_LETTERS_KEPT,
    Step.DEAD_LETTERS_REMOVED,
}


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[ScheduleRunner]:
    runner = ScheduleRunner(tmp_path)
    yield runner
    runner.close()


@pytest.mark.slow  # quick: the next test, with the first schedules
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_schedule_breaks_the_promise(runner: ScheduleRunner, chunk: int) -> None:
    count = 0
    for seed in range(FIRST + chunk * CHUNK, FIRST + (chunk + 1) * CHUNK):
        with runner.schedule(seed, HONEST) as schedule:
            run_and_check(schedule)
        count += 1

    assert count == CHUNK


def test_the_first_schedules_have_crashes_at_every_step_and_all_events(runner: ScheduleRunner) -> None:
    deaths: set[str] = set()
    happened: Counter[str] = Counter()
    for seed in range(FIRST):
        with runner.schedule(seed, HONEST) as schedule:
            run_and_check(schedule)
        deaths.update(schedule.scheduler.deaths)
        happened.update(schedule.scheduler.log)
        events = {event.__name__ for _, event in schedule.events()}

    steps = {step.value for step in set(Step) - UPKEEP}
    assert steps - deaths == {Step.ANNOUNCED.value}, "the sender enqueues notifications"
    assert all(happened[event] > 100 for event in events), happened
    for fault in ("ledger reply lost", "commit reply lost", "commit lost", "broker reply lost"):
        assert happened[fault] > 20, fault


@pytest.mark.parametrize(
    ("sabotage", "sentence"),
    [
        pytest.param(Sabotage(ack_before_commit=True), "ended unprocessed|rows: ", id="ack-before-commit"),
        pytest.param(Sabotage(publish_unconditionally=True), "rows are visible twice", id="publish-unconditionally"),
        pytest.param(Sabotage(delete_open_attempts=True), "does not exist|missing", id="gc-without-tombstone"),
        pytest.param(
            Sabotage(commit_without_fence=True),
            "visible twice|abandoned attempt|counted attempts|does not become stable|acked before its objects",
            id="commit-without-fence",
        ),
        pytest.param(Sabotage(count_released_attempts=True), "counted attempts", id="count-released-attempts"),
        pytest.param(
            Sabotage(uncount_crashed_attempts=True), "counted attempts|is dead after", id="uncount-crashed-attempts"
        ),
        pytest.param(Sabotage(drop_dead_letters=True), "dead letters", id="drop-dead-letters"),
    ],
)
def test_the_oracle_detects_a_broken_rule(runner: ScheduleRunner, sabotage: Sabotage, sentence: str) -> None:
    for seed in range(300):
        with runner.schedule(seed, sabotage) as schedule:
            try:
                run_and_check(schedule)
            except (Violation, PublishHalted) as noticed:
                violation = noticed
                break
    else:
        pytest.fail("300 schedules, and no violation was detected")

    with pytest.raises((Violation, PublishHalted), match=sentence):
        raise violation


def test_a_schedule_is_determined_by_its_seed(tmp_path: Path) -> None:
    assert _log(tmp_path, 4711) == _log(tmp_path, 4711)


def _log(folder: Path, seed: int) -> list[str]:
    runner = ScheduleRunner(folder)
    with runner.schedule(seed, HONEST) as schedule:
        run_and_check(schedule)
    runner.close()
    return schedule.scheduler.log


def run_and_check(schedule: Schedule) -> None:
    """Run and check one schedule. A failure names the seed."""
    try:
        schedule.run()
        judge(schedule)
    except Exception as error:
        error.add_note(f"in the schedule of seed {schedule.seed}, after {schedule.scheduler.log[-8:]}")
        raise
