"""The memory of a publish between its tries to replace rows: files, their names and their batch, and no leftovers."""

import random
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text
from tests.conformance.publishing.batch_maker import BatchMaker, shown_files
from tests.conformance.publishing.test_compaction import compacted
from tests.conformance.publishing.test_replaced_rows import SCHEMA, Died, Lake

from penstock.errors import PublishHalted, TemporaryError
from penstock.messaging.steps import Probe, Step
from penstock.pipeline import replacing
from penstock.sinks.manifest import DataFile
from penstock.sinks.sink import TableSink
from penstock.storage.local import LocalFiles

WALKS = 6
STEPS = 8


@pytest.fixture
def lake(maker: BatchMaker) -> Lake:
    return Lake(maker=maker)


def once_at(step: Step, work: Probe) -> Probe:
    left = iter([1])

    def probe(reached: Step) -> None:
        if reached is step and next(left, None):
            work(reached)

    return probe


def rewritten(root: Path) -> list[Path]:
    """Return the files below `compacted/` that no version names."""
    return sorted({*(root / "compacted").rglob("*.parquet")} - set(shown_files(root)))


@pytest.mark.parametrize("rest", [1, 2_000], ids=["files-of-other-size", "files-of-one-size"])
def test_a_partial_compaction_between_two_tries_leaves_every_rest_its_own_name(lake: Lake, rest: int) -> None:
    """The compaction merges the file that was written again first, and not the second one."""

    def small() -> None:
        lake.batch({"s3://b/a": [1], "s3://b/x": [10]})
        lake.publish()

    is_first_listed_last = lake.maker.scheme == "delta"  # files of its log are listed newest first
    if not is_first_listed_last:
        small()
    lake.batch(
        {"s3://b/a": list(range(1_000, 1_000 + rest)), "s3://b/y": list(range(5_000, 10_000 if rest == 1 else 5_002))}
    )
    lake.publish()
    if is_first_listed_last:
        small()
    lake.batch({"s3://b/w": [30]})
    lake.publish()
    lake.batch({"s3://b/a": [99]}, replaces=["s3://b/a"])

    def merging(_: Step) -> None:
        table = lake.maker.sink().load()
        assert table is not None
        largest = max(file.size_bytes for file in table.files())
        assert compacted(lake.maker, target_bytes=2 * largest - 1).merged == 2

    lake.publish(probe=once_at(Step.REWRITTEN, merging))
    lake.check()


def test_a_number_that_the_ledger_gave_twice_does_not_take_the_wrong_rows_out(lake: Lake) -> None:
    """The ledger fails over to a replica that lacks the last batch, while that batch's publish meets a conflict."""
    lake.batch({"s3://b/a": [1], "s3://b/b": [2], "s3://b/c": [3]})
    lake.publish()
    lost = lake.batch({"s3://b/a": [10]}, replaces=["s3://b/a"])

    def failing_over(_: Step) -> None:
        lake.maker.sink().ensure_schema(SCHEMA.append(pa.field("x", pa.int64())))  # the conflict
        with lake.maker.ledger.database.engine.begin() as connection:
            connection.execute(text("delete from batches where seq = :seq"), {"seq": lost})
            connection.execute(text("update pipelines set next_seq = :seq"), {"seq": lost})
        lake.wanted["s3://b/a"] = [1]
        assert lake.batch({"s3://b/b": [20]}, replaces=["s3://b/b"]) == lost

    lake.publish(probe=once_at(Step.REWRITTEN, failing_over))
    lake.check()


def test_a_publish_that_cannot_write_one_file_again_leaves_no_other_behind(lake: Lake) -> None:
    for number in range(4):
        lake.batch({"s3://b/a": [number], f"s3://b/{number}": [10 + number]})
        lake.publish()
        if number == 1:
            add_strange_file(lake)
    lake.batch({}, replaces=["s3://b/a"])
    for _ in range(2):
        with pytest.raises(PublishHalted, match="columns that the table lacks: theirs"):
            lake.publish()
    assert not rewritten(lake.maker.root)


def test_files_of_a_try_that_fails_while_it_writes_are_deleted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        lake.batch({"s3://b/a": [number], f"s3://b/{number}": [10 + number]})
        lake.publish()
    lake.batch({}, replaces=["s3://b/a"])

    def full(_: TableSink, replacement: replacing.Replacement) -> None:
        assert len(rewritten(lake.maker.root)) == len(replacement.added) == 3
        raise TemporaryError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(replacing, "save_replacement", full)
        with pytest.raises(TemporaryError):
            lake.publish()
    assert not rewritten(lake.maker.root)
    lake.publish()
    lake.check()


def test_files_that_an_earlier_try_offered_stay_when_a_later_one_fails(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of a commit may be unknown: it could still arrive, and name them."""
    lake.batch({"s3://b/a": [1], "s3://b/b": [2]})
    lake.publish()
    lake.batch({}, replaces=["s3://b/a"])
    save = replacing.save_replacement
    tries = count()

    def failing(sink: TableSink, replacement: replacing.Replacement) -> None:
        if next(tries):
            raise TemporaryError("the second try fails")
        save(sink, replacement)

    def conflicting(_: Step) -> None:
        lake.maker.sink().ensure_schema(SCHEMA.append(pa.field("x", pa.int64())))

    monkeypatch.setattr(replacing, "save_replacement", failing)
    with pytest.raises(TemporaryError):
        lake.publish(probe=once_at(Step.REWRITTEN, conflicting))
    assert len(rewritten(lake.maker.root)) == 1


def test_writing_many_files_again_does_not_list_their_folder_for_each(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        lake.batch({"s3://b/a": [number], f"s3://b/{number}": [10 + number]})
        lake.publish()
    lake.batch({}, replaces=["s3://b/a"])
    listed: list[str] = []
    real = LocalFiles.list

    def noted(self: LocalFiles, folder: str = "") -> object:
        listed.append(folder)
        return real(self, folder)

    monkeypatch.setattr(LocalFiles, "list", noted)
    lake.publish()
    assert not [folder for folder in listed if folder.startswith("compacted")]
    lake.check()


@pytest.mark.parametrize("seed", range(WALKS))
def test_random_meddling_between_the_steps_of_a_publish_ends_as_the_rule_says(lake: Lake, seed: int) -> None:
    """Partial and ordered compactions, new columns, deaths and other publishers come between any two steps."""
    rng = random.Random(seed)
    objects = [f"s3://b/{name}" for name in "abcdef"]
    next_id, columns = iter(range(100_000)), count()
    depth = iter(range(60))

    def meddle(step: Step) -> None:
        if rng.random() < 0.4 or next(depth, None) is None:
            return
        match rng.choice(["compact", "compact", "order", "column", "publish", "die"]):
            case "compact" | "order" as how:
                table = lake.maker.sink().load()
                sizes = [file.size_bytes for file in table.files()] if table is not None else []
                if sizes:
                    order = {"order_by": ["id"]} if how == "order" else {}
                    compacted(lake.maker, target_bytes=rng.choice(sizes) * rng.choice([2, 3]) + 1, **order)
            case "column" if step in (Step.REWRITTEN, Step.PUBLISHING):
                lake.maker.sink().ensure_schema(pa.schema([*SCHEMA, pa.field(f"c{next(columns) % 4}", pa.int64())]))
            case "publish":
                lake.publish()
            case "die" if rng.random() < 0.2:
                raise Died

    for _ in range(STEPS):
        chosen = rng.sample(objects, rng.randint(1, 3))
        rows = {name: [next(next_id) for _ in range(rng.choice([1, 3, 400]))] for name in chosen if rng.random() < 0.8}
        lake.batch(rows, replaces=[name for name in chosen if rng.random() < 0.6], files=rng.randint(1, 2))
        try:
            lake.publish(probe=meddle)
        except (Died, TemporaryError):
            continue
        if lake.maker.sink().load() is not None:
            lake.check()
    lake.batch({"s3://b/z": [next(next_id)]})
    lake.publish()
    lake.check()


def add_strange_file(lake: Lake) -> None:
    """Publish a file with a column that the table lacks, as another writer may add it."""
    attempt_id = lake.maker.claim()
    path = lake.maker.root / "data" / attempt_id / "r0" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1], "_object": ["s3://b/a"], "theirs": [1]}), path)
    info = path.stat()
    name = f"data/{attempt_id}/r0/part-0.parquet"
    file = DataFile(path=name, size_bytes=info.st_size, rows=1, modified_at=info.st_mtime)
    lake.maker.commit(attempt_id, [file], schema=SCHEMA)
    lake.publish()
