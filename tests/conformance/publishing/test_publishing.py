"""Publishing from a real ledger into real tables: whatever happens in between, the table has every row once."""

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.conformance.publishing.mill import PIPELINE, SCHEMA, Mill

from penstock.errors import PublishHalted, TableError
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.pipeline.publish import START, Published, check_tip, publish, rows_schema
from penstock.sinks.delta.sink import DeltaTableSink, open_dataset
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock

ROUNDS = 30
THREADS = 4
DEADLINE_SECONDS = 120.0


class Died(BaseException):
    """Stands for the end of the process."""


def published(mill: Mill, *, probe: Probe = no_probe, after: Published | None = None, **sink: Any) -> Published:
    """Publish as one process, which shares only the ledger's file and the table."""
    return publish(
        mill.ledger,
        DeltaTableSink(LocalFiles(mill.root), pipeline=PIPELINE, **sink),
        pipeline=PIPELINE,
        manifest_of=lambda batch: batch.record.manifest,
        schema_of=lambda batch: rows_schema(batch, partition_by=()),
        bus=Bus(),
        probe=probe,
        step=Step.ROWS_PUBLISHED,
        clock=FakeClock(auto_advance=True),
        after=after,
    )


def ids(root: Path) -> list[int]:
    return sorted(row for row in open_dataset(LocalFiles(root)).to_table(columns=["id"])["id"].to_pylist())


def seq(mill: Mill) -> int:
    table = DeltaTableSink(LocalFiles(mill.root), pipeline=PIPELINE).load()
    return table.position.seq if table is not None else 0


def at_once(work: Callable[[], object], threads: int = THREADS) -> None:
    """Run the work in threads that start together; raise what any of them raised."""
    barrier = threading.Barrier(threads)

    def started() -> None:
        barrier.wait(DEADLINE_SECONDS)
        work()

    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(started) for _ in range(threads)]:
            future.result(DEADLINE_SECONDS)


def test_publishing_without_batches_creates_no_table(mill: Mill) -> None:
    assert published(mill) == Published(position=START, read_to=START, table_version=None, batches=0)
    assert not mill.root.exists()


def test_concurrent_publishers_of_the_same_batches_publish_them_once(mill: Mill) -> None:
    expected: list[int] = []
    for number in range(ROUNDS):
        rows = [number * 10, number * 10 + 1]
        mill.batch(rows)
        if number % 3 == 0:
            mill.batch([])
        expected += rows
        at_once(lambda: published(mill))
        assert ids(mill.root) == expected


def test_concurrent_commits_and_publishes_lose_no_row(mill: Mill, tmp_path: Path) -> None:
    """Each thread commits batches of its own and publishes all that are committed, as workers do."""
    numbers = iter(range(10_000))
    lock = threading.Lock()

    def work() -> None:
        for _ in range(8):
            with lock:  # BatchMaker is not thread-safe; publishing is the concurrent part
                mill.batch([next(numbers)])
            published(mill)

    at_once(work)
    assert ids(mill.root) == list(range(8 * THREADS))
    assert seq(mill) == 8 * THREADS


@pytest.mark.parametrize("step", [Step.PUBLISHING, Step.ROWS_PUBLISHED])
def test_the_next_publisher_completes_one_that_died_at_a_step(mill: Mill, step: Step) -> None:
    for number in range(3):
        mill.batch([number])

    def die(at: Step) -> None:
        if at is step:
            raise Died

    with pytest.raises(Died):
        published(mill, probe=die)
    published(mill)
    assert ids(mill.root) == [0, 1, 2]


def test_a_publisher_that_stalls_before_its_commit_publishes_nothing_twice(mill: Mill) -> None:
    mill.batch([1])
    published(mill)
    mill.batch([2])
    overtaken: list[bool] = []

    def stall(at: Step) -> None:
        if at is Step.PUBLISHING and not overtaken:
            overtaken.append(True)
            published(mill)
            mill.batch([3])

    published(mill, probe=stall)
    assert overtaken
    assert ids(mill.root) == [1, 2, 3]


def test_a_stale_publisher_after_batches_without_files_publishes_nothing_twice(mill: Mill) -> None:
    """An empty batch must not move the position without a commit that others can conflict with."""
    mill.batch([1])
    overtaken: list[bool] = []

    def stall(at: Step) -> None:
        if at is Step.PUBLISHING and not overtaken:
            overtaken.append(True)
            mill.batch([])
            published(mill)
            mill.batch([])
            published(mill)

    published(mill, probe=stall)
    assert overtaken
    assert ids(mill.root) == [1]


def test_batches_without_files_are_published_with_the_next_batch_that_has_files(mill: Mill) -> None:
    mill.batch([1])
    mill.batch([])
    mill.batch([])
    done = published(mill)
    assert (seq(mill), done.position.seq, done.read_to.seq) == (1, 1, 3)
    mill.batch([2])
    published(mill, after=done)
    assert seq(mill) == 4
    assert ids(mill.root) == [1, 2]


def test_batches_without_files_alone_create_no_table(mill: Mill) -> None:
    mill.batch([])
    assert published(mill).read_to.seq == 1
    assert not (mill.root / "_delta_log").exists()


def test_an_outdated_earlier_result_is_not_trusted(mill: Mill) -> None:
    mill.batch([1])
    old = published(mill)
    mill.batch([2])
    published(mill)
    mill.batch([3])
    published(mill, after=old)
    assert ids(mill.root) == [1, 2, 3]


def test_columns_of_a_later_batch_are_added_with_it(mill: Mill) -> None:
    wider = SCHEMA.append(pa.field("score", pa.float64()))
    mill.batch([1])
    published(mill)
    mill.batch([2], schema=wider)
    mill.batch([3], schema=wider)
    published(mill)
    assert open_dataset(LocalFiles(mill.root)).schema.names == ["id", "word", "score"]
    assert ids(mill.root) == [1, 2, 3]


def test_a_missing_file_halts_publishing_before_its_commit(mill: Mill) -> None:
    mill.batch([1])
    published(mill)
    mill.batch([2])
    attempt_id = mill.claim()
    files = mill.write(attempt_id, [3])
    mill.commit(attempt_id, files)
    (mill.root / files[0].path).unlink()
    with pytest.raises(PublishHalted, match="does not exist"):
        published(mill)
    assert ids(mill.root) == [1]


def test_publishing_from_a_rolled_back_ledger_is_refused(mill: Mill, tmp_path: Path) -> None:
    mill.batch([1])
    published(mill)
    with sqlite3.connect(tmp_path / "ledger.db") as now, sqlite3.connect(tmp_path / "backup.db") as backup:
        now.backup(backup)
    mill.batch([2])
    published(mill)
    older = Mill(root=mill.root, ledger=Ledger.open(tmp_path / "backup.db"), _numbers=iter(range(100, 200)))
    with pytest.raises(PublishHalted, match="no such batch: the ledger was rolled back"):
        published(older)
    older.batch([3])
    with pytest.raises(PublishHalted, match="another batch of that number"):
        published(older)
    assert ids(mill.root) == [1, 2]
    older.ledger.close()


def test_publishing_from_the_ledger_of_another_table_is_refused(mill: Mill, tmp_path: Path) -> None:
    mill.batch([1])
    published(mill)
    other = Mill(root=mill.root, ledger=Ledger.open(tmp_path / "other.db"))
    other.batch([2])
    with pytest.raises(PublishHalted, match="belongs to another table"):
        published(other)
    other.ledger.close()


def test_check_tip_finds_the_wrong_ledger_without_batches_to_publish(mill: Mill, tmp_path: Path) -> None:
    mill.batch([1])
    published(mill)
    other = Ledger.open(tmp_path / "other.db")
    table = DeltaTableSink(LocalFiles(mill.root), pipeline=PIPELINE).load()
    with pytest.raises(PublishHalted):
        check_tip(other, table, pipeline=PIPELINE, where="here")
    other.close()


def test_the_position_survives_checkpoints_and_log_cleanup(mill: Mill) -> None:
    for number in range(5):
        mill.batch([number])
        published(mill)
    table = DeltaTable(str(mill.root))
    table.create_checkpoint()
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    DeltaTable(str(mill.root)).cleanup_metadata()
    kept = sorted(path.name for path in (mill.root / "_delta_log").glob("*.json"))
    assert kept[0] > f"{1:020}.json"  # the commits that first named our position are deleted
    mill.batch([5])
    published(mill)
    assert seq(mill) == 6
    assert ids(mill.root) == list(range(6))


def test_compaction_and_vacuum_by_other_programs_change_no_rows(mill: Mill) -> None:
    for number in range(4):
        mill.batch([number])
        published(mill)
    DeltaTable(str(mill.root)).optimize.compact()
    DeltaTable(str(mill.root)).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False, keep_versions=None
    )
    mill.batch([4])
    published(mill)
    assert ids(mill.root) == list(range(5))


def test_a_first_batch_with_other_partitions_creates_no_table(mill: Mill) -> None:
    mill.batch([1])
    with pytest.raises(TableError, match="partitioned by nothing and not by id"):
        publish(
            mill.ledger,
            DeltaTableSink(LocalFiles(mill.root), pipeline=PIPELINE, partition_by=["id"]),
            pipeline=PIPELINE,
            manifest_of=lambda batch: batch.record.manifest,
            schema_of=lambda batch: rows_schema(batch, partition_by=["id"]),
            bus=Bus(),
            probe=no_probe,
            step=Step.ROWS_PUBLISHED,
        )
    assert not (mill.root / "_delta_log").exists()
