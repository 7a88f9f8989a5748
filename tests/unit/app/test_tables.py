"""The rows and quarantine tables of a pipeline: created, published, counted and swept together."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.conformance.publishing.batch_maker import BatchMaker as Mill

from penstock.app.paths import TablePaths, table_paths
from penstock.app.tables import Tables
from penstock.errors import PublishHalted, TableError
from penstock.events import Bus, CheckpointFailed, Event, JobFailed
from penstock.ledger import Ledger
from penstock.ledger.queries import Queries
from penstock.ledger.records import BatchRow
from penstock.ledger.retractions import Retraction
from penstock.messaging.steps import Step
from penstock.pipeline.maintenance import gc
from penstock.pipeline.quarantine_progress import RECORD_EVERY_BATCHES
from penstock.pipeline.spark.source.quarantine import QUARANTINE_SCHEMA
from penstock.sinks.delta import sink
from penstock.sinks.delta.sink import open_dataset
from penstock.sinks.manifest import DataFile
from penstock.sinks.parquet import list_files


@pytest.fixture
def paths(tmp_path: Path) -> TablePaths:
    return table_paths(tmp_path / "clicks")


@pytest.fixture
def mill(paths: TablePaths) -> Iterator[Mill]:
    ledger = Ledger.open("sqlite://")
    yield Mill(root=Path(str(paths.table)), ledger=ledger, pipeline=paths.pipeline)
    ledger.close()


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def tables(paths: TablePaths, mill: Mill, events: list[Event]) -> Tables:
    return Tables(paths, mill.ledger, bus=Bus(events.append))


def write_quarantine(paths: TablePaths, attempt_id: str) -> Sequence[DataFile]:
    schema = QUARANTINE_SCHEMA
    directory = Path(str(paths.quarantine)) / "data" / attempt_id / "r0"
    directory.mkdir(parents=True)
    row = {"object": "file:///x", "offset": 0, "raw": b"{", "reason": "malformed", "detail": ""}
    pq.write_table(pa.Table.from_pylist([row], schema=schema), directory / "bad.parquet")
    return list_files(paths.quarantine, f"data/{attempt_id}/r0", partition_by=(), schema=schema)


def commit_quarantined_batch(paths: TablePaths, mill: Mill, ids: Sequence[int]) -> None:
    attempt_id = mill.claim()
    mill.commit(attempt_id, mill.write(attempt_id, ids), quarantine=write_quarantine(paths, attempt_id))


def test_no_table_is_created_without_a_commit(tables: Tables, paths: TablePaths) -> None:
    tables.publish()
    assert (tables.version(), tables.has_quarantine(), tables.unpublished()) == (None, False, 0)
    assert not Path(str(paths.table)).exists()


def test_the_quarantine_is_created_with_the_first_quarantined_line(
    tables: Tables, paths: TablePaths, mill: Mill
) -> None:
    mill.batch([1])
    tables.publish()
    assert not tables.has_quarantine()
    commit_quarantined_batch(paths, mill, [2])
    tables.publish()
    assert tables.has_quarantine()
    assert open_dataset(paths.table).count_rows() == 2
    assert open_dataset(paths.quarantine).to_table()["reason"].to_pylist() == ["malformed"]


@pytest.fixture
def batches_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of all batches that are read from the ledger one by one."""
    read: list[int] = []
    batches = Queries.batches

    def recording(queries: Queries, pipeline: str, *, after_seq: int, limit: int) -> Sequence[BatchRow]:
        page = batches(queries, pipeline, after_seq=after_seq, limit=limit)
        read.extend(batch.seq for batch in page)
        return page

    monkeypatch.setattr(Queries, "batches", recording)
    return read


def test_a_process_reads_no_old_batches_to_learn_that_none_has_bad_lines(
    paths: TablePaths, mill: Mill, batches_read: list[int]
) -> None:
    for number in range(3 * RECORD_EVERY_BATCHES):
        mill.batch([number])
    Tables(paths, mill.ledger, bus=Bus()).publish()
    for number in range(RECORD_EVERY_BATCHES // 2):
        mill.batch([number])
    Tables(paths, mill.ledger, bus=Bus()).publish()
    batches_read.clear()
    later = Tables(paths, mill.ledger, bus=Bus())
    assert later.unpublished() == 0
    for job in ("quarantine", "quarantine", "rows", "quarantine"):
        later.publish_jobs[job]()
    assert min(batches_read) >= 3 * RECORD_EVERY_BATCHES - 1
    assert later.visible_to == 3 * RECORD_EVERY_BATCHES + RECORD_EVERY_BATCHES // 2

    commit_quarantined_batch(paths, mill, [1])
    assert Tables(paths, mill.ledger, bus=Bus()).unpublished() == 1
    Tables(paths, mill.ledger, bus=Bus()).publish()
    assert open_dataset(paths.quarantine).count_rows() == 1


def test_a_publish_of_the_quarantine_looks_up_no_batch_if_none_has_bad_lines(
    tables: Tables, mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a batch or a record was looked up")

    mill.batch([0])
    tables.publish()
    for number in (1, 2):
        with monkeypatch.context() as refusing:
            refusing.setattr(Queries, "batch", refuse)
            refusing.setattr(Ledger, "progress", refuse)
            tables.publish_jobs["quarantine"]()
            mill.batch([number])
            tables.publish_jobs["quarantine"]()
        tables.publish_jobs["rows"]()


def test_a_process_that_dies_after_the_record_of_batches_without_bad_lines_loses_none(
    paths: TablePaths, mill: Mill
) -> None:
    class Died(BaseException):
        pass

    def die(step: Step) -> None:
        if step is Step.NO_BAD_LINES_RECORDED:
            raise Died

    for number in range(RECORD_EVERY_BATCHES):
        mill.batch([number])
    with pytest.raises(Died):
        Tables(paths, mill.ledger, bus=Bus(), probe=die).publish()
    assert mill.ledger.progress(paths.pipeline, "no bad lines after 0") == RECORD_EVERY_BATCHES
    commit_quarantined_batch(paths, mill, [1])
    later = Tables(paths, mill.ledger, bus=Bus())
    assert later.unpublished() == 1
    later.publish()
    assert open_dataset(paths.quarantine).count_rows() == 1


def test_the_record_of_batches_without_bad_lines_is_for_one_position_of_the_table(
    paths: TablePaths, mill: Mill
) -> None:
    commit_quarantined_batch(paths, mill, [1])
    for number in range(RECORD_EVERY_BATCHES + 1):
        mill.batch([number])
    Tables(paths, mill.ledger, bus=Bus()).publish()
    assert mill.ledger.progress(paths.pipeline, "no bad lines after 1") == RECORD_EVERY_BATCHES + 2
    shutil.rmtree(Path(str(paths.quarantine)) / "_delta_log")  # a person deletes the table
    Tables(paths, mill.ledger, bus=Bus()).publish()
    assert open_dataset(paths.quarantine).count_rows() == 1, "it is there again"


def test_a_record_of_batches_that_the_ledger_has_lost_is_ignored(paths: TablePaths, mill: Mill) -> None:
    mill.ledger.advance_progress(paths.pipeline, "no bad lines after 0", 7)
    commit_quarantined_batch(paths, mill, [1])
    tables = Tables(paths, mill.ledger, bus=Bus())
    assert tables.unpublished() == 1
    tables.publish()
    assert open_dataset(paths.quarantine).count_rows() == 1


def test_unpublished_counts_batches_with_files_missing_in_either_table(
    tables: Tables, paths: TablePaths, mill: Mill
) -> None:
    mill.batch([1])
    mill.batch([])
    commit_quarantined_batch(paths, mill, [2])
    assert tables.unpublished() == 2

    class Died(BaseException):
        pass

    def die(step: Step) -> None:
        if step is Step.ROWS_PUBLISHED:
            raise Died

    with pytest.raises(Died):
        Tables(paths, mill.ledger, bus=Bus(), probe=die).publish()
    assert tables.unpublished() == 1
    tables.publish()
    mill.batch([])
    assert tables.unpublished() == 0


def test_checkpoints_that_fail_are_reported_once_for_each_table(
    tables: Tables, paths: TablePaths, mill: Mill, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: DeltaTable) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(sink, "CHECKPOINT_INTERVAL", 1)
    monkeypatch.setattr(DeltaTable, "create_checkpoint", fail)
    for row in range(3):
        commit_quarantined_batch(paths, mill, [row])
        tables.publish()
    failed = [event.sink for event in events if isinstance(event, CheckpointFailed)]
    assert failed == [paths.table.uri, paths.quarantine.uri]
    assert (open_dataset(paths.table).count_rows(), open_dataset(paths.quarantine).count_rows()) == (3, 3)


def test_other_partition_columns_are_refused_for_writing_only(tables: Tables, paths: TablePaths, mill: Mill) -> None:
    mill.batch([1])
    tables.publish()
    with pytest.raises(TableError, match="--partition-by"):
        Tables(paths, mill.ledger, partition_by=["id"], bus=Bus()).publish()
    assert Tables(paths, mill.ledger, partition_by=None, bus=Bus()).version() == 1


def write_abandoned(mill: Mill) -> Path:
    attempt_id = mill.claim()
    files = mill.write(attempt_id, [9])
    mill.ledger.abandon(attempt_id, reason="test", outcome="failed", uncounted=False, unattributed=False)
    return mill.root / files[0].path


def test_a_sweep_deletes_files_of_abandoned_attempts(tables: Tables, paths: TablePaths, mill: Mill) -> None:
    mill.batch([1])
    tables.publish()
    garbage = write_abandoned(mill)
    assert tables.collect_garbage(dry_run=True).files == 1
    assert garbage.exists()
    tables.sweep()
    assert not garbage.exists()
    assert open_dataset(paths.table).count_rows() == 1


def test_a_failed_sweep_is_reported_and_not_raised(
    tables: Tables, mill: Mill, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    garbage = write_abandoned(mill)

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        tables.sweep()
    assert [type(event) for event in events] == [JobFailed]
    assert garbage.exists()


def test_a_sweep_without_abandoned_attempts_reads_no_manifest(
    tables: Tables, mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    mill.batch([1])
    tables.publish()

    def fail(manifest: str) -> tuple[DataFile, ...]:
        raise AssertionError("a manifest was read")

    monkeypatch.setattr(gc, "decode", fail)
    tables.sweep()
    write_abandoned(mill)
    with pytest.raises(AssertionError, match="a manifest was read"):
        tables.sweep()


def test_a_sweep_with_the_ledger_of_another_table_deletes_nothing(
    tables: Tables, paths: TablePaths, mill: Mill
) -> None:
    """In a ledger restored from a backup, attempts may be abandoned whose rows are in the table."""
    mill.batch([1])
    tables.publish()
    restored = Mill(root=mill.root, ledger=Ledger.open("sqlite://"), pipeline=paths.pipeline)
    garbage = write_abandoned(restored)
    restored_tables = Tables(paths, restored.ledger, bus=Bus())
    with pytest.raises(PublishHalted):
        restored_tables.collect_garbage(dry_run=False)
    with pytest.raises(PublishHalted):
        restored_tables.sweep()
    assert garbage.exists()
    restored.ledger.close()


def test_a_batch_that_only_replaces_rows_changes_a_table_that_exists(tables: Tables, mill: Mill) -> None:
    def retract(attempt_id: str) -> None:
        mill.ledger.retractions.retract(
            Retraction(
                pipeline=mill.pipeline, attempt_id=attempt_id, worker="w", addresses=["s3://landing/0"], reason="r"
            )
        )

    retract("before-the-table")
    assert (tables.unpublished(), tables.shown_to(0, 1)) == (0, 1)
    mill.batch([1])
    retract("after-it")
    assert (tables.unpublished(), tables.shown_to(0, 3)) == (2, 1)
    tables.publish()
    assert (tables.unpublished(), tables.shown_to(0, 3)) == (0, 3)
    retract("last")
    assert (tables.unpublished(), tables.shown_to(0, 4)) == (1, 3)
    tables.publish()
    assert (tables.unpublished(), tables.shown_to(0, 4), tables.visible_to) == (0, 4, 4)
