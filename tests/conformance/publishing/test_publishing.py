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
from tests.conformance.publishing.batch_maker import PIPELINE, SCHEMA, BatchMaker, has_table, shown_ids

from penstock.errors import PublishHalted, TableError
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.pipeline.publish import Published, check_tip, publish, rows_schema
from penstock.pipeline.publish_chunk import START
from penstock.testing import FakeClock

ROUNDS = 30
THREADS = 4
DEADLINE_SECONDS = 120.0


class Died(BaseException):
    """Simulates the death of the process."""


def published(maker: BatchMaker, *, probe: Probe = no_probe, after: Published | None = None, **sink: Any) -> Published:
    """Publish as one process, which shares only the ledger's file and the table."""
    return publish(
        maker.ledger,
        maker.sink(**sink),
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
    return shown_ids(root)


def seq(maker: BatchMaker) -> int:
    table = maker.sink().load()
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


def test_publishing_without_batches_creates_no_table(maker: BatchMaker) -> None:
    assert published(maker) == Published(position=START, read_to=START, table_version=None, batches=0)
    assert not maker.root.exists()


def test_concurrent_publishers_of_the_same_batches_publish_them_once(maker: BatchMaker) -> None:
    expected: list[int] = []
    for number in range(ROUNDS):
        rows = [number * 10, number * 10 + 1]
        maker.batch(rows)
        if number % 3 == 0:
            maker.batch([])
        expected += rows
        at_once(lambda: published(maker))
        assert ids(maker.root) == expected


def test_concurrent_commits_and_publishes_lose_no_row(maker: BatchMaker, tmp_path: Path) -> None:
    """Each thread commits batches of its own and publishes all that are committed, as workers do."""
    numbers = iter(range(10_000))
    lock = threading.Lock()

    def work() -> None:
        for _ in range(8):
            with lock:  # BatchMaker is not thread-safe; publishing is the concurrent part
                maker.batch([next(numbers)])
            published(maker)

    at_once(work)
    assert ids(maker.root) == list(range(8 * THREADS))
    assert seq(maker) == 8 * THREADS


@pytest.mark.parametrize("step", [Step.PUBLISHING, Step.ROWS_PUBLISHED])
def test_the_next_publisher_completes_one_that_died_at_a_step(maker: BatchMaker, step: Step) -> None:
    for number in range(3):
        maker.batch([number])

    def die(at: Step) -> None:
        if at is step:
            raise Died

    with pytest.raises(Died):
        published(maker, probe=die)
    published(maker)
    assert ids(maker.root) == [0, 1, 2]


def test_a_publisher_that_stalls_before_its_commit_publishes_nothing_twice(maker: BatchMaker) -> None:
    maker.batch([1])
    published(maker)
    maker.batch([2])
    overtaken: list[bool] = []

    def stall(at: Step) -> None:
        if at is Step.PUBLISHING and not overtaken:
            overtaken.append(True)
            published(maker)
            maker.batch([3])

    published(maker, probe=stall)
    assert overtaken
    assert ids(maker.root) == [1, 2, 3]


def test_a_stale_publisher_after_batches_without_files_publishes_nothing_twice(maker: BatchMaker) -> None:
    """An empty batch must not move the position without a commit that others can conflict with."""
    maker.batch([1])
    overtaken: list[bool] = []

    def stall(at: Step) -> None:
        if at is Step.PUBLISHING and not overtaken:
            overtaken.append(True)
            maker.batch([])
            published(maker)
            maker.batch([])
            published(maker)

    published(maker, probe=stall)
    assert overtaken
    assert ids(maker.root) == [1]


def test_batches_without_files_are_published_with_the_next_batch_that_has_files(maker: BatchMaker) -> None:
    maker.batch([1])
    maker.batch([])
    maker.batch([])
    done = published(maker)
    assert (seq(maker), done.position.seq, done.read_to.seq) == (1, 1, 3)
    maker.batch([2])
    published(maker, after=done)
    assert seq(maker) == 4
    assert ids(maker.root) == [1, 2]


def test_batches_without_files_alone_create_no_table(maker: BatchMaker) -> None:
    maker.batch([])
    assert published(maker).read_to.seq == 1
    assert not has_table(maker.root)


def test_an_outdated_earlier_result_is_not_trusted(maker: BatchMaker) -> None:
    maker.batch([1])
    old = published(maker)
    maker.batch([2])
    published(maker)
    maker.batch([3])
    published(maker, after=old)
    assert ids(maker.root) == [1, 2, 3]


def test_columns_of_a_later_batch_are_added_with_it(maker: BatchMaker) -> None:
    wider = SCHEMA.append(pa.field("score", pa.float64()))
    maker.batch([1])
    published(maker)
    maker.batch([2], schema=wider)
    maker.batch([3], schema=wider)
    published(maker)
    table = maker.sink().load()
    assert table is not None
    assert table.schema.names == ["id", "word", "score"]
    assert ids(maker.root) == [1, 2, 3]


def test_a_missing_file_halts_publishing_before_its_commit(maker: BatchMaker) -> None:
    maker.batch([1])
    published(maker)
    maker.batch([2])
    attempt_id = maker.claim()
    files = maker.write(attempt_id, [3])
    maker.commit(attempt_id, files)
    (maker.root / files[0].path).unlink()
    with pytest.raises(PublishHalted, match="does not exist"):
        published(maker)
    assert ids(maker.root) == [1]


def test_publishing_from_a_rolled_back_ledger_is_refused(maker: BatchMaker, tmp_path: Path) -> None:
    maker.batch([1])
    published(maker)
    with sqlite3.connect(tmp_path / "ledger.db") as now, sqlite3.connect(tmp_path / "backup.db") as backup:
        now.backup(backup)
    maker.batch([2])
    published(maker)
    older = BatchMaker(
        root=maker.root, ledger=Ledger.open(tmp_path / "backup.db"), scheme=maker.scheme, _numbers=iter(range(100, 200))
    )
    with pytest.raises(PublishHalted, match="no such batch: the ledger was rolled back"):
        published(older)
    older.batch([3])
    with pytest.raises(PublishHalted, match="another batch with that number"):
        published(older)
    assert ids(maker.root) == [1, 2]
    older.ledger.close()


def test_publishing_from_the_ledger_of_another_table_is_refused(maker: BatchMaker, tmp_path: Path) -> None:
    maker.batch([1])
    published(maker)
    other = BatchMaker(root=maker.root, ledger=Ledger.open(tmp_path / "other.db"), scheme=maker.scheme)
    other.batch([2])
    with pytest.raises(PublishHalted, match="belongs to another table"):
        published(other)
    other.ledger.close()


def test_check_tip_finds_the_wrong_ledger_without_batches_to_publish(maker: BatchMaker, tmp_path: Path) -> None:
    maker.batch([1])
    published(maker)
    other = Ledger.open(tmp_path / "other.db")
    table = maker.sink().load()
    with pytest.raises(PublishHalted):
        check_tip(other, table, pipeline=PIPELINE, where="here")
    other.close()


def test_the_position_survives_checkpoints_and_log_cleanup(delta_maker: BatchMaker) -> None:
    for number in range(5):
        delta_maker.batch([number])
        published(delta_maker)
    table = DeltaTable(str(delta_maker.root))
    table.create_checkpoint()
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    DeltaTable(str(delta_maker.root)).cleanup_metadata()
    kept = sorted(path.name for path in (delta_maker.root / "_delta_log").glob("*.json"))
    assert kept[0] > f"{1:020}.json"  # the commits that first named our position are deleted
    delta_maker.batch([5])
    published(delta_maker)
    assert seq(delta_maker) == 6
    assert ids(delta_maker.root) == list(range(6))


def test_compaction_and_vacuum_by_other_programs_change_no_rows(delta_maker: BatchMaker) -> None:
    for number in range(4):
        delta_maker.batch([number])
        published(delta_maker)
    DeltaTable(str(delta_maker.root)).optimize.compact()
    DeltaTable(str(delta_maker.root)).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False, keep_versions=None
    )
    delta_maker.batch([4])
    published(delta_maker)
    assert ids(delta_maker.root) == list(range(5))


def test_a_first_batch_with_other_partitions_creates_no_table(maker: BatchMaker) -> None:
    maker.batch([1])
    with pytest.raises(TableError, match="partitioned by nothing and not by id"):
        publish(
            maker.ledger,
            maker.sink(partition_by=["id"]),
            pipeline=PIPELINE,
            manifest_of=lambda batch: batch.record.manifest,
            schema_of=lambda batch: rows_schema(batch, partition_by=["id"]),
            bus=Bus(),
            probe=no_probe,
            step=Step.ROWS_PUBLISHED,
        )
    assert not has_table(maker.root)
