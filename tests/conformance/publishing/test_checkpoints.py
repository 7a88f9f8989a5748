"""Checkpoints of a Delta table's log: whatever happens to one, the table has every row once, and a publish succeeds."""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from tests.conformance.publishing.batch_maker import PIPELINE, SCHEMA, BatchMaker
from tests.conformance.publishing.test_publishing import Died, at_once, ids, seq
from tests.conformance.sinks.test_delta_log import LONG_AGO, checkpoints, set_checkpoint_interval

from penstock.events import Bus, CheckpointFailed, Event
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.pipeline.checkpoints import CheckpointWriter
from penstock.pipeline.publish import publish, rows_schema
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock

HINT = "_last_checkpoint"
Fault = Callable[[DeltaTable], None]


class Process:
    """One process that publishes. ``events`` are those that it emitted."""

    def __init__(self, maker: BatchMaker) -> None:
        self._maker = maker
        self.events: list[Event] = []
        self._bus = Bus(self.events.append)
        self._checkpoints = CheckpointWriter(pipeline=PIPELINE, sink=maker.sink().uri, bus=self._bus)

    def publish(self, *, probe: Probe = no_probe) -> None:
        publish(
            self._maker.ledger,
            self._maker.sink(),
            pipeline=PIPELINE,
            manifest_of=lambda batch: batch.record.manifest,
            schema_of=lambda batch: rows_schema(batch, partition_by=()),
            bus=self._bus,
            probe=probe,
            step=Step.ROWS_PUBLISHED,
            clock=FakeClock(auto_advance=True),
            checkpoints=self._checkpoints,
        )

    @property
    def warnings(self) -> list[Event]:
        return [event for event in self.events if isinstance(event, CheckpointFailed)]


def published(maker: BatchMaker, row: int, *, probe: Probe = no_probe) -> None:
    """Publish a batch of one row, as a new process."""
    maker.batch([row])
    Process(maker).publish(probe=probe)


def dying_at(step: Step) -> Probe:
    def probe(reached: Step) -> None:
        if reached is step:
            raise Died

    return probe


def log(maker: BatchMaker) -> Path:
    return maker.root / "_delta_log"


def checkpoint_of(maker: BatchMaker, version: int) -> Path:
    return log(maker) / f"{version:020d}.checkpoint.parquet"


@pytest.fixture
def eager(delta_maker: BatchMaker) -> BatchMaker:
    """Return a maker whose table has the row 0 and a checkpoint after every commit. Its newest version is 2."""
    published(delta_maker, 0)
    set_checkpoint_interval(delta_maker.root, 1)
    return delta_maker


@pytest.fixture
def hurt(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fault], None]:
    """Return a function that replaces the library's writing of checkpoints, once."""
    real = DeltaTable.create_checkpoint

    def replaced(fault: Fault) -> None:
        def create(table: DeltaTable) -> None:
            monkeypatch.setattr(DeltaTable, "create_checkpoint", real)
            fault(table)

        monkeypatch.setattr(DeltaTable, "create_checkpoint", create)

    return replaced


@pytest.mark.parametrize(
    ("step", "left"),
    [(Step.ROWS_PUBLISHED, []), (Step.CHECKPOINTING, []), (Step.CHECKPOINTED, [3])],
    ids=lambda value: value.value if isinstance(value, Step) else "",
)
def test_the_next_publisher_continues_after_one_that_died_beside_a_checkpoint(
    eager: BatchMaker, step: Step, left: list[int]
) -> None:
    with pytest.raises(Died):
        published(eager, 1, probe=dying_at(step))
    assert (checkpoints(eager.root), ids(eager.root), seq(eager)) == (left, [0, 1], 2)
    published(eager, 2)
    assert (checkpoints(eager.root), ids(eager.root), seq(eager)) == ([*left, 4], [0, 1, 2], 3)


def half_written(table: DeltaTable) -> None:
    """Die as the library does while it writes the file, which has another name until it is whole."""
    Path(f"{table.table_uri.removeprefix('file://')}/_delta_log/{table.version():020d}.checkpoint.parquet#1").touch()
    raise Died


def without_hint(table: DeltaTable) -> None:
    """Die between the file and its hint."""
    table.create_checkpoint()
    (Path(table.table_uri.removeprefix("file://")) / "_delta_log" / HINT).unlink()
    raise Died


def with_torn_hint(table: DeltaTable) -> None:
    table.create_checkpoint()
    hint = Path(table.table_uri.removeprefix("file://")) / "_delta_log" / HINT
    hint.write_bytes(hint.read_bytes()[:10])
    raise Died


@pytest.mark.parametrize("fault", [half_written, without_hint, with_torn_hint])
def test_the_next_publisher_continues_after_one_that_died_while_it_wrote_a_checkpoint(
    eager: BatchMaker, hurt: Callable[[Fault], None], fault: Fault
) -> None:
    published(eager, 1)
    hurt(fault)
    with pytest.raises(Died):
        published(eager, 2)
    assert (ids(eager.root), seq(eager)) == ([0, 1, 2], 3)
    published(eager, 3)
    assert (checkpoints(eager.root)[-1], ids(eager.root), seq(eager)) == (5, [0, 1, 2, 3], 4)


@pytest.mark.parametrize(
    "error", [OSError("disk full"), DeltaError("no"), ValueError("no"), RuntimeError("no")], ids=repr
)
def test_a_checkpoint_that_fails_fails_no_publish_and_is_reported_once_in_a_process(
    eager: BatchMaker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(DeltaTable, "create_checkpoint", fail)
    process, other = Process(eager), Process(eager)
    for row in (1, 2):
        eager.batch([row])
        process.publish()
    eager.batch([3])
    other.publish()
    assert (ids(eager.root), seq(eager), checkpoints(eager.root)) == ([0, 1, 2, 3], 4, [])
    uri = LocalFiles(eager.root).uri
    assert process.warnings == [
        CheckpointFailed(
            pipeline=PIPELINE,
            sink=uri,
            version=3,
            error=f"The checkpoint of version 3 of the table {uri} cannot be written: {error}",
        )
    ]
    assert len(other.warnings) == 1
    monkeypatch.undo()
    eager.batch([4])
    process.publish()
    assert (ids(eager.root), checkpoints(eager.root)) == ([0, 1, 2, 3, 4], [6])


def test_a_checkpoint_is_durable_before_the_commits_that_it_replaces_are_deleted(
    eager: BatchMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real, clean_up = os.fsync, DeltaTable.cleanup_metadata

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    def deleting(table: DeltaTable) -> None:
        whole, folder = checkpoint_of(eager, 3).stat().st_ino, log(eager).stat().st_ino
        assert whole in synced
        assert folder in synced[synced.index(whole) :], "its name may be lost"
        synced.clear()
        clean_up(table)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(DeltaTable, "cleanup_metadata", deleting)
    for entry in log(eager).glob("*.json"):
        os.utime(entry, (LONG_AGO, LONG_AGO))
    published(eager, 1)
    assert not synced, "commits were not deleted last"
    assert not (log(eager) / f"{0:020d}.json").exists()


def test_a_cleanup_that_fails_is_left_to_the_next_checkpoint(
    eager: BatchMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(DeltaTable, "cleanup_metadata", fail)
    process = Process(eager)
    eager.batch([1])
    process.publish()
    assert (ids(eager.root), checkpoints(eager.root), process.warnings) == ([0, 1], [3], [])


def test_an_older_checkpoint_that_is_written_after_a_newer_one_changes_nothing(eager: BatchMaker) -> None:
    """Two processes write checkpoints at once. The library keeps the newer hint; other writers may not."""

    def overtaken(reached: Step) -> None:
        if reached is Step.CHECKPOINTING and not checkpoints(eager.root):
            published(eager, 2)
            assert checkpoints(eager.root) == [4]

    published(eager, 1, probe=overtaken)
    assert checkpoints(eager.root) == [3, 4]
    (log(eager) / HINT).write_text('{"version":3,"size":6}')
    assert (ids(eager.root), seq(eager)) == ([0, 1, 2], 3)
    published(eager, 3)
    assert (ids(eager.root), seq(eager), checkpoints(eager.root)) == ([0, 1, 2, 3], 4, [3, 4, 5])


def test_checkpoints_of_publishers_at_once_lose_no_row(eager: BatchMaker) -> None:
    for row in range(1, 25):
        eager.batch([row])
        if row % 4 == 0:
            at_once(lambda: Process(eager).publish())
    assert (ids(eager.root), seq(eager)) == (list(range(25)), 25)
    assert checkpoints(eager.root)


def test_a_half_written_checkpoint_hides_no_commit_from_readers(
    eager: BatchMaker, hurt: Callable[[Fault], None]
) -> None:
    """Commits that a checkpoint hides are made again, see `penstock.pipeline.overwritten`."""
    hurt(half_written)
    with pytest.raises(Died):
        published(eager, 1)
    commit_log = eager.sink().commit_log
    assert commit_log is not None
    assert commit_log.listing(after=-1).checkpoints == []
    published(eager, 2)
    assert commit_log.listing(after=-1).checkpoints == [4]


def test_a_commit_of_columns_leaves_its_checkpoint_to_the_next_append(eager: BatchMaker) -> None:
    """The library's own ones are not durable when it deletes the commits before them."""
    eager.sink().ensure_schema(pa.schema([*SCHEMA, pa.field("more", pa.int64())]))
    assert checkpoints(eager.root) == []
    published(eager, 1)
    assert (checkpoints(eager.root), ids(eager.root)) == ([5], [0, 1])
