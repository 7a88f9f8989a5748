"""Small files are merged while others publish: no row is lost or doubled, and the position is kept."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import StructType
from pyiceberg.table.update import SetPropertiesUpdate
from tests.conformance.publishing.batch_maker import PIPELINE, SCHEMA, BatchMaker, shown_ids
from tests.services.aws_server import AwsServer

from penstock.errors import PublishConflict, TableError, TemporaryError
from penstock.events import Bus
from penstock.messaging.steps import Step, no_probe
from penstock.pipeline.maintenance import compact as compacting
from penstock.pipeline.maintenance.compact import CompactionResult, compact
from penstock.pipeline.maintenance.gc import collect
from penstock.pipeline.publish import publish, rows_schema
from penstock.sinks import parquet
from penstock.sinks.delta.sink import DeltaTableSink
from penstock.sinks.iceberg.choice import CatalogChoice
from penstock.sinks.iceberg.log import SNAPSHOT_AGE
from penstock.sinks.sink import TableSink
from penstock.storage.address import S3Address
from penstock.storage.local import LocalFiles
from penstock.storage.s3_files import S3Files
from penstock.testing import FakeClock

DEADLINE_SECONDS = 120.0
COMPACTIONS = 6
BATCHES = 30


def sink(maker: BatchMaker) -> TableSink:
    return maker.sink(partition_by=None)


def history(maker: BatchMaker) -> Any:
    """Return the sink as the history that compactions commit to; each sink is its own."""
    return sink(maker).history


def published(maker: BatchMaker) -> None:
    publish(
        maker.ledger,
        maker.sink(),
        pipeline=PIPELINE,
        manifest_of=lambda batch: batch.record.manifest,
        schema_of=lambda batch: rows_schema(batch, partition_by=()),
        bus=Bus(),
        probe=no_probe,
        step=Step.ROWS_PUBLISHED,
        clock=FakeClock(auto_advance=True),
    )


def compacted(maker: BatchMaker, **options: object) -> CompactionResult:
    done = compact(sink(maker), clock=FakeClock(auto_advance=True), **options)  # type: ignore[arg-type]  # a test passes only valid options
    assert done is not None
    return done


def ids(root: Path) -> list[int]:
    """Return the ids, read file by file, as the table names them."""
    return shown_ids(root)


def position(maker: BatchMaker) -> int:
    table = sink(maker).load()
    return table.position.seq if table is not None else 0


def filled(maker: BatchMaker, batches: int) -> None:
    for number in range(batches):
        maker.batch([number])
        published(maker)


def test_small_files_are_merged_into_one_and_the_position_is_kept(maker: BatchMaker) -> None:
    filled(maker, 5)

    done = compacted(maker)

    assert (done.files_before, done.files_after, done.merged, done.left) == (5, 1, 5, 0)
    assert done.bytes_after < done.bytes_before
    assert ids(maker.root) == [0, 1, 2, 3, 4]
    assert position(maker) == 5
    again = compacted(maker)
    assert (again.merged, again.table_version) == (0, done.table_version)
    maker.batch([5])
    published(maker)
    assert ids(maker.root) == [0, 1, 2, 3, 4, 5]


def test_other_readers_read_merged_files(delta_maker: BatchMaker) -> None:
    filled(delta_maker, 3)
    compacted(delta_maker)
    table = DeltaTable(str(delta_maker.root))
    assert table.history()[0]["operation"] == "OPTIMIZE"
    table.create_checkpoint()
    found = DeltaTable(str(delta_maker.root)).to_pyarrow_dataset().to_table(filter=ds.field("id") >= 1)
    assert sorted(found["id"].to_pylist()) == [1, 2]
    assert DeltaTable(str(delta_maker.root), version=3).to_pyarrow_table().num_rows == 3


def test_concurrent_publishers_and_compactions_keep_every_row_once(maker: BatchMaker) -> None:
    filled(maker, 3)
    ended = threading.Event()
    lock = threading.Lock()
    numbers = iter(range(3, 3 + BATCHES))

    def write() -> None:
        for _ in range(BATCHES // 2):
            with lock:  # BatchMaker is not thread-safe; publishing is the concurrent part
                maker.batch([next(numbers)])
            published(maker)

    def merge() -> int:
        merged = 0
        while not ended.is_set():
            with suppress(TemporaryError):  # the clock does not wait after conflicts, so writers may always be first
                merged += compacted(maker).merged
        return merged + compacted(maker).merged

    with ThreadPoolExecutor(4) as pool:
        compactions = [pool.submit(merge) for _ in range(2)]
        writers = [pool.submit(write) for _ in range(2)]
        try:
            for writer in writers:
                writer.result(DEADLINE_SECONDS)
        finally:
            ended.set()
        assert sum(one.result(DEADLINE_SECONDS) for one in compactions) > 0
    assert ids(maker.root) == list(range(3 + BATCHES))
    assert position(maker) == 3 + BATCHES


def test_one_of_two_compactions_of_the_same_files_is_committed(
    maker: BatchMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(maker, 4)
    real = compacting._commit
    overtaken: list[int] = []

    def overtake(*args: Any, **options: Any) -> int | None:
        if not overtaken:
            overtaken.append(0)
            overtaken[0] = compacted(maker).merged
        return real(*args, **options)

    monkeypatch.setattr(compacting, "_commit", overtake)
    late = compacted(maker)

    assert (overtaken, late.merged, late.left) == ([4], 0, 4)
    assert ids(maker.root) == [0, 1, 2, 3]
    assert len(list((maker.root / "compacted").rglob("*.parquet"))) == 1, (
        "files of the later compaction are deleted again"
    )


def test_a_batch_committed_first_is_kept_and_the_compaction_commits_again(
    maker: BatchMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(maker, 4)
    tries: list[int] = []
    replace_files = type(history(maker)).replace_files

    def publish_first(*args: Any, **options: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            maker.batch([4])
            published(maker)
        return replace_files(*args, **options)

    monkeypatch.setattr(type(history(maker)), "replace_files", publish_first)
    assert compacted(maker).merged == 4
    assert len(tries) == 2
    assert ids(maker.root) == [0, 1, 2, 3, 4]


def test_a_compaction_commit_whose_response_was_lost_is_found(
    maker: BatchMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(maker, 3)
    replace_files = type(history(maker)).replace_files

    def lose(*args: Any, **options: Any) -> int:
        replace_files(*args, **options)
        raise PublishConflict("no response")

    monkeypatch.setattr(type(history(maker)), "replace_files", lose)
    assert compacted(maker).merged == 3
    assert ids(maker.root) == [0, 1, 2]


def test_endless_conflicts_raise_a_temporary_error(maker: BatchMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(maker, 3)

    def refuse(*_: object, **__: object) -> int:
        raise PublishConflict("another writer")

    monkeypatch.setattr(type(history(maker)), "replace_files", refuse)
    with pytest.raises(TemporaryError, match="20 compactions in a row"):
        compacted(maker)
    assert ids(maker.root) == [0, 1, 2]


def test_a_dry_run_reports_the_merge_and_changes_nothing(maker: BatchMaker) -> None:
    filled(maker, 3)
    before = sorted(maker.root.rglob("*"))
    done = compacted(maker, dry_run=True)
    assert (done.files_before, done.files_after, done.merged) == (3, 1, 3)
    assert sorted(maker.root.rglob("*")) == before


def without_bounds(maker: BatchMaker) -> None:
    """Remove the bounds from the table's log, as earlier versions wrote it."""
    for commit in (maker.root / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for add in (action["add"] for action in actions if "add" in action):
            stats = json.loads(add["stats"])
            add["stats"] = json.dumps({key: stats[key] for key in ("numRecords", "nullCount")})
        commit.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def bounds(maker: BatchMaker) -> list[Any]:
    actions = pa.table(DeltaTable(str(maker.root)).get_add_actions()).to_pylist()
    return sorted([(action.get("min") or {}).get("id") for action in actions], key=str)


def test_large_files_without_bounds_get_them_and_stay(delta_maker: BatchMaker) -> None:
    maker = delta_maker
    filled(maker, 3)
    without_bounds(maker)
    DeltaTable(str(maker.root)).alter.add_columns(
        [Field("score", "long"), Field("nested", StructType([Field("x", "long")]))]  # type: ignore[arg-type]  # its stub lacks str
    )
    assert bounds(maker) == [None, None, None]
    done = compacted(maker, target_bytes=1)
    assert (done.merged, done.restated) == (0, 3)
    assert bounds(maker) == [0, 1, 2]
    assert compacted(maker, target_bytes=1).restated == 0
    dataset = DeltaTable(str(maker.root)).to_pyarrow_dataset()
    assert dataset.to_table(filter=ds.field("score").is_null()).num_rows == 3
    assert dataset.to_table(filter=ds.field("nested").is_null()).num_rows == 3
    assert len(list(dataset.get_fragments(filter=ds.field("id") == 1))) == 1
    assert (ids(maker.root), position(maker)) == ([0, 1, 2], 3)


def test_a_file_removed_before_it_is_restated_stays_removed(
    delta_maker: BatchMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = delta_maker
    filled(maker, 3)
    without_bounds(maker)
    read = parquet.read_statistics

    def removed(*args: Any) -> Any:
        monkeypatch.setattr(compacting, "read_statistics", read)
        DeltaTable(str(maker.root)).delete("id = 1")
        return read(*args)

    monkeypatch.setattr(compacting, "read_statistics", removed)
    assert compacted(maker, target_bytes=1).restated == 2
    assert ids(maker.root) == [0, 2]


def test_a_commit_between_the_check_and_the_restatement_is_kept(
    delta_maker: BatchMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = delta_maker
    filled(maker, 3)
    without_bounds(maker)
    restate_files = DeltaTableSink.restate_files

    def overtaken(self: DeltaTableSink, **options: Any) -> int:
        DeltaTable(str(maker.root)).delete("id = 1")
        return restate_files(self, **options)

    monkeypatch.setattr(DeltaTableSink, "restate_files", overtaken)
    assert compacted(maker, target_bytes=1).restated == 0
    assert ids(maker.root) == [0, 2]


def test_large_files_are_left_alone(maker: BatchMaker) -> None:
    filled(maker, 3)
    size_bytes = max(path.stat().st_size for path in maker.root.rglob("*.parquet"))
    assert compacted(maker, target_bytes=size_bytes).merged == 0


def test_an_added_column_is_null_in_older_merged_rows(maker: BatchMaker) -> None:
    filled(maker, 2)
    wider = SCHEMA.append(pa.field("score", pa.float64()))
    maker.batch([2], schema=wider)
    published(maker)
    assert compacted(maker).merged == 3
    table = sink(maker).load()
    assert table is not None
    rows = table.dataset().to_table()
    assert rows.schema.names == ["id", "word", "score"]
    assert rows["score"].null_count == 3


def test_partitions_are_merged_separately(tmp_path: Path) -> None:
    root = tmp_path / "parts"
    for number in range(3):
        days = pa.array(["2024-01-01", "2024-01-02", None])
        write_deltalake(
            str(root), pa.table({"id": [number, number + 10, number + 20], "day": days}), mode="append",
            partition_by=["day"],
        )  # fmt: skip
    done = compact(
        DeltaTableSink(LocalFiles(root), pipeline=PIPELINE, partition_by=None), clock=FakeClock(auto_advance=True)
    )
    assert done is not None
    assert (done.files_before, done.files_after) == (9, 3)
    rows = DeltaTable(str(root)).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["day"]) for row in rows) == sorted(
        (number + 10 * place, day)
        for number in range(3)
        for place, day in enumerate(["2024-01-01", "2024-01-02", None])
    )


def test_a_table_with_an_unsupported_feature_is_refused(delta_maker: BatchMaker) -> None:
    filled(delta_maker, 2)
    DeltaTable(str(delta_maker.root)).alter.add_constraint({"positive": "id >= 0"})
    with pytest.raises(TableError, match="constraint positive"):
        compacted(delta_maker)


def test_gc_leaves_merged_files_and_their_sources_alone(maker: BatchMaker) -> None:
    filled(maker, 3)
    compacted(maker)
    before = sorted(maker.root.rglob("*.parquet"))
    collected = collect(
        maker.ledger,
        pipeline=PIPELINE,
        roots=(LocalFiles(maker.root),),
        work=LocalFiles(maker.root / "_penstock" / "work"),
        bus=Bus(),
        probe=no_probe,
    )
    assert (collected.files, collected.unknown) == (0, ())
    assert sorted(maker.root.rglob("*.parquet")) == before


def keep_nothing(maker: BatchMaker) -> None:
    """Let the table's own retention be 0."""
    if maker.scheme == "delta":
        table = DeltaTable(str(maker.root))
        table.alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
        return
    catalog = CatalogChoice(LocalFiles(maker.root), None).current()
    stored = catalog.load()
    assert stored is not None
    catalog.commit(stored, (), [SetPropertiesUpdate(updates={SNAPSHOT_AGE: "0"})])


def test_a_vacuum_deletes_merged_sources_and_no_file_of_an_open_attempt(maker: BatchMaker) -> None:
    filled(maker, 3)
    open_attempt = maker.claim()
    maker.write(open_attempt, [3])
    compacted(maker)
    table = history(maker).load()
    assert table is not None
    with pytest.raises(TableError, match="retention"):
        table.vacuum(retention_hours=1, dry_run=True)
    keep_nothing(maker)
    table = history(maker).load()
    assert table is not None
    assert len(table.vacuum(retention_hours=None, dry_run=True)) == 3
    assert len(list((maker.root / "data").rglob("*.parquet"))) == 4
    assert len(table.vacuum(retention_hours=None, dry_run=False)) == 3
    left = [path.relative_to(maker.root).parts[1] for path in (maker.root / "data").rglob("*.parquet")]
    assert left == [open_attempt]
    maker.commit(open_attempt, maker.write(open_attempt, [3], run=1))
    published(maker)
    assert ids(maker.root) == [0, 1, 2, 3]
    assert position(maker) == 4


def test_a_table_in_s3_is_compacted(moto: AwsServer, tmp_path: Path) -> None:
    moto.client("s3").create_bucket(Bucket="lake")
    files = S3Files(S3Address(bucket="lake", prefix="clicks"), moto.aws)
    options = dict(files.store_options())
    for number in range(3):
        write_deltalake(str(files), pa.table({"id": [number]}), mode="append", storage_options=options)
    target = DeltaTableSink(files, pipeline=PIPELINE, partition_by=None)
    overtakers: list[Callable[[], object]] = [
        lambda: write_deltalake(str(files), pa.table({"id": [3]}), mode="append", storage_options=options)
    ]

    class Overtaken(FakeClock):
        def now(self) -> float:
            while overtakers:
                overtakers.pop()()
            return super().now()

    done = compact(target, clock=Overtaken(auto_advance=True))

    assert done is not None
    assert (done.files_before, done.files_after) == (3, 1)
    assert sorted(DeltaTable(str(files), storage_options=options).to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2, 3]
    text = files.read(f"_delta_log/{done.table_version:020}.json").splitlines()[0]
    assert json.loads(text)["commitInfo"]["readVersion"] == done.table_version - 1
