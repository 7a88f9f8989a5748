"""Batches that replace rows: those of the objects that they name leave the table in the commit that shows the batch."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conformance.publishing.batch_maker import PIPELINE, BatchMaker, shown_files
from tests.conformance.publishing.test_compaction import compacted

from penstock.errors import PublishHalted, TemporaryError
from penstock.events import Bus
from penstock.ledger.records import BatchRow
from penstock.messaging.clock import SystemClock
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.pipeline import replacing, rewriting
from penstock.pipeline.maintenance.leftovers import AGE_SECONDS_MIN, collect_leftovers
from penstock.pipeline.publish import Published, publish, rows_schema
from penstock.pipeline.rewriting import MARK, write_file
from penstock.sinks.manifest import DataFile
from penstock.sinks.parquet import WrittenFile
from penstock.storage.files import Files
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock

SCHEMA = pa.schema([("id", pa.int64()), ("_object", pa.string())])
DEADLINE_SECONDS = 120.0
WALKS = 12
STEPS = 14
THREADS = 3


class Died(BaseException):
    """Simulates the death of the process."""


@dataclass(kw_only=True)
class Lake:
    """A table whose rows are of objects, and the rows that it should show once everything is published."""

    maker: BatchMaker
    replaced: dict[int, Collection[str]] = field(default_factory=dict)  # by batch
    wanted: dict[str, list[int]] = field(default_factory=dict)  # ids by object

    def batch(self, rows: Mapping[str, Sequence[int]], *, replaces: Collection[str] = (), files: int = 1) -> int:
        """Commit a batch with these ids by object, whose earlier rows it replaces where told to."""
        attempt_id = self.maker.claim()
        pairs = [(id, name) for name, ids in rows.items() for id in ids]
        written: list[DataFile] = []
        for number in range(files if pairs else 0):
            written += self._write(attempt_id, pairs[number::files], f"part-{number}")
        seq = self.maker.commit(attempt_id, written, schema=SCHEMA)
        self.replaced[seq] = replaces
        for name in replaces:
            self.wanted[name] = []
        for name, ids in rows.items():
            self.wanted.setdefault(name, []).extend(ids)
        return seq

    def _write(self, attempt_id: str, pairs: Sequence[tuple[int, str]], name: str) -> Sequence[DataFile]:
        folder = self.maker.root / "data" / attempt_id / "r0"
        folder.mkdir(parents=True, exist_ok=True)
        table = pa.table([[id for id, _ in pairs], [name for _, name in pairs]], schema=SCHEMA)
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=2)
        info = (folder / f"{name}.parquet").stat()
        return [
            DataFile(
                path=f"data/{attempt_id}/r0/{name}.parquet",
                size_bytes=info.st_size,
                rows=len(pairs),
                modified_at=info.st_mtime,
            )
        ]

    def publish(self, *, probe: Probe = no_probe, after: Published | None = None) -> Published:
        return publish(
            self.maker.ledger,
            self.maker.sink(),
            pipeline=PIPELINE,
            manifest_of=lambda batch: batch.record.manifest,
            schema_of=lambda batch: rows_schema(batch, partition_by=()),
            replaces=self.replaces,
            bus=Bus(),
            probe=probe,
            step=Step.ROWS_PUBLISHED,
            clock=FakeClock(auto_advance=True),
            after=after,
        )

    def replaces(self, batch: BatchRow) -> Collection[str]:
        return self.replaced.get(batch.seq, ())

    def shown(self) -> Counter[tuple[str, int]]:
        found: Counter[tuple[str, int]] = Counter()
        for path in shown_files(self.maker.root):
            table = pq.read_table(path)
            found.update(zip(table["_object"].to_pylist(), table["id"].to_pylist(), strict=True))
        return found

    def check(self) -> None:
        assert self.shown() == Counter((name, id) for name, ids in self.wanted.items() for id in ids)


@pytest.fixture
def lake(maker: BatchMaker) -> Lake:
    return Lake(maker=maker)


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in shown_files(root)}


def test_the_rows_of_a_replaced_object_leave_and_all_others_stay(lake: Lake) -> None:
    lake.batch({"s3://b/a": [1, 2], "s3://b/b": [3]})
    lake.publish()
    lake.batch({"s3://b/a": [10]}, replaces=["s3://b/a"])
    lake.publish()
    lake.check()
    assert lake.shown() == Counter([("s3://b/a", 10), ("s3://b/b", 3)])


def test_rows_of_batches_that_were_not_visible_yet_are_replaced(lake: Lake) -> None:
    lake.batch({"s3://b/a": [1]})
    lake.batch({"s3://b/a": [2]}, replaces=["s3://b/a"])
    lake.batch({"s3://b/c": [4]})
    lake.batch({"s3://b/a": [3], "s3://b/c": [5]}, replaces=["s3://b/a"])
    assert lake.publish().position.seq == 4
    lake.check()


def test_only_files_with_rows_of_the_objects_are_written_again(lake: Lake) -> None:
    for number in range(6):
        lake.batch({f"s3://b/{number}": [number, -number]})
        lake.publish()
    before = names(lake.maker.root)
    lake.batch({"s3://b/3": [33]}, replaces=["s3://b/3"])
    lake.publish()
    after = names(lake.maker.root)
    assert len(before - after) == 1
    assert not any(name.startswith("compacted/") for name in after), "no row of that file was left"
    lake.check()


def test_files_are_read_only_if_their_bounds_leave_room_for_an_object(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.batch({f"s3://b/{name}": [1] for name in ("b", "d", "f")}, files=3)
    lake.publish()
    read: list[object] = []
    iterate = pq.ParquetFile.iter_batches

    def counted(self: pq.ParquetFile, *args: Any, **options: Any) -> Any:
        read.append(options)
        return iterate(self, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    lake.batch({}, replaces=["s3://b/a", "s3://b/c", "s3://b/g"])
    lake.publish()
    assert not read
    lake.check()


def test_rows_are_counted_by_object_and_file(lake: Lake) -> None:
    lake.batch({"s3://b/a": [1, 2, 3], "s3://b/b": [4]}, files=2)
    lake.batch({"s3://b/z": [5]})
    lake.publish()
    history = lake.maker.sink().history
    assert history is not None
    table = history.load()
    assert table is not None
    counted = replacing.count_rows(lake.maker.sink(), table, ["s3://b/a", "s3://b/absent", "s3://b/b"])
    assert {name: (found.rows, found.files) for name, found in counted.items()} == {
        "s3://b/a": (3, 2),
        "s3://b/b": (1, 1),
    }
    lake.check()


def test_a_batch_that_only_removes_moves_the_position_without_files(lake: Lake) -> None:
    lake.batch({"s3://b/a": [1], "s3://b/b": [2]})
    lake.publish()
    lake.batch({}, replaces=["s3://b/a"])
    assert lake.publish().position.seq == 2
    lake.check()
    lake.batch({}, replaces=["s3://b/absent"])
    assert lake.publish().position.seq == 3
    lake.check()


def test_without_a_table_there_is_nothing_to_replace(lake: Lake) -> None:
    lake.batch({}, replaces=["s3://b/a"])
    published = lake.publish()
    assert (published.position.seq, published.visible_to, published.table_version) == (0, 1, None)
    lake.batch({"s3://b/a": [1]}, replaces=["s3://b/a"])
    lake.publish()
    lake.check()


def test_rows_that_a_compaction_moved_are_found(lake: Lake) -> None:
    for number in range(4):
        lake.batch({f"s3://b/{number}": [number], "s3://b/same": [10 + number]})
        lake.publish()
    compacted(lake.maker)
    lake.batch({"s3://b/2": [22]}, replaces=["s3://b/2", "s3://b/same"])
    lake.publish()
    lake.check()


def test_the_rest_of_an_ordered_file_keeps_its_order_and_its_mark(lake: Lake) -> None:
    lake.batch({"s3://b/b": [4, 2], "s3://b/a": [3, 1]})
    lake.publish()
    lake.batch({"s3://b/c": [0]})
    lake.publish()
    compacted(lake.maker, order_by=["id"])
    lake.batch({}, replaces=["s3://b/b"])
    lake.publish()
    lake.check()
    (path,) = shown_files(lake.maker.root)
    assert pq.read_table(path)["id"].to_pylist() == [0, 1, 3]
    assert compacted(lake.maker, order_by=["id"]).merged == 0, "it is known to be ordered"


def test_a_column_added_meanwhile_is_null_in_rows_that_stay(lake: Lake) -> None:
    lake.batch({"s3://b/a": [1], "s3://b/b": [2]})
    lake.publish()
    lake.maker.sink().ensure_schema(SCHEMA.append(pa.field("score", pa.float64())))
    lake.batch({}, replaces=["s3://b/a"])
    lake.publish()
    (path,) = shown_files(lake.maker.root)
    assert pq.read_table(path).to_pylist() == [{"id": 2, "_object": "s3://b/b", "score": None}]


def test_rows_without_an_object_stay(lake: Lake) -> None:
    attempt_id = lake.maker.claim()
    files = lake._write(attempt_id, [(1, "s3://b/a"), (2, None)], "part-0")  # type: ignore[list-item] # a null
    lake.maker.commit(attempt_id, files, schema=SCHEMA)
    lake.publish()
    lake.batch({}, replaces=["s3://b/a"])
    lake.publish()
    assert lake.shown() == Counter([(None, 2)])


def test_a_table_without_the_objects_column_has_no_rows_to_replace(lake: Lake) -> None:
    lake.maker.batch([1])
    lake.publish()
    lake.batch({}, replaces=["s3://b/a"])
    assert lake.publish().position.seq == 2
    assert [pq.read_table(path)["id"].to_pylist() for path in shown_files(lake.maker.root)] == [[1]]


@pytest.mark.parametrize("step", [Step.PUBLISHING, Step.REWRITTEN, Step.ROWS_PUBLISHED])
def test_a_publisher_that_dies_at_any_step_leaves_the_next_one_to_finish(lake: Lake, step: Step) -> None:
    lake.batch({"s3://b/a": [1], "s3://b/b": [2]})
    lake.publish()
    lake.batch({"s3://b/a": [3]}, replaces=["s3://b/a"])

    def dying(reached: Step) -> None:
        if reached is step:
            raise Died

    before = lake.shown()
    with pytest.raises(Died):
        lake.publish(probe=dying)
    if step is not Step.ROWS_PUBLISHED:
        assert lake.shown() == before
    lake.publish()
    lake.check()


def test_files_of_a_publisher_that_died_are_deleted_by_gc_and_no_others(lake: Lake) -> None:
    lake.batch({"s3://b/a": [1], "s3://b/b": [2]})
    lake.publish()
    lake.batch({"s3://b/a": [3]}, replaces=["s3://b/a"])

    def dying(reached: Step) -> None:
        if reached is Step.REWRITTEN:
            raise Died

    with pytest.raises(Died):
        lake.publish(probe=dying)
    lake.publish()
    old = FakeClock(SystemClock().now() + 2 * AGE_SECONDS_MIN)
    assert collect_leftovers(lake.maker.sink(), lake.maker.ledger, clock=old).folders == 0
    lake.batch({"s3://b/c": [4]})
    lake.publish()
    assert collect_leftovers(lake.maker.sink(), lake.maker.ledger, clock=old).folders == 1
    lake.check()


def test_a_publisher_whose_files_gc_gave_up_writes_them_again(lake: Lake) -> None:
    lake.batch({"s3://b/a": [1], "s3://b/b": [2]})
    lake.publish()
    lake.batch({"s3://b/a": [3]}, replaces=["s3://b/a"])
    marked: list[str] = []

    def marking(reached: Step) -> None:
        if reached is Step.REWRITTEN and not marked:
            root = LocalFiles(lake.maker.root)
            marked.extend(f"compacted/{name.rstrip('/')}" for name in root.names("compacted"))
            for folder in marked:
                root.write(f"{folder}/{MARK}", b"")

    lake.publish(probe=marking)
    assert len(marked) == 1
    lake.check()
    assert not any(name.startswith(marked[0]) for name in names(lake.maker.root))


def test_after_a_conflict_only_new_files_are_written_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.batch({"s3://b/a": [1], "s3://b/b": [2]})
    lake.publish()
    lake.batch({"s3://b/a": [3]}, replaces=["s3://b/a"])
    written: list[str] = []

    def counted(root: Files, path: str, batches: Iterable[pa.RecordBatch], expected: pa.Schema) -> WrittenFile:
        written.append(path)
        return write_file(root, path, batches, expected)

    monkeypatch.setattr(rewriting, "write_file", counted)
    added = iter(["x", "y", "z"])

    def others_commit(reached: Step) -> None:
        if reached is Step.REWRITTEN and (name := next(added, None)) is not None:
            lake.maker.sink().ensure_schema(pa.schema([*SCHEMA, pa.field(name, pa.int64())]))

    lake.publish(probe=others_commit)
    assert len(written) == 1
    lake.check()


def test_a_compaction_between_two_tries_makes_the_publisher_plan_again(lake: Lake) -> None:
    for number in range(3):
        lake.batch({"s3://b/a": [number], f"s3://b/{number}": [10 + number]})
        lake.publish()
    lake.batch({"s3://b/a": [99]}, replaces=["s3://b/a"])
    once = iter([1])

    def merging(reached: Step) -> None:
        if reached is Step.REWRITTEN and next(once, None):
            assert compacted(lake.maker).merged == 3

    lake.publish(probe=merging)
    lake.check()


def test_a_file_with_foreign_columns_halts_the_publish(lake: Lake) -> None:
    attempt_id = lake.maker.claim()
    folder = lake.maker.root / "data" / attempt_id / "r0"
    lake.batch({"s3://b/b": [2]})
    lake.publish()
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1], "_object": ["s3://b/a"], "theirs": [1]}), folder / "part-0.parquet")
    info = (folder / "part-0.parquet").stat()
    file = DataFile(
        path=f"data/{attempt_id}/r0/part-0.parquet", size_bytes=info.st_size, rows=1, modified_at=info.st_mtime
    )
    lake.maker.commit(attempt_id, [file], schema=SCHEMA)
    lake.publish()
    lake.batch({}, replaces=["s3://b/a"])
    with pytest.raises(PublishHalted, match=r"columns that the table lacks: .*OPTIMIZE"):
        lake.publish()


@pytest.mark.parametrize("seed", range(WALKS))
def test_random_batches_deaths_and_compactions_end_as_the_rule_says(lake: Lake, seed: int) -> None:
    rng = random.Random(seed)
    objects = [f"s3://b/{name}" for name in "abcdef"]
    next_id = iter(range(10_000))
    for _ in range(STEPS):
        chosen = rng.sample(objects, rng.randint(1, 3))
        rows = {name: [next(next_id) for _ in range(rng.randint(1, 3))] for name in chosen if rng.random() < 0.8}
        lake.batch(rows, replaces=[name for name in chosen if rng.random() < 0.6], files=rng.randint(1, 2))
        action = rng.random()
        if action < 0.3:
            steps = iter(range(rng.randint(0, 3)))

            def dying(_: Step, steps: object = steps) -> None:
                if next(steps, None) is None:  # type: ignore[call-overload] # an iterator of ints
                    raise Died

            try:
                lake.publish(probe=dying)
            except Died:
                continue
        elif action < 0.6:
            lake.publish()
            lake.check()
        elif action < 0.8 and (lake.maker.root / "data").exists() and lake.maker.sink().load() is not None:
            compacted(lake.maker)
    lake.publish()
    lake.check()


def test_concurrent_publishers_and_compactions_end_as_the_rule_says(lake: Lake) -> None:
    ended = threading.Event()
    raised: list[BaseException] = []

    def repeatedly(work: Callable[[], object]) -> None:
        try:
            while not ended.is_set():
                try:
                    work()
                except TemporaryError:  # conflicts in a row
                    continue
        except BaseException as error:
            raised.append(error)

    lake.batch({"s3://b/a": [0]})
    lake.publish()
    threads = [threading.Thread(target=repeatedly, args=(lake.publish,)) for _ in range(THREADS)]
    threads.append(threading.Thread(target=repeatedly, args=(lambda: compacted(lake.maker),)))
    for thread in threads:
        thread.start()
    for number in range(1, 20):
        name = f"s3://b/{'abc'[number % 3]}"
        lake.batch({name: [number], "s3://b/kept": [100 + number]}, replaces=[name])
    while not raised and lake.maker.sink().load().position.seq < 20:  # type: ignore[union-attr] # there is a table
        ended.wait(0.05)
    ended.set()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert not raised
    lake.check()
