"""Files of compactions that died before their commit: gc deletes them, and never a file that a version names."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tests.conformance.publishing.batch_maker import BatchMaker
from tests.conformance.publishing.test_compaction import ids, published, sink

from penstock.messaging.clock import SystemClock
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.pipeline.maintenance.compact import CompactionResult, compact
from penstock.pipeline.maintenance.leftovers import AGE_SECONDS_MIN, Leftovers, collect_leftovers
from penstock.testing import FakeClock


class Died(BaseException):
    """Simulates the death of the process."""


class Later(SystemClock):
    """A clock far enough in the future that every existing file is old."""

    def now(self) -> float:
        return super().now() + 2 * AGE_SECONDS_MIN


def dying_at(step: Step) -> Probe:
    def probe(reached: Step) -> None:
        if reached is step:
            raise Died

    return probe


def compacted(maker: BatchMaker, probe: Probe = no_probe) -> CompactionResult | None:
    return compact(sink(maker), clock=FakeClock(auto_advance=True), probe=probe)


def collected(
    maker: BatchMaker,
    probe: Probe = no_probe,
    *,
    dry_run: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> Leftovers:
    return collect_leftovers(sink(maker), maker.ledger, clock=Later(), probe=probe, dry_run=dry_run, stopped=stopped)


def leftover_files(maker: BatchMaker) -> list[Path]:
    folder = maker.root / "compacted"
    return sorted(path for path in folder.rglob("*") if path.is_file()) if folder.exists() else []


@pytest.fixture
def filled(maker: BatchMaker) -> BatchMaker:
    for row in range(3):
        maker.batch([row])
        published(maker)
    return maker


def publish_row(maker: BatchMaker, row: int) -> None:
    maker.batch([row])
    published(maker)


def test_files_of_a_dead_compaction_are_collected_once_the_table_has_moved(filled: BatchMaker) -> None:
    with pytest.raises(Died):
        compacted(filled, dying_at(Step.COMPACTED))
    (file,) = leftover_files(filled)
    assert collect_leftovers(sink(filled), filled.ledger, clock=SystemClock()) == Leftovers(), (
        "it is young, and its writer may still run"
    )
    assert len(leftover_files(filled)) == 1
    assert collected(filled).files == collected(filled).files == 0, "the table has not moved since it was marked"
    assert file.exists()
    publish_row(filled, 3)
    assert (collected(filled, dry_run=True).files, file.exists()) == (1, True)
    assert (collected(filled).folders, leftover_files(filled), ids(filled.root)) == (1, [], [0, 1, 2, 3])
    assert not any((filled.root / "compacted").iterdir())


def test_files_that_a_version_names_or_named_are_left_alone(filled: BatchMaker) -> None:
    with pytest.raises(Died):
        compacted(filled, dying_at(Step.COMPACTION_COMMITTED))
    publish_row(filled, 3)
    assert compacted(filled) is not None  # only an older version names the first merged file
    for row in (4, 5):
        assert collected(filled) == Leftovers()
        publish_row(filled, row)
    assert (len(leftover_files(filled)), ids(filled.root)) == (2, [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("step", [Step.LEFTOVER_MARKED, Step.DELETING, Step.DELETED])
def test_the_next_gc_completes_one_that_was_killed(filled: BatchMaker, step: Step) -> None:
    with pytest.raises(Died):
        compacted(filled, dying_at(Step.COMPACTED))
    if step is not Step.LEFTOVER_MARKED:
        collected(filled)
    publish_row(filled, 3)
    with pytest.raises(Died):
        collected(filled, dying_at(step))
    for row in (4, 5):
        publish_row(filled, row)
        collected(filled)
    assert leftover_files(filled) == []
    assert compacted(filled) is not None
    assert ids(filled.root) == list(range(6))


@pytest.mark.parametrize("passes", [0, 1, 2])
def test_a_compaction_halted_for_days_commits_no_file_that_gc_deleted(filled: BatchMaker, passes: int) -> None:
    rows = iter(range(3, 9))

    def days_pass(step: Step) -> None:
        if step is Step.COMPACTED:
            for _ in range(passes):
                collected(filled)
                publish_row(filled, next(rows))

    done = compacted(filled, days_pass)
    assert done is not None
    assert done.merged == (3 if passes == 0 else 0)
    publish_row(filled, next(rows))
    collected(filled)
    assert ids(filled.root) == list(range(4 + passes))
    assert passes == 0 or leftover_files(filled) == []


def test_folders_not_created_by_penstock_are_left_alone(filled: BatchMaker) -> None:
    strange = filled.root / "compacted" / "mine" / "part.parquet"
    strange.parent.mkdir(parents=True)
    strange.write_bytes(b"x")
    for row in (3, 4):
        assert collected(filled) == Leftovers()
        publish_row(filled, row)
    assert strange.exists()


def test_a_collection_stopped_at_any_unit_deletes_no_file_that_a_version_names(filled: BatchMaker) -> None:
    """An incomplete list of the table's commits must not make their files look like leftovers."""
    assert compacted(filled) is not None
    named = leftover_files(filled)
    for row in (3, 4):
        publish_row(filled, row)
    with pytest.raises(Died):
        compacted(filled, dying_at(Step.COMPACTED))
    assert len(leftover_files(filled)) == len(named) + 1
    collected(filled)
    publish_row(filled, 5)
    folders = asked = 0
    while not folders:
        calls = count(1)
        folders = collected(filled, stopped=lambda limit=asked, calls=calls: next(calls) > limit).folders  # type: ignore[misc]
        asked += 1
    assert asked > 5, "it asks per folder and commit"
    assert (leftover_files(filled), ids(filled.root)) == (named, list(range(6)))
