"""A publisher is killed before, while or after it writes a checkpoint of a Delta log. The next one continues."""

from pathlib import Path

import pytest
from deltalake import DeltaTable, PostCommitHookProperties
from tests.chaos import killed_checkpoint
from tests.chaos.oracle import check_done, check_meanwhile, truth
from tests.chaos.runs import IN_PROCESS, KILLED, Case

from penstock.messaging.steps import Step

BATCH = 8  # objects, of which some have bad lines: both tables get commits


@pytest.fixture
def begun(case: Case) -> Case:
    """Return a case whose two tables get a checkpoint with every commit."""
    case.add_objects(range(BATCH))
    case.ingest()
    for table in (case.table, Path(f"{case.table}_quarantine")):
        DeltaTable(table).alter.set_table_properties(
            {"delta.checkpointInterval": "1"},
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=False),
        )
    case.add_objects(range(BATCH, 2 * BATCH))
    return case


def check_continued(case: Case) -> None:
    """Check that the next ingests continue, with checkpoints of both tables."""
    check_meanwhile(truth(case.source), case.table)
    case.ingest()
    check_done(truth(case.source), case.table)
    case.add_objects(range(2 * BATCH, 3 * BATCH))
    case.ingest()
    check_done(truth(case.source), case.table)
    for table in (case.table, Path(f"{case.table}_quarantine")):
        newest = DeltaTable(table).version()
        assert (table / "_delta_log" / f"{newest:020d}.checkpoint.parquet").exists()
        assert DeltaTable(table).to_pyarrow_table().num_rows


@pytest.mark.parametrize(
    "kill_at", [step.value + nth for step in (Step.CHECKPOINTING, Step.CHECKPOINTED) for nth in ("", ":2")]
)
def test_a_kill_beside_a_checkpoint_loses_nothing(begun: Case, kill_at: str) -> None:
    begun.ingest(code=KILLED, kill_at=kill_at)
    check_continued(begun)


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
