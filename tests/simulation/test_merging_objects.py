"""Random schedules of objects whose rows are merged by key: the table has the last row of each key at every commit.

A plain run executes the first schedules in each format, the long matrix (``make test-slow``) more than two thousand. A
failure names its seed; ``python -m tests.simulation.merging SEED FORMAT`` runs it again.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.simulation.change_rules import Batch, MergeByKey, Version
from tests.simulation.changing import ChangeSabotage, ChangingRunner
from tests.simulation.harness import Violation
from tests.simulation.merging import MergingSchedule

from penstock.errors import PublishHalted
from penstock.messaging.steps import Probe, Step
from penstock.pipeline.merging import merger, tombstones
from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.merging.entries import MergeEntries
from penstock.pipeline.merging.merger import MergeBatch
from penstock.pipeline.merging.rows import RowReader
from penstock.sinks.manifest import DataFile
from penstock.storage.files import Files

FIRST = {"memory": 20, "delta": 5, "iceberg": 4}  # the schedules of a plain run
CHUNKS = {"memory": 20, "delta": 12, "iceberg": 8}  # the others, in chunks that can be distributed over processes
CHUNK = 60
TRIED_MAX = 200  # until the oracle has to detect a broken rule


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[ChangingRunner]:
    runner = ChangingRunner(tmp_path, MergingSchedule)
    yield runner
    runner.ledger.close()


@pytest.mark.parametrize("format", FIRST)
def test_the_table_has_the_last_row_of_each_key_at_every_commit(runner: ChangingRunner, format: str) -> None:
    happened: Counter[str] = Counter()
    for seed in range(FIRST[format]):
        schedule = runner.run(seed, format)
        happened.update({"batches": len(schedule.history), "checks": schedule.checks})
        happened["deaths"] += len(schedule.scheduler.deaths)

    assert happened["batches"] > 2 * FIRST[format]
    assert happened["checks"] > 5 * FIRST[format]
    assert happened["deaths"] > FIRST[format] // 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "chunk"), [(name, chunk) for name, count in CHUNKS.items() for chunk in range(count)]
)
def test_no_schedule_breaks_the_rule(runner: ChangingRunner, format: str, chunk: int) -> None:
    checks = 0
    for seed in range(FIRST[format] + chunk * CHUNK, FIRST[format] + (chunk + 1) * CHUNK):
        checks += runner.run(seed, format).checks

    assert checks > 5 * CHUNK


@pytest.mark.slow
def test_actors_die_at_every_step_of_a_merge(runner: ChangingRunner) -> None:
    deaths: Counter[str] = Counter()
    for seed in range(10_000, 10_200):
        deaths.update(runner.run(seed, "memory").scheduler.deaths)

    steps = (
        *(Step.WRITTEN, Step.DELETES_WRITTEN, Step.COMMITTED, Step.PUBLISHING, Step.REWRITTEN, Step.ROWS_PUBLISHED),
        *(Step.COMPACTION_COMMITTED, Step.DELETES_FOLDED),
    )
    assert not {step.value for step in steps if not deaths[step.value]}, deaths


def test_the_oracle_detects_commits_without_a_condition(runner: ChangingRunner) -> None:
    assert_detected(lambda seed: runner.run(seed, "memory", sabotage=ChangeSabotage.UNCONDITIONAL))


def test_the_oracle_detects_forgotten_deletes(runner: ChangingRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: RowReader, __: MergeBatch, entries: MergeEntries) -> Any:
        return np.zeros(len(entries), np.bool_)

    monkeypatch.setattr(merger, "_deleted_earlier", none)
    assert_detected(lambda seed: runner.run(seed, "memory"))


def test_the_oracle_detects_a_fold_that_leaves_deletes_out(
    runner: ChangingRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = tombstones._write_folded

    def first_only(root: Files, merge: Merge, files: Sequence[DataFile], attempts: Sequence[str], probe: Probe) -> None:
        write(root, merge, files[:1], attempts, probe)

    monkeypatch.setattr(tombstones, "_write_folded", first_only)
    assert_detected(lambda seed: runner.run(seed, "memory"), first=37)  # few schedules meet it


def assert_detected(run: Callable[[int], Any], *, first: int = 0) -> None:
    for seed in range(first, first + TRIED_MAX):
        try:
            run(seed)
        except (Violation, PublishHalted, AssertionError) as noticed:
            violation = noticed
            break
    else:
        pytest.fail(f"{TRIED_MAX} schedules, and no violation was detected")
    with pytest.raises(Violation, match=r"too many|and lacks"):
        raise violation


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["a 1 I 1"], ["a 1 I 1"]),
        (["a 1 I 1", "a 2 U 2", "b 1 I 3"], ["a 2 U 2", "b 1 I 3"]),
        (["a 2 U 2", "a 1 I 1"], ["a 2 U 2"]),
        (["a 1 I 1", "a 1 D 2"], []),
        (["a 2 D 2", "a 1 I 1", "a 3 I 3"], ["a 3 I 3"]),
        (["a 1 I 2", "a 1 I 1"], ["a 1 I 2"]),
    ],
)
def test_the_rule(lines: list[str], shown: list[str]) -> None:
    versions = [Version(key="o", id=bytes([number]), lines=[line]) for number, line in enumerate(lines)]
    rule = MergeByKey()
    expected = Counter(("o", line) for line in shown)
    assert rule.rows([Batch(versions=versions)]) == expected
    assert rule.rows([Batch(versions=[version]) for version in reversed(versions)]) == expected
