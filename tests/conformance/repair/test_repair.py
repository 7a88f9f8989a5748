"""A ledger is set back while its table goes on: publishing halts, is repaired, and every line is there once."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.conformance.repair.scene import PIPELINE, SCHEMA, Scene, ref
from tests.services.aws_server import AwsServer

from penstock.errors import ClaimLost, PublishHalted, TableError, TemporaryError
from penstock.events import Bus, LedgerRepairFinished, LedgerRepairStarted
from penstock.ledger import Ledger
from penstock.ledger.records import AttemptState, ObjectState
from penstock.messaging.steps import Step
from penstock.pipeline.batch_record import load, save
from penstock.pipeline.maintenance.compact import compact
from penstock.storage.address import S3Address
from penstock.storage.s3_files import S3Files
from penstock.testing import FakeClock


class Died(BaseException):
    """The process ends here."""


def halted(scene: Scene) -> None:
    with pytest.raises(PublishHalted):
        scene.tables.publish()
    with pytest.raises(PublishHalted):
        scene.tables.collect_garbage(dry_run=False)


def test_what_the_table_holds_is_imported_and_the_pipeline_continues(scene: Scene) -> None:
    scene.published(1, 2, bad=True)
    backup = scene.dump()
    scene.published(3, 4)
    scene.published(5, bad=True)
    before = scene.seqs()
    scene.restore(backup)
    halted(scene)

    findings = scene.repair()

    assert (findings.agrees_at, findings.ledger_at, findings.shown_at) == (1, 1, 3)
    assert findings.unnamed == []
    assert scene.seqs() == before
    assert scene.shown() == [1, 2, 3, 4, 5]
    assert scene.claim(3, 4, 5).ended.keys() == {ref(number).object_id for number in (3, 4, 5)}, "done before"
    scene.tables.collect_garbage(dry_run=False)
    scene.published(6, bad=True)
    assert scene.shown() == [1, 2, 3, 4, 5, 6]
    assert scene.quarantined() == sorted(ref(number).uri for number in (1, 2, 5, 6))
    assert [type(event) for event in scene.events if isinstance(event, LedgerRepairStarted | LedgerRepairFinished)] == [
        LedgerRepairStarted,
        LedgerRepairFinished,
    ]


def test_attempts_still_running_are_fenced(scene: Scene) -> None:
    scene.published(1)
    held = scene.claim(2, 3)
    backup = scene.dump()
    scene.published(4)
    lost = scene.claim(5)
    scene.restore(backup)

    scene.repair()

    for claim, numbers in ((held, (2, 3)), (lost, (5,))):
        outcome = scene.write(claim.attempt_id, *numbers)
        with pytest.raises(ClaimLost):
            scene.ledger.commit(outcome)
    assert scene.ledger.open_attempts(PIPELINE) == []
    scene.published(2, 3, 5)
    assert scene.shown() == [1, 2, 3, 4, 5]


def test_an_attempt_that_was_open_in_the_backup_and_is_shown_counts(scene: Scene) -> None:
    scene.published(1)
    claim = scene.claim(2, 3)
    backup = scene.dump()
    scene.ledger.commit(scene.write(claim.attempt_id, 2, 3))
    scene.tables.publish()
    scene.restore(backup)

    scene.repair()

    attempt = scene.ledger.attempt(claim.attempt_id)
    assert attempt is not None
    assert attempt.state is AttemptState.COMMITTED
    assert scene.state(2) is ObjectState.PROCESSED
    scene.tables.collect_garbage(dry_run=False)
    assert scene.shown() == [1, 2, 3]


def test_batches_committed_and_never_published_are_processed_again(small: Scene) -> None:
    small.published(1)
    backup = small.dump()
    small.published(2)
    never = small.batch(3)
    small.restore(backup)

    findings = small.repair()

    assert findings.forgotten_objects == [ref(3).uri]
    assert never in small.ledger.abandoned_attempts(PIPELINE)
    small.published(3)
    small.tables.collect_garbage(dry_run=False)
    assert not (small.folder / "table" / "data" / never).exists()
    assert small.shown() == [1, 2, 3]


def test_several_batches_of_one_commit_are_put_in_an_order_that_ends_with_the_tip(small: Scene) -> None:
    small.published(1)
    backup = small.dump()
    attempts = [small.batch(2), small.batch(3), small.batch(4, empty=True), small.batch(5)]
    small.tables.publish()
    small.restore(backup)

    small.repair()

    seqs = small.seqs()
    assert seqs[5] == attempts[3]
    assert {attempts[0], attempts[1]} <= set(seqs.values())
    assert sorted(seqs) == [1, 2, 3, 4, 5], "one that nobody remembers has a number nevertheless"
    assert small.state(4) is None, "no table shows a file of its batch, so it is processed again"
    small.published(4, empty=True)
    small.published(6)
    assert small.shown() == [1, 2, 3, 5, 6]


def test_a_ledger_in_the_middle_of_a_commit_keeps_what_it_knows(small: Scene) -> None:
    small.published(1)
    small.batch(2)
    small.batch(3, empty=True)
    backup = small.dump()
    small.batch(4)
    small.batch(5)
    small.tables.publish()
    before = small.seqs()
    small.restore(backup)

    small.repair()

    assert small.seqs() == before
    assert small.shown() == [1, 2, 4, 5]


def test_batches_committed_after_the_rollback_follow_the_imported_ones(scene: Scene) -> None:
    scene.published(1)
    backup = scene.dump()
    scene.published(2)
    scene.published(3)
    scene.restore(backup)
    own = [scene.batch(6), scene.batch(7), scene.batch(8)]
    halted(scene)

    findings = scene.repair()

    assert findings.repair is not None
    assert findings.repair.withdrawn == []
    assert [scene.seqs()[seq] for seq in (4, 5, 6)] == own
    assert scene.shown() == [1, 2, 3, 6, 7, 8]
    scene.published(9)
    assert scene.shown() == [1, 2, 3, 6, 7, 8, 9]


def test_what_was_processed_once_more_after_the_rollback_is_withdrawn(scene: Scene) -> None:
    scene.published(1)
    backup = scene.dump()
    scene.published(2, 3)
    scene.restore(backup)
    again = scene.batch(3, 4)  # announced once more, since the ledger forgot it
    other = scene.batch(5)
    halted(scene)

    findings = scene.repair()

    assert findings.repair is not None
    assert findings.repair.withdrawn == [2]
    assert again in scene.ledger.abandoned_attempts(PIPELINE)
    assert scene.seqs()[3] == other
    assert scene.state(3) is ObjectState.PROCESSED
    assert scene.state(4) is ObjectState.UNPROCESSED
    scene.tables.collect_garbage(dry_run=False)
    scene.published(4)
    assert scene.shown() == [1, 2, 3, 4, 5]


def test_rows_that_are_shown_before_their_bad_lines(small: Scene) -> None:
    """Killed between the two tables: the quarantine of an imported batch is published after the repair."""
    small.published(1, bad=True)
    backup = small.dump()
    small.batch(2, bad=True)

    def die(at: Step) -> None:
        if at is Step.ROWS_PUBLISHED:
            raise Died

    tables = small.tables
    tables._probe = die
    with pytest.raises(Died):
        tables.publish()
    small.restore(backup)

    small.repair()

    assert small.shown() == [1, 2]
    assert small.quarantined() == sorted([ref(1).uri, ref(2).uri])


def test_only_the_quarantine_went_on(small: Scene) -> None:
    small.published(1)
    backup = small.dump()
    small.published(2, bad=True, empty=True)
    small.restore(backup)
    halted(small)

    small.repair()

    assert small.state(2) is ObjectState.PROCESSED
    small.published(3)
    assert small.shown() == [1, 3]
    assert small.quarantined() == [ref(2).uri]


def test_columns_that_were_added_meanwhile_are_known_again(small: Scene) -> None:
    wider = SCHEMA.append(pa.field("score", pa.float64()))
    small.published(1)
    backup = small.dump()
    small.published(2, schema=wider)
    small.restore(backup)

    small.repair()

    row = small.ledger.pipeline(PIPELINE)
    assert row is not None
    assert "score" in (row.table_schema or "")
    small.published(3, schema=wider)
    assert small.shown() == [1, 2, 3]


def test_without_records_the_batches_with_unknown_objects_are_named(small: Scene) -> None:
    small.published(1, recorded=False)
    backup = small.dump()
    small.published(2, recorded=False)
    small.published(3)
    small.restore(backup)

    findings = small.repair()

    assert findings.unnamed == [2]
    assert small.state(2) is None
    assert small.state(3) is ObjectState.PROCESSED
    small.tables.collect_garbage(dry_run=False)
    assert small.shown() == [1, 2, 3], "gc leaves alone what the table shows"


def test_once_repaired_there_is_nothing_to_repair(small: Scene) -> None:
    small.published(1)
    backup = small.dump()
    small.published(2)
    small.restore(backup)
    small.repair()
    open_now = small.claim(3)

    findings = small.repair()

    assert findings.repair is None
    assert findings.agrees_at == 2
    assert small.ledger.extend(open_now.attempt_id, lease_seconds=60.0), "nobody is fenced for nothing"


@pytest.mark.parametrize("step", [Step.REPAIRING, Step.REPAIRED])
def test_killed_at_a_step_and_run_again(scene: Scene, step: Step) -> None:
    scene.published(1)
    backup = scene.dump()
    scene.published(2, bad=True)
    scene.restore(backup)
    scene.batch(3)

    def die(at: Step) -> None:
        if at is step:
            raise Died

    probed: Callable[[Step], None] = die
    scene.ledger._repairs._probe = probed
    with pytest.raises(Died):
        scene.repair()
    scene.ledger._repairs._probe = lambda _: None
    assert scene.shown() == [1, 2]

    findings = scene.repair()

    assert (findings.repair is None) == (step is Step.REPAIRED)
    assert scene.shown() == [1, 2, 3]
    assert scene.quarantined() == [ref(2).uri]


def test_a_commit_between_check_and_repair_is_not_overwritten(small: Scene) -> None:
    small.published(1)
    backup = small.dump()
    small.published(2)
    small.restore(backup)
    repairer = small.repairer()
    findings = repairer.find()
    small.batch(3)

    with pytest.raises(TemporaryError, match="plan it again"):
        repairer.apply(findings, Bus())

    small.repair()
    assert small.shown() == [1, 2, 3]


def test_a_poll_changes_nothing(small: Scene) -> None:
    small.published(1)
    held = small.claim(5)
    backup = small.dump()
    small.published(2)
    small.restore(backup)
    before = small.dump()

    findings = small.repairer().find()

    assert findings.open_attempts == [held.attempt_id]
    assert small.dump() == before


def test_another_tables_ledger_is_refused_and_an_empty_one_requires_adopt(small: Scene) -> None:
    empty = small.dump()
    small.published(1)
    small.published(2, bad=True)
    small.restore(empty)
    with pytest.raises(PublishHalted, match="no batch of clicks in common"):
        small.repair()

    findings = small.repair(adopt=True)

    assert findings.agrees_at == 0
    assert small.claim(1, 2).claimed == {}
    small.published(3)
    assert small.shown() == [1, 2, 3]


def test_tables_written_to_from_two_ledgers_are_refused(small: Scene) -> None:
    """The rows went on from the set back ledger, the quarantine from the one that was lost: one number, two batches."""
    small.published(1)
    backup = small.dump()
    small.published(2, bad=True, empty=True)
    small.restore(backup)
    small.batch(3)
    tables = small.tables
    with pytest.raises(PublishHalted):
        tables.publish()  # the rows table agrees, and takes it

    with pytest.raises(TableError, match="two ledgers"):
        small.repair()
    assert small.shown() == [1, 3]


def cleaned_up(scene: Scene) -> None:
    """The table's log keeps its last version alone, as it does some time later."""
    table = DeltaTable(str(scene.folder / "table"))
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    table = DeltaTable(str(scene.folder / "table"))
    table.create_checkpoint()
    table.cleanup_metadata()
    assert DeltaTable(str(scene.folder / "table")).version() > 0
    assert not (scene.folder / "table" / "_delta_log" / f"{1:020}.json").exists()


def compacted(scene: Scene) -> None:
    done = compact(scene.tables.rows, clock=FakeClock(auto_advance=True))
    assert done is not None
    assert done.merged > 1


def test_a_table_that_was_compacted_is_imported_from_its_log(small: Scene) -> None:
    small.published(1)
    backup = small.dump()
    small.published(2)
    small.published(3, recorded=False)
    compacted(small)
    before = small.seqs()
    small.restore(backup)

    findings = small.repair()

    assert findings.unnamed == [3]
    assert small.seqs() == before
    small.tables.collect_garbage(dry_run=False)
    assert DeltaTable(str(small.folder / "table"), version=3).to_pyarrow_table().num_rows == 9, "older versions too"
    small.published(4)
    assert small.shown() == [1, 2, 3, 4]


def test_a_log_that_was_cleaned_up_still_has_the_files(small: Scene) -> None:
    small.published(1)
    backup = small.dump()
    attempts = [small.published(2), small.published(3)]
    cleaned_up(small)
    small.restore(backup)

    findings = small.repair()

    assert (findings.log_is_whole, findings.agrees_at) == (False, 1)
    assert [small.seqs()[seq] for seq in (2, 3)] == attempts
    small.tables.collect_garbage(dry_run=False)
    small.published(4)
    assert small.shown() == [1, 2, 3, 4]


def test_where_nothing_is_left_that_names_the_batches_it_is_refused(small: Scene) -> None:
    """Compacted, and the log cleaned up: the ledger's own batches cannot be told from others."""
    small.published(1)
    backup = small.dump()
    small.published(2)
    small.published(3)
    compacted(small)
    cleaned_up(small)
    small.restore(backup)

    for adopt in (False, True):
        with pytest.raises(PublishHalted, match="in common"):
            small.repair(adopt=adopt)
    assert small.shown() == [1, 2, 3]


def test_a_record_of_other_files_is_not_believed(small: Scene) -> None:
    small.published(1)
    backup = small.dump()
    attempt_id = small.published(2)
    record = load(small.table_paths.table, attempt_id)
    assert record is not None
    save(small.table_paths.table, replace(record, record=replace(record.record, manifest="[]")))
    small.restore(backup)
    with pytest.raises(TableError, match="move it away"):
        small.repair()


def test_a_table_in_s3(moto: AwsServer, tmp_path: Path) -> None:
    moto.client("s3").create_bucket(Bucket="lake")
    ledger = Ledger.open("sqlite://")
    files = S3Files(S3Address(bucket="lake", prefix="clicks/table"), moto.aws)
    scene = Scene(folder=tmp_path, ledger=ledger, root=files)
    scene.published(1)
    backup = scene.dump()
    scene.published(2, bad=True)
    scene.published(3)
    before = scene.seqs()
    scene.restore(backup)
    halted(scene)

    findings = scene.repair()

    assert findings.unnamed == []
    assert scene.seqs() == before
    scene.tables.collect_garbage(dry_run=False)
    scene.published(4)
    assert scene.shown() == [1, 2, 3, 4]
    assert scene.quarantined() == [ref(2).uri]
    ledger.close()
