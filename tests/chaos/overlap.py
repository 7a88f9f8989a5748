"""Two batches of one ingest in flight: the first is held at a gate in its run, the second goes on beside it.

The gate names an object of the first batch. Attempts and batches are read from the ledger's file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import transforms
from tests.chaos.oracle import attempts, check_done, check_meanwhile, query
from tests.chaos.runs import IN_PROCESS, KILLED, Case

from penstock.messaging.steps import Step

BATCH_OBJECTS = 10
OPTIONS = ("--max-batch-objects", str(BATCH_OBJECTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The occurrence of a step at which the second batch dies while the first one runs.

    ``commits``: the second batch is committed by then, so another ingest has something to publish when it starts.
    """

    step: Step
    nth: int = 1
    commits: bool = False

    @property
    def kill_at(self) -> str:
        return f"{self.step.value}:{self.nth}"


# Until it is planned, the first batch reaches each step, too.
DEATHS = (
    Death(step=Step.RECEIVED, nth=2),
    Death(step=Step.OBJECTS_REGISTERED, nth=2),
    Death(step=Step.ATTEMPT_OPENED, nth=2),
    Death(step=Step.PLANNED, nth=2),
    Death(step=Step.WRITTEN),
    Death(step=Step.MANIFESTED),
    Death(step=Step.RECORDED),
    Death(step=Step.COMMITTING),
    Death(step=Step.COMMITTED, commits=True),
    Death(step=Step.PUBLISHING, commits=True),
    Death(step=Step.ROWS_PUBLISHED, commits=True),
    Death(step=Step.QUARANTINE_PUBLISHED, commits=True),
    Death(step=Step.SETTLING, commits=True),
    Death(step=Step.SETTLED, commits=True),
)
EARLY = {Step.RECEIVED, Step.OBJECTS_REGISTERED}  # the first batch may not have claimed yet, or the second one not


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt as the ledger has it."""

    id: str
    state: str
    began_at: float
    ended_at: float | None

    def overlaps(self, other: "Attempt") -> bool:
        """Return True if both were open at the same time."""
        return (self.ended_at is None or self.ended_at > other.began_at) and (
            other.ended_at is None or other.ended_at > self.began_at
        )


def attempts_of(table: Path) -> Sequence[Attempt]:
    """Return all attempts, oldest first."""
    rows = query(table, "SELECT id, state, started_at, ended_at FROM attempts ORDER BY started_at, id")
    return [Attempt(id=id, state=state, began_at=began_at, ended_at=ended_at) for id, state, began_at, ended_at in rows]


def left_open(table: Path) -> Sequence[Attempt]:
    return [attempt for attempt in attempts_of(table) if attempt.state == "open"]


def two_in_flight(table: Path) -> bool:
    """Return True if two attempts are open, or one is and another was committed while it was."""
    open_ones = left_open(table)
    committed = [attempt for attempt in attempts_of(table) if attempt.state == "committed"]
    return len(open_ones) > 1 or any(one.overlaps(other) for one in open_ones for other in committed)


def committed_in_pairs(table: Path) -> int:
    """Return how many committed attempts were open together with another committed one."""
    committed = [attempt for attempt in attempts_of(table) if attempt.state == "committed"]
    return sum(any(one.overlaps(other) for other in committed if other is not one) for one in committed)


def check_numbers(table: Path) -> int:
    """Check that the numbers of batches have no gap and follow their commits; return how many there are."""
    rows = query(table, "SELECT seq, committed_at FROM batches ORDER BY seq")
    assert [seq for seq, _ in rows] == [*range(1, len(rows) + 1)]
    times = [committed_at for _, committed_at in rows]
    assert times == sorted(times), "numbers do not follow the commits"
    return len(rows)


def shut_gate(case: Case, held: int | None = 0) -> None:
    """Hold the run that reads the object of this number; None: every run."""
    (case.folder / transforms.AT_GATE).unlink(missing_ok=True)
    (case.folder / transforms.GATE).write_text("" if held is None else f"object-{held:04}.")


def open_gate(case: Case) -> None:
    (case.folder / transforms.GATE).unlink()


def is_held(case: Case) -> bool:
    """Return True if a run waits at the gate."""
    return (case.folder / transforms.AT_GATE).exists()


def add_two_batches(case: Case, first: int) -> int:
    """Add the objects of two full batches, numbered from here on. Return the next number."""
    case.add_objects(range(first, first + 2 * BATCH_OBJECTS))
    return first + 2 * BATCH_OBJECTS


def kill_beside_a_run(case: Case, death: Death, *options: str, held: int = 0) -> None:
    """Kill the ingest at a step of one batch while another one is held in its run, and check the table.

    ``held`` is the number of the first object that is not finished.
    """
    shut_gate(case, held)
    ended = case.ingest(*OPTIONS, *options, code=KILLED, kill_at=death.kill_at)
    table = case.mirror()
    found = check_meanwhile(case.truth(), table)
    print(f"killed at {death.kill_at} after {ended.seconds:.1f} s: {found}")  # noqa: T201 - shown when the test fails
    assert death.step in EARLY or two_in_flight(table), f"one batch only: {attempts_of(table)}"
    if death.step not in EARLY:
        assert len(left_open(table)) == (1 if death.commits else 2)


def kill_in_turn(case: Case, deaths: Sequence[Death], *options: str) -> None:
    """Kill one ingest after another, each with two new batches besides those that the ones before left, and finish.

    After a death behind a commit, an ingest without Spark finishes: another one would reach the steps of publishing
    when it starts. All others recover in the ingest that is killed next, and the last one with ``options``.
    """
    held = number = 0
    transform = options[options.index("--transform") + 1] if "--transform" in options else ""
    for death in deaths:
        number = add_two_batches(case, number)
        kill_beside_a_run(case, death, *options, held=held)
        if death.commits:
            module, case.module = case.module, IN_PROCESS
            if transform:
                case.accept_transform()  # this engine has none
            finish(case)
            case.module = module
            if transform:
                case.accept_transform(transform)
            held = number
    add_two_batches(case, number)
    finish(case, *options)
    assert attempts(case.table)["abandoned"] >= len(deaths), "each death leaves the attempt that was held"


def finish(case: Case, *options: str) -> int:
    """Open the gate and ingest the rest. Check that each line is there once; return the number of batches."""
    (case.folder / transforms.GATE).unlink(missing_ok=True)
    report = case.ingest(*OPTIONS, *options).report
    assert report["objects_dead"] == 0
    table = case.mirror()
    check_done(case.truth(), table)
    return check_numbers(table)
