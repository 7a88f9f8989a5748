"""The ledger is restored from a backup while its table has moved on: publishing halts, is repaired, and the table has
every line once.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table.update import RemoveSnapshotsUpdate
from tests.conformance.repair.scene import PIPELINE, SCHEMA, Scene, ref
from tests.services.aws_server import AwsServer
from tests.services.spark_writer import SparkWriter

from penstock.errors import ClaimLost, PublishHalted, TableError, TemporaryError
from penstock.events import Bus, LedgerRepairFinished, LedgerRepairStarted
from penstock.ledger import Ledger
from penstock.ledger.records import AttemptState, ObjectState
from penstock.messaging.steps import Step
from penstock.pipeline import quarantine_progress
from penstock.pipeline.batch_record import load, save
from penstock.pipeline.maintenance.compact import compact
from penstock.sinks.iceberg.choice import CatalogChoice
from penstock.storage.address import S3Address
from penstock.storage.local import LocalFiles
from penstock.storage.s3_files import S3Files
from penstock.testing import FakeClock


class Died(BaseException):
    """Simulates the death of the process."""


def assert_halted(scene: Scene) -> None:
    with pytest.raises(PublishHalted):
        scene.tables.publish()
    with pytest.raises(PublishHalted):
        scene.tables.collect_garbage(dry_run=False)


def test_batches_of_the_table_are_imported_and_the_pipeline_continues(scene: Scene) -> None:
    scene.published(1, 2, bad=True)
    backup = scene.dump()
    scene.published(3, 4)
    scene.published(5, bad=True)
    before = scene.seqs()
    scene.restore(backup)
    assert_halted(scene)

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


@pytest.mark.parametrize("sqlite_scene", ["delta"], indirect=True)
def test_batches_published_again_after_another_writer_overwrote_them_are_imported(sqlite_scene: Scene) -> None:
    scene = sqlite_scene
    scene.published(1)
    backup = scene.dump()
    spark = SparkWriter(files=scene.tables.rows.root)
    late = spark.set_metadata("SET TBLPROPERTIES", configuration={"delta.appendOnly": "false"})
    for number in (2, 3, 4):
        scene.published(number)
    late.put()
    scene.published(5)
    before = scene.seqs()
    assert scene.shown() == [1, 2, 3, 4, 5]
    scene.restore(backup)
    assert_halted(scene)

    scene.repair()

    assert scene.seqs() == before
    scene.published(6)
    assert scene.shown() == [1, 2, 3, 4, 5, 6]


def test_bad_lines_of_an_imported_batch_are_published_although_the_batches_in_its_place_had_none(
    sqlite_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = sqlite_scene
    monkeypatch.setattr(quarantine_progress, "RECORD_EVERY_BATCHES", 1)
    scene.published(1)
    backup = scene.dump()
    scene.batch(2, bad=True)
    publisher = scene.tables  # as a process that continues
    publisher.publish_jobs["rows"]()  # the quarantine table cannot be written at that time
    scene.restore(backup)
    for number in (3, 4, 5):
        scene.batch(number)
    for publishing in (publisher, scene.tables):
        with pytest.raises(PublishHalted):
            publishing.publish_jobs["rows"]()
        publishing.publish_jobs["quarantine"]()

    scene.repair()

    assert scene.shown() == [1, 2, 3, 4, 5]
    assert scene.quarantined() == [ref(2).uri]


def test_bad_lines_of_an_imported_batch_are_published_by_a_process_that_continues(sqlite_scene: Scene) -> None:
    scene = sqlite_scene
    scene.published(1)
    backup = scene.dump()
    scene.batch(2, 5, bad=True)
    publisher = scene.tables
    publisher.publish_jobs["rows"]()
    scene.restore(backup)
    scene.batch(2)
    scene.batch(4)
    with pytest.raises(PublishHalted):
        publisher.publish_jobs["rows"]()
    publisher.publish_jobs["quarantine"]()  # reads both batches: the last one will keep its number

    repairer = scene.repairer()
    repairer.apply(repairer.find(), Bus())
    publisher.publish()
    scene.batch(6, bad=True)
    publisher.publish()

    assert scene.shown() == [1, 2, 4, 5, 6]
    assert scene.quarantined() == [ref(number).uri for number in (2, 5, 6)]


def test_bad_lines_are_published_by_a_process_that_did_not_see_their_batch_in_the_rows_table(
    sqlite_scene: Scene,
) -> None:
    scene = sqlite_scene
    scene.published(1)
    publisher = scene.tables
    publisher.publish_jobs["rows"]()
    backup = scene.dump()
    scene.batch(2, 5, bad=True)
    scene.tables.publish_jobs["rows"]()  # another process
    scene.restore(backup)
    scene.batch(2)
    scene.batch(4)
    publisher.publish_jobs["quarantine"]()  # reads three batches, of which the rows table showed the first

    repairer = scene.repairer()
    repairer.apply(repairer.find(), Bus())
    publisher.publish()

    assert scene.shown() == [1, 2, 4, 5]
    assert scene.quarantined() == [ref(number).uri for number in (2, 5)]


def test_a_repair_fences_attempts_that_still_run(scene: Scene) -> None:
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


def test_an_attempt_open_in_the_backup_and_published_is_committed(scene: Scene) -> None:
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


def test_batches_committed_and_never_published_are_processed_again(sqlite_scene: Scene) -> None:
    sqlite_scene.published(1)
    backup = sqlite_scene.dump()
    sqlite_scene.published(2)
    never = sqlite_scene.batch(3)
    sqlite_scene.restore(backup)

    findings = sqlite_scene.repair()

    assert findings.forgotten_objects == [ref(3).uri]
    assert never in sqlite_scene.ledger.abandoned_attempts(PIPELINE)
    sqlite_scene.published(3)
    sqlite_scene.tables.collect_garbage(dry_run=False)
    assert not (sqlite_scene.folder / "table" / "data" / never).exists()
    assert sqlite_scene.shown() == [1, 2, 3]


def test_batches_of_one_commit_are_imported_in_an_order_that_ends_with_the_tip(sqlite_scene: Scene) -> None:
    sqlite_scene.published(1)
    backup = sqlite_scene.dump()
    attempts = [sqlite_scene.batch(2), sqlite_scene.batch(3), sqlite_scene.batch(4, empty=True), sqlite_scene.batch(5)]
    sqlite_scene.tables.publish()
    sqlite_scene.restore(backup)

    sqlite_scene.repair()

    seqs = sqlite_scene.seqs()
    assert seqs[5] == attempts[3]
    assert {attempts[0], attempts[1]} <= set(seqs.values())
    assert sorted(seqs) == [1, 2, 3, 4, 5], "an unknown batch has a number nevertheless"
    assert sqlite_scene.state(4) is None, "no table shows a file of its batch, so it is processed again"
    sqlite_scene.published(4, empty=True)
    sqlite_scene.published(6)
    assert sqlite_scene.shown() == [1, 2, 3, 5, 6]


def test_a_ledger_restored_into_the_middle_of_a_commit_keeps_its_batches(sqlite_scene: Scene) -> None:
    sqlite_scene.published(1)
    sqlite_scene.batch(2)
    sqlite_scene.batch(3, empty=True)
    backup = sqlite_scene.dump()
    sqlite_scene.batch(4)
    sqlite_scene.batch(5)
    sqlite_scene.tables.publish()
    before = sqlite_scene.seqs()
    sqlite_scene.restore(backup)

    sqlite_scene.repair()

    assert sqlite_scene.seqs() == before
    assert sqlite_scene.shown() == [1, 2, 4, 5]


def test_batches_committed_after_the_rollback_follow_the_imported_ones(scene: Scene) -> None:
    scene.published(1)
    backup = scene.dump()
    scene.published(2)
    scene.published(3)
    scene.restore(backup)
    own = [scene.batch(6), scene.batch(7), scene.batch(8)]
    assert_halted(scene)

    findings = scene.repair()

    assert findings.repair is not None
    assert findings.repair.withdrawn == []
    assert [scene.seqs()[seq] for seq in (4, 5, 6)] == own
    assert scene.shown() == [1, 2, 3, 6, 7, 8]
    scene.published(9)
    assert scene.shown() == [1, 2, 3, 6, 7, 8, 9]


def test_a_batch_processed_again_after_the_rollback_is_withdrawn(scene: Scene) -> None:
    scene.published(1)
    backup = scene.dump()
    scene.published(2, 3)
    scene.restore(backup)
    again = scene.batch(3, 4)  # notified once more, since the ledger forgot it
    other = scene.batch(5)
    assert_halted(scene)

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


def test_quarantined_lines_of_an_imported_batch_are_published_after_the_repair(sqlite_scene: Scene) -> None:
    """Killed between the two tables: the quarantine of an imported batch is published after the repair."""
    sqlite_scene.published(1, bad=True)
    backup = sqlite_scene.dump()
    sqlite_scene.batch(2, bad=True)

    def die(at: Step) -> None:
        if at is Step.ROWS_PUBLISHED:
            raise Died

    tables = sqlite_scene.tables
    tables._probe = die
    with pytest.raises(Died):
        tables.publish()
    sqlite_scene.restore(backup)

    sqlite_scene.repair()

    assert sqlite_scene.shown() == [1, 2]
    assert sqlite_scene.quarantined() == sorted([ref(1).uri, ref(2).uri])


def test_a_batch_only_in_the_quarantine_is_imported(sqlite_scene: Scene) -> None:
    sqlite_scene.published(1)
    backup = sqlite_scene.dump()
    sqlite_scene.published(2, bad=True, empty=True)
    sqlite_scene.restore(backup)
    assert_halted(sqlite_scene)

    sqlite_scene.repair()

    assert sqlite_scene.state(2) is ObjectState.PROCESSED
    sqlite_scene.published(3)
    assert sqlite_scene.shown() == [1, 3]
    assert sqlite_scene.quarantined() == [ref(2).uri]


def test_columns_added_after_the_backup_are_restored(sqlite_scene: Scene) -> None:
    wider = SCHEMA.append(pa.field("score", pa.float64()))
    sqlite_scene.published(1)
    backup = sqlite_scene.dump()
    sqlite_scene.published(2, schema=wider)
    sqlite_scene.restore(backup)

    sqlite_scene.repair()

    row = sqlite_scene.ledger.pipeline(PIPELINE)
    assert row is not None
    assert "score" in (row.table_schema or "")
    sqlite_scene.published(3, schema=wider)
    assert sqlite_scene.shown() == [1, 2, 3]


def test_without_records_the_batches_with_unknown_objects_are_named(sqlite_scene: Scene) -> None:
    sqlite_scene.published(1, recorded=False)
    backup = sqlite_scene.dump()
    sqlite_scene.published(2, recorded=False)
    sqlite_scene.published(3)
    sqlite_scene.restore(backup)

    findings = sqlite_scene.repair()

    assert findings.unnamed == [2]
    assert sqlite_scene.state(2) is None
    assert sqlite_scene.state(3) is ObjectState.PROCESSED
    sqlite_scene.tables.collect_garbage(dry_run=False)
    assert sqlite_scene.shown() == [1, 2, 3], "gc leaves published files alone"


def test_a_second_repair_changes_nothing_and_fences_no_attempt(sqlite_scene: Scene) -> None:
    sqlite_scene.published(1)
    backup = sqlite_scene.dump()
    sqlite_scene.published(2)
    sqlite_scene.restore(backup)
    sqlite_scene.repair()
    open_now = sqlite_scene.claim(3)

    findings = sqlite_scene.repair()

    assert findings.repair is None
    assert findings.agrees_at == 2
    assert sqlite_scene.ledger.extend(open_now.attempt_id, lease_seconds=60.0), "no attempt is fenced without need"


@pytest.mark.parametrize("step", [Step.REPAIRING, Step.REPAIRED])
def test_a_repair_killed_at_a_step_can_be_repeated(scene: Scene, step: Step) -> None:
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


def test_a_commit_between_check_and_repair_is_not_overwritten(sqlite_scene: Scene) -> None:
    sqlite_scene.published(1)
    backup = sqlite_scene.dump()
    sqlite_scene.published(2)
    sqlite_scene.restore(backup)
    repairer = sqlite_scene.repairer()
    findings = repairer.find()
    sqlite_scene.batch(3)

    with pytest.raises(TemporaryError, match="plan it again"):
        repairer.apply(findings, Bus())

    sqlite_scene.repair()
    assert sqlite_scene.shown() == [1, 2, 3]


def test_finding_a_repair_changes_nothing(sqlite_scene: Scene) -> None:
    sqlite_scene.published(1)
    held = sqlite_scene.claim(5)
    backup = sqlite_scene.dump()
    sqlite_scene.published(2)
    sqlite_scene.restore(backup)
    before = sqlite_scene.dump()

    findings = sqlite_scene.repairer().find()

    assert findings.open_attempts == [held.attempt_id]
    assert sqlite_scene.dump() == before


def test_another_tables_ledger_is_refused_and_an_empty_one_requires_adopt(sqlite_scene: Scene) -> None:
    empty = sqlite_scene.dump()
    sqlite_scene.published(1)
    sqlite_scene.published(2, bad=True)
    sqlite_scene.restore(empty)
    with pytest.raises(PublishHalted, match="no batch of clicks in common"):
        sqlite_scene.repair()

    findings = sqlite_scene.repair(adopt=True)

    assert findings.agrees_at == 0
    assert sqlite_scene.claim(1, 2).claimed == {}
    sqlite_scene.published(3)
    assert sqlite_scene.shown() == [1, 2, 3]


def test_tables_written_from_two_ledgers_are_refused(sqlite_scene: Scene) -> None:
    """The rows continued from the restored ledger, the quarantine from the lost one: one number, two batches."""
    sqlite_scene.published(1)
    backup = sqlite_scene.dump()
    sqlite_scene.published(2, bad=True, empty=True)
    sqlite_scene.restore(backup)
    sqlite_scene.batch(3)
    tables = sqlite_scene.tables
    with pytest.raises(PublishHalted):
        tables.publish()  # the rows table agrees, and accepts it

    with pytest.raises(TableError, match="two ledgers"):
        sqlite_scene.repair()
    assert sqlite_scene.shown() == [1, 3]


def clean_up_log(scene: Scene) -> None:
    """Let the table's log keep only its last version, as happens after some time."""
    if scene.scheme == "iceberg":
        expire_snapshots(scene)
        return
    table = DeltaTable(str(scene.folder / "table"))
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    table = DeltaTable(str(scene.folder / "table"))
    table.create_checkpoint()
    table.cleanup_metadata()
    assert DeltaTable(str(scene.folder / "table")).version() > 0
    assert not (scene.folder / "table" / "_delta_log" / f"{1:020}.json").exists()


def expire_snapshots(scene: Scene) -> None:
    catalog = CatalogChoice(LocalFiles(scene.folder / "table"), None).current()
    stored = catalog.load()
    assert stored is not None
    newest = stored.metadata.current_snapshot_id
    expired = [one.snapshot_id for one in stored.metadata.snapshots if one.snapshot_id != newest]
    catalog.commit(stored, (), [RemoveSnapshotsUpdate(snapshot_ids=expired)])


def compact_rows(scene: Scene) -> None:
    done = compact(scene.tables.rows, clock=FakeClock(auto_advance=True))
    assert done is not None
    assert done.merged > 1


def test_a_compacted_table_is_imported_from_its_log(sqlite_scene: Scene) -> None:
    sqlite_scene.published(1)
    backup = sqlite_scene.dump()
    sqlite_scene.published(2)
    sqlite_scene.published(3, recorded=False)
    compact_rows(sqlite_scene)
    before = sqlite_scene.seqs()
    sqlite_scene.restore(backup)

    findings = sqlite_scene.repair()

    assert findings.unnamed == [3]
    assert sqlite_scene.seqs() == before
    sqlite_scene.tables.collect_garbage(dry_run=False)
    history = sqlite_scene.tables.rows.history
    assert history is not None
    assert history.load_version(3).dataset().to_table().num_rows == 9, "older versions too"
    sqlite_scene.published(4)
    assert sqlite_scene.shown() == [1, 2, 3, 4]


def test_a_cleaned_up_log_still_names_the_files_to_import(sqlite_scene: Scene) -> None:
    sqlite_scene.published(1)
    backup = sqlite_scene.dump()
    attempts = [sqlite_scene.published(2), sqlite_scene.published(3)]
    clean_up_log(sqlite_scene)
    sqlite_scene.restore(backup)

    findings = sqlite_scene.repair()

    assert (findings.log_is_whole, findings.agrees_at) == (False, 1)
    assert [sqlite_scene.seqs()[seq] for seq in (2, 3)] == attempts
    sqlite_scene.tables.collect_garbage(dry_run=False)
    sqlite_scene.published(4)
    assert sqlite_scene.shown() == [1, 2, 3, 4]


def test_a_table_that_names_no_batch_any_more_is_refused(sqlite_scene: Scene) -> None:
    """After a compaction and a log cleanup, the ledger's own batches cannot be distinguished from others."""
    sqlite_scene.published(1)
    backup = sqlite_scene.dump()
    sqlite_scene.published(2)
    sqlite_scene.published(3)
    compact_rows(sqlite_scene)
    clean_up_log(sqlite_scene)
    sqlite_scene.restore(backup)

    for adopt in (False, True):
        with pytest.raises(PublishHalted, match="in common"):
            sqlite_scene.repair(adopt=adopt)
    assert sqlite_scene.shown() == [1, 2, 3]


def test_a_record_that_names_other_files_is_refused(sqlite_scene: Scene) -> None:
    sqlite_scene.published(1)
    backup = sqlite_scene.dump()
    attempt_id = sqlite_scene.published(2)
    record = load(sqlite_scene.table_paths.table, attempt_id)
    assert record is not None
    save(sqlite_scene.table_paths.table, replace(record, record=replace(record.record, manifest="[]")))
    sqlite_scene.restore(backup)
    with pytest.raises(TableError, match="move it away"):
        sqlite_scene.repair()


def test_a_table_in_s3_is_repaired(moto: AwsServer, tmp_path: Path) -> None:
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
    assert_halted(scene)

    findings = scene.repair()

    assert findings.unnamed == []
    assert scene.seqs() == before
    scene.tables.collect_garbage(dry_run=False)
    scene.published(4)
    assert scene.shown() == [1, 2, 3, 4]
    assert scene.quarantined() == [ref(2).uri]
    ledger.close()


@pytest.mark.parametrize(("rolled_back", "other"), [("rows", "quarantine"), ("quarantine", "rows")])
def test_a_repair_that_would_hide_files_of_a_batch_is_refused(
    sqlite_scene: Scene, rolled_back: str, other: str
) -> None:
    """A publish of one table does not notice that the other one shows batches that the ledger lacks."""
    scene = sqlite_scene
    scene.published(1, bad=True)
    backup = scene.dump()
    scene.batch(2, bad=True)
    scene.batch(3, bad=rolled_back == "rows", empty=rolled_back == "rows")  # its number is free in the table
    scene.batch(4, bad=True)
    scene.tables.publish_jobs[rolled_back]()
    scene.restore(backup)
    scene.batch(5, bad=True)
    scene.tables.publish_jobs[other]()
    with pytest.raises(TableError, match="no numbering of their batches up to 2 fits"):
        scene.repair()
