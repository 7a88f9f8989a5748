"""Batches that are merged by key, on real tables: conflicts, deaths, other writers, compaction and gc."""

import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.conformance.publishing.batch_maker import OVER
from tests.conformance.publishing.merge_maker import SCHEMA, Change, MergeMaker, folded, leftovers
from tests.services.spark_writer import PendingCommit, SparkWriter

from penstock.errors import PublishHalted, UsageError
from penstock.events import BatchPublished, Bus, Event
from penstock.ledger import Ledger
from penstock.ledger.merges import check_merge, check_not_merged
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.pipeline.batch_record import TOMBSTONES_FOLDER
from penstock.pipeline.maintenance.compact import compact
from penstock.pipeline.maintenance.gc import collect
from penstock.pipeline.merging import tombstones
from penstock.pipeline.merging.declaration import Merge
from penstock.pipeline.merging.tombstones import FOLDED_FOLDER, KEPT_SECONDS, fold_deletes
from penstock.pipeline.spark.fold import DELETES, move_deletes
from penstock.sinks.parquet import list_files
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock

DEADLINE_SECONDS = 120.0
WALKS, STEPS = 6, 20


class Died(BaseException):
    """Simulates the death of the process."""


@pytest.fixture(params=["delta", "iceberg"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MergeMaker]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield MergeMaker(root=tmp_path.resolve() / "t", ledger=ledger, scheme=request.param)
    ledger.close()


@pytest.fixture
def delta(tmp_path: Path) -> Iterator[MergeMaker]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield MergeMaker(root=tmp_path.resolve() / "t", ledger=ledger)
    ledger.close()


def up(id: int, at: int | None, value: float = 0.0, *, part: str | None = "p", object: str = "o") -> Change:
    return Change(id=id, at=at, value=value, part=part, object=object)


def gone(id: int, at: int | None) -> Change:
    return Change(id=id, at=at, is_delete=True)


def dying_at(step: Step) -> Probe:
    def probe(at: Step) -> None:
        if at is step:
            raise Died

    return probe


def merged(table: MergeMaker, *changes: Change) -> BatchPublished:
    """Commit and publish a batch after all others, and return the event of its commit to the table."""
    table.changes(changes)
    events: list[Event] = []
    table.publish(note=events.append)
    return [event for event in events if isinstance(event, BatchPublished)][-1]


def swept(table: MergeMaker, *, dry_run: bool = False) -> None:
    root = LocalFiles(table.root)
    collect(
        table.ledger,
        pipeline=table.pipeline,
        roots=(root, LocalFiles(table.root.with_name("t_quarantine"))),
        work=root.below("_penstock/work"),
        bus=Bus(),
        probe=no_probe,
        dry_run=dry_run,
    )


def folds(table: MergeMaker, *, now: float = 0.0, probe: Probe = no_probe, files_min: int = 2) -> int:
    root = LocalFiles(table.root)
    return fold_deletes(table.ledger, root, pipeline=table.pipeline, now=now, probe=probe, files_min=files_min)


# What a merge does


def test_rows_are_inserted_updated_deleted_and_left_out(table: MergeMaker) -> None:
    assert merged(table, up(1, 5), up(2, 5), up(3, 5)).merged == _counts(inserted=3)
    found = merged(table, up(1, 6, 1.0), up(2, 4, 9.0), gone(3, 5), up(4, 1))
    assert found.merged == _counts(inserted=1, updated=1, deleted=1, left_out=1)
    assert table.rows() == folded([up(1, 6, 1.0), up(2, 5), up(4, 1)])


def _counts(**found: int) -> dict[str, int]:
    return {"inserted": 0, "updated": 0, "deleted": 0, "left_out": 0, **found}


def test_a_delete_wins_over_an_older_row_that_arrives_later(table: MergeMaker) -> None:
    merged(table, up(9, 1))
    table.changes([gone(1, 5)])
    table.publish()
    assert merged(table, up(1, 5), up(2, 1)).merged == _counts(inserted=1, left_out=1)
    assert [row[0] for row in table.rows()] == [2, 9]
    merged(table, up(1, 6))
    assert [row[0] for row in table.rows()] == [1, 2, 9], "a later row comes in again"


def test_a_delete_before_the_table_exists_is_remembered(table: MergeMaker) -> None:
    table.changes([gone(1, 5)])
    assert table.publish().position.seq == 1, "every merge has a commit, by which a repair finds its deletes"
    table.changes([up(1, 4), up(2, 4)])
    table.publish()
    assert [row[0] for row in table.rows()] == [2]


def test_ties_are_decided_by_content_and_not_by_arrival(table: MergeMaker) -> None:
    first, second = up(1, 1, 1.0, object="z"), up(1, 1, 2.0, object="a")
    for one, other in ((first, second), (second, first)):
        merged(table, one)
        merged(table, other)
        assert table.rows() == [second.row]


def test_a_row_that_is_there_already_is_left_out(table: MergeMaker) -> None:
    merged(table, up(1, 1))
    before = leftovers(table.root)
    assert merged(table, up(1, 1)).merged == _counts(left_out=1)
    assert not [path for path in set(leftovers(table.root)) - set(before) if path.startswith("compacted")]


def test_a_key_whose_partition_changes_moves(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    table = MergeMaker(root=tmp_path / "t", ledger=ledger, partition_by=("part",))
    merged(table, up(1, 1, part="p"), up(2, 1, part="p"))
    merged(table, up(1, 2, part="q"))
    assert table.rows() == [up(1, 2, part="q").row, up(2, 1, part="p").row]
    by_part = MergeMaker(
        root=tmp_path / "u",
        ledger=ledger,
        pipeline="u",
        partition_by=("part",),
        merge=Merge(key=["id", "part"], order_by="at"),
    )
    merged(by_part, up(1, 1, part="p"), up(1, 1, part="q"))
    merged(by_part, up(1, 2, 7.0, part="q"))
    assert by_part.rows() == [up(1, 1, part="p").row, up(1, 2, 7.0, part="q").row]
    ledger.close()


# Deaths and races


@pytest.mark.parametrize("step", [Step.PUBLISHING, Step.REWRITTEN, Step.ROWS_PUBLISHED])
def test_a_publisher_that_dies_leaves_each_key_once(table: MergeMaker, step: Step) -> None:
    merged(table, up(1, 1), up(2, 1), up(3, 1))
    table.changes([up(1, 2), gone(2, 2), up(3, 0), up(4, 1)])
    with pytest.raises(Died):
        table.publish(probe=dying_at(step))
    table.publish()
    assert table.rows() == folded([up(1, 2), up(3, 1), up(4, 1)])


def test_after_a_conflict_the_batch_is_compared_with_the_newer_snapshot(table: MergeMaker) -> None:
    merged(table, up(1, 1), up(2, 1))
    table.changes([up(1, 3), up(2, 3)])
    others: list[Callable[[], object]] = [table.publish]

    def probe(at: Step) -> None:
        if at is Step.REWRITTEN and others:
            others.pop()()
            table.changes([up(2, 5)])

    table.publish(probe=probe)
    assert table.rows() == folded([up(1, 3), up(2, 5)])


def test_a_file_written_for_one_snapshot_is_not_taken_for_another(delta: MergeMaker) -> None:
    merged(delta, up(1, 5))
    delta.changes([up(1, 1), up(2, 1), up(3, 1)])
    others = [foreign_append(delta, 2, at=9)]

    def probe(at: Step) -> None:
        if at is Step.REWRITTEN and others:
            others.pop().put()

    delta.publish(probe=probe)
    assert [row[:2] for row in delta.rows()] == [(1, 5), (2, 9), (3, 1)]


def test_publishers_that_race_merge_each_batch_once(table: MergeMaker) -> None:
    rng = random.Random(7)
    done: list[Change] = []
    for at in range(12):
        changes = [up(rng.randint(1, 6), at, float(number)) for number in range(3)]
        changes.append(gone(rng.randint(1, 6), at - 2))
        table.changes(changes)
        done += changes
    threads = [threading.Thread(target=table.publish) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    table.publish()
    assert table.rows() == folded(done)


# Other work on the table


def test_a_compaction_changes_nothing_that_a_merge_sees(table: MergeMaker) -> None:
    for at in (1, 2, 3):
        merged(table, up(at, at), up(9, at))
    compact(table.sink(partition_by=None), clock=FakeClock(auto_advance=True))
    merged(table, up(2, 9), gone(3, 9), up(9, 1))
    assert table.rows() == folded([up(1, 1), up(2, 9), up(9, 3)])


def test_a_row_deleted_by_another_writer_stays_away_until_another_arrives(delta: MergeMaker) -> None:
    merged(delta, up(1, 5), up(2, 5))
    DeltaTable(delta.root).delete("id = 1")
    merged(delta, up(3, 1))
    assert [row[0] for row in delta.rows()] == [2, 3]
    merged(delta, up(1, 6))
    assert [row[0] for row in delta.rows()] == [1, 2, 3]


def test_a_table_without_a_column_of_the_merge_halts_with_a_sentence(
    table: MergeMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged(table, up(1, 1))
    table.changes([up(1, 2)])
    other = table.ledger.batch(table.pipeline, 2)
    assert other is not None
    monkeypatch.setattr(tombstones, "merge_of", lambda text: Merge(key=["other"], order_by="at"))
    with pytest.raises(PublishHalted, match="The merge needs the column other, and the rows have id, at"):
        table.publish()


def test_gc_deletes_the_deletes_of_abandoned_attempts_only(table: MergeMaker) -> None:
    table.changes([up(1, 1), gone(2, 1)])
    table.publish()
    abandoned = table.claim(lease_seconds=OVER)
    left = table.root / TOMBSTONES_FOLDER / abandoned / "r0" / "deletes-1.parquet"
    left.parent.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), left)
    swept(table)
    assert not left.exists()
    (kept,) = (table.root / TOMBSTONES_FOLDER).rglob("*.parquet")
    assert abandoned not in str(kept)
    merged(table, up(2, 1))
    assert [row[0] for row in table.rows()] == [1]


@pytest.mark.parametrize("step", [Step.DELETES_WRITTEN, None])
def test_deletes_of_a_run_that_dies_are_garbage(table: MergeMaker, step: Step | None) -> None:
    attempt_id = table.claim(lease_seconds=OVER)
    root, run = LocalFiles(table.root), f"data/{attempt_id}/r0"
    table.write_rows(f"{run}/{DELETES}=true", [up(1, 5), up(2, 6)], row_group=2)
    moved = partial(
        move_deletes,
        root,
        run,
        table.merge,
        lambda folder, *, written: list_files(root, folder, partition_by=(), schema=SCHEMA, written=written),
        schema=SCHEMA,
        written=None,
    )
    if step is None:
        (deletes,) = moved(probe=no_probe)
        assert pq.read_table(table.root / deletes.path).to_pylist() == [{"id": 1, "at": 5}, {"id": 2, "at": 6}]
        assert leftovers(table.root) == [deletes.path]
    else:
        with pytest.raises(Died):
            moved(probe=dying_at(step))
        assert len(leftovers(table.root)) == 2
    swept(table)
    assert leftovers(table.root) == []


# Deletes that are folded


def test_folded_deletes_are_read_in_place_of_those_of_batches(
    table: MergeMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged(table, up(100, 1))
    for at in range(1, 5):
        table.changes([gone(1, at), gone(at + 10, at)])
    table.publish()
    assert folds(table, files_min=5) == 0
    assert folds(table, files_min=4) == 4
    assert folds(table, files_min=4) == 0, "one folded file is left"
    (file,) = (table.root / FOLDED_FOLDER).glob("*.parquet")
    assert sorted(pq.read_table(file).select(["id", "at"]).to_pylist(), key=str) == sorted(
        [{"id": 1, "at": 4}, *({"id": at + 10, "at": at} for at in range(1, 5))], key=str
    )
    opened = _opened(monkeypatch)
    merged(table, up(1, 4), up(13, 3), up(14, 5))
    assert [row[0] for row in table.rows()] == [14, 100]
    assert not [path for path in opened if path.startswith(TOMBSTONES_FOLDER)]


def _opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    opened: list[str] = []
    real = LocalFiles.open_input

    def noting(self: LocalFiles, path: str) -> object:
        opened.append(path)
        return real(self, path)

    monkeypatch.setattr(LocalFiles, "open_input", noting)
    return opened


def test_a_fold_that_dies_is_ignored_and_its_file_deleted_later(table: MergeMaker) -> None:
    for at in (1, 2):
        table.changes([gone(at, at)])
    with pytest.raises(Died):
        folds(table, probe=dying_at(Step.DELETES_FOLDED))
    (orphan,) = (table.root / FOLDED_FOLDER).iterdir()
    merged(table, up(1, 1), up(2, 2), up(3, 1))
    assert [row[0] for row in table.rows()] == [3]
    assert folds(table, now=orphan.stat().st_mtime + KEPT_SECONDS + 1) == 2
    assert not orphan.exists()


def test_a_folded_file_with_a_batch_that_the_ledger_lacks_is_not_read(table: MergeMaker) -> None:
    table.changes([gone(1, 1)])
    table.changes([gone(2, 2)])
    merged(table, up(1, 1), up(3, 3))
    table.changes([gone(3, 9)])
    assert folds(table) == 3
    batch = table.ledger.batch(table.pipeline, 3)
    assert batch is not None
    found = tombstones.merge_batch(table.ledger, LocalFiles(table.root), batch)
    assert [file.path.startswith(TOMBSTONES_FOLDER) for file in found.earlier] == [True, True]


# The declaration


def test_another_merge_is_refused_by_the_ledger(table: MergeMaker) -> None:
    table.changes([up(1, 1)])
    table.merge = Merge(key=["id"], order_by="value")
    with pytest.raises(UsageError, match="are merged by key as in"):
        table.changes([up(1, 1)])
    row = table.ledger.ensure_pipeline(table.pipeline)
    check_merge(row, row.merge, table="t", has="this ingest has")
    with pytest.raises(UsageError, match="has no merge: give the same one"):
        check_merge(row, None, table="t", has="this ingest has")
    with pytest.raises(UsageError, match="Retracting objects is not possible"):
        check_not_merged(row, "Retracting objects")


def test_rows_that_were_added_are_not_merged_afterwards(table: MergeMaker) -> None:
    table.commit(table.claim())
    with pytest.raises(UsageError, match="are added as they are"):
        table.changes([up(1, 1)])
    row = table.ledger.ensure_pipeline(table.pipeline)
    with pytest.raises(UsageError, match="were added as they are, and this ingest has a merge"):
        check_merge(row, table.merge.text(), table="t", has="this ingest has")


# Commits that another writer overwrites


def test_a_merge_that_was_overwritten_is_merged_again(delta: MergeMaker) -> None:
    merged(delta, up(1, 1), up(2, 1))
    delta.publish(watched=True)
    late = foreign_append(delta, 100)
    delta.changes([up(1, 2), gone(2, 2), up(3, 1)])
    delta.publish(watched=True)
    late.put()
    delta.publish(watched=True)
    assert rows_of_others(delta) == [100]
    assert own_rows(delta) == folded([up(1, 2), up(3, 1)])


@pytest.mark.parametrize("later", [[up(3, 2), gone(5, 2)], [gone(5, 2)], [up(7, 1)]])
def test_a_merge_that_was_overwritten_before_later_ones_is_put_back(delta: MergeMaker, later: list[Change]) -> None:
    merged(delta, up(1, 1), up(2, 1), up(5, 1))
    delta.publish(watched=True)
    late = foreign_append(delta, 100)
    delta.changes([up(1, 2), up(2, 0), up(3, 1)])
    delta.publish(watched=True)
    delta.changes(later)
    delta.publish(watched=True)
    late.put()
    delta.publish(watched=True)
    assert rows_of_others(delta) == [100]
    assert own_rows(delta) == folded([up(1, 2), up(2, 1), up(3, 1), up(5, 1), *later])


def foreign_append(delta: MergeMaker, id: int, *, at: int = 1) -> PendingCommit:
    rows: dict[str, list[Any]] = {
        "id": [id],
        "at": [at],
        "part": ["x"],
        "value": [0.5],
        "_object": ["foreign"],
        "_offset": [0],
    }
    return SparkWriter(files=LocalFiles(delta.root)).append(rows)


def own_rows(delta: MergeMaker) -> list[tuple[Any, ...]]:
    return [row for row in delta.rows() if row[4] != "foreign"]


def rows_of_others(delta: MergeMaker) -> list[Any]:
    return [row[0] for row in delta.rows() if row[4] == "foreign"]


@pytest.mark.slow  # quick: the two tests before
@pytest.mark.parametrize("seed", range(WALKS * 5))
def test_walks_with_a_writer_that_overwrites(delta: MergeMaker, seed: int) -> None:
    rng = random.Random(seed)
    done: list[Change] = []
    pending: PendingCommit | None = None
    others: list[int] = []
    merged(delta, up(1, 0))
    done.append(up(1, 0))
    delta.publish(watched=True)
    for _ in range(STEPS):
        match rng.choice(["batch", "batch", "publish", "publish", "compact", "begin", "put", "fold"]):
            case "batch":
                changes = [up(rng.randint(1, 4), rng.randint(0, 9), float(rng.randint(0, 3))) for _ in range(2)]
                changes += [gone(rng.randint(1, 4), rng.randint(0, 6))] if rng.random() < 0.4 else []
                delta.changes(changes)
                done += changes
            case "publish":
                delta.publish(watched=True)
            case "compact":
                compact(delta.sink(), clock=FakeClock(auto_advance=True))
            case "begin" if pending is None:
                others.append(100 + len(others))
                pending = foreign_append(delta, others[-1])
            case "put" if pending is not None:
                pending.put()
                pending = None
                delta.publish(watched=True)
            case "fold":
                folds(delta)
            case _:
                pass
    if pending is not None:
        pending.put()
    delta.publish(watched=True)
    delta.publish(watched=True)
    assert own_rows(delta) == folded(done)
    assert sorted(rows_of_others(delta)) == others
