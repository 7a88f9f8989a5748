"""A publisher is killed before, while or after it writes a checkpoint of a Delta log, or an Iceberg version hint.

The next one continues.
"""

from pathlib import Path

import pytest
from deltalake import DeltaTable, PostCommitHookProperties
from tests.chaos import killed_checkpoint, short_intervals
from tests.chaos.oracle import check_done, check_meanwhile, truth
from tests.chaos.runs import ICEBERG, IN_PROCESS, KILLED, Case

from penstock.messaging.steps import Step

BATCH = 8  # objects, of which some have bad lines: both tables get commits


@pytest.fixture
def begun(case: Case) -> Case:
    """Return a case whose two tables get a checkpoint with every commit."""
    case.add_objects(range(BATCH))
    case.ingest()
    for table in tables_of(case):
        DeltaTable(table).alter.set_table_properties(
            {"delta.checkpointInterval": "1"},
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=False),
        )
    case.add_objects(range(BATCH, 2 * BATCH))
    return case


def tables_of(case: Case) -> tuple[Path, Path]:
    return case.table, Path(f"{case.table}_quarantine")


def check_next_ingests(case: Case) -> None:
    """Check what the tables show after a kill, after the next ingest, and after one more with new objects."""
    check_meanwhile(truth(case.source), case.table)
    case.ingest()
    check_done(truth(case.source), case.table)
    case.add_objects(range(2 * BATCH, 3 * BATCH))
    case.ingest()
    check_done(truth(case.source), case.table)


def check_continued(case: Case) -> None:
    """Check that the next ingests continue, with checkpoints of both tables."""
    check_next_ingests(case)
    for table in tables_of(case):
        newest = DeltaTable(table).version()
        assert (table / "_delta_log" / f"{newest:020d}.checkpoint.parquet").exists()
        assert DeltaTable(table).to_pyarrow_table().num_rows


@pytest.mark.parametrize(
    "kill_at", [step.value + nth for step in (Step.CHECKPOINTING, Step.CHECKPOINTED) for nth in ("", ":2")]
)
def test_a_kill_beside_a_checkpoint_loses_nothing(begun: Case, kill_at: str) -> None:
    begun.ingest(code=KILLED, kill_at=kill_at)
    check_continued(begun)


@pytest.mark.parametrize("scheme", [ICEBERG])
@pytest.mark.parametrize("tables", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("step", "hinted"), [(Step.CHECKPOINTING, 2), (Step.CHECKPOINTED, 3)])
def test_a_kill_beside_a_version_hint_loses_nothing(case: Case, step: Step, hinted: int, tables: int) -> None:
    case.module = short_intervals.__name__
    case.add_objects(range(BATCH))
    case.ingest()
    case.add_objects(range(BATCH, 2 * BATCH))
    case.ingest(code=KILLED, kill_at=f"{step.value}:{tables}")
    killed_at = tables_of(case)[tables - 1]
    assert (hint(killed_at), metadata_files(killed_at)) == (hinted, {1, 2, 3}), "killed elsewhere"
    check_next_ingests(case)
    for table in tables_of(case):
        assert (hint(table), metadata_files(table)) == (4, {3, 4})


def hint(table: Path) -> int:
    return int((table / "metadata" / "version-hint.text").read_text())


def metadata_files(table: Path) -> set[int]:
    """Return the numbers of a table's metadata files."""
    return {int(path.name[1:].partition(".")[0]) for path in (table / "metadata").glob("v*.metadata.json")}


@pytest.mark.parametrize("where", [killed_checkpoint.FILE, killed_checkpoint.HINT])
def test_a_kill_while_a_checkpoint_is_written_loses_nothing(
    begun: Case, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun.module = killed_checkpoint.__name__
    with monkeypatch.context() as killed:
        killed.setenv(killed_checkpoint.WHERE, where)
        begun.ingest(code=KILLED)
    begun.module = IN_PROCESS
    check_continued(begun)
