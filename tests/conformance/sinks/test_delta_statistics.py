"""Files with bounds are restated before columns are added, and are no new files in the table's history."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from tests.conformance.sinks.kit import DeltaKit, append, loaded, write

from penstock.errors import PublishConflict, TableError
from penstock.pipeline.maintenance.compact import compact
from penstock.pipeline.maintenance.table_history import BatchFiles, RowLossCheck
from penstock.sinks.delta import sink as delta_sink
from penstock.sinks.delta.sink import DeltaTableSink, LoadedDelta
from penstock.sinks.manifest import DataFile
from penstock.sinks.parquet import list_files
from penstock.sinks.registry import open_sink
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock

SCHEMA = pa.schema([("id", pa.int64()), ("naïve %", pa.string())])
WIDER = SCHEMA.append(pa.field("score", pa.int64()))
WIDEST = WIDER.append(pa.field("word", pa.string()))


def publish(sink: DeltaTableSink, seq: int, schema: pa.Schema, folder: str = "") -> Sequence[DataFile]:
    attempt_id = f"01K0{seq:022d}"
    columns: dict[str, Any] = {
        field.name: pa.array([seq, None], field.type) if field.type == pa.int64() else ["a", "b"] for field in schema
    }
    write(Path(str(sink.root)), attempt_id, file_name="part 0%20é", folder=folder, **columns)
    files = list_files(sink.root, f"data/{attempt_id}/r1", partition_by=(), schema=schema)
    sink.ensure_schema(schema)
    loaded(sink).append(append(seq, attempt_id, *files))
    return files


@pytest.fixture
def sink(root: Path) -> DeltaTableSink:
    sink = DeltaKit().sink(root)
    assert isinstance(sink, DeltaTableSink)
    publish(sink, 1, SCHEMA)
    publish(sink, 2, SCHEMA)
    return sink


def found(sink: DeltaTableSink, wanted: pc.Expression) -> list[int | None]:
    rows: list[int | None] = DeltaTable(str(sink.root)).to_pyarrow_dataset().to_table(filter=wanted)["id"].to_pylist()
    return sorted(rows, key=str)


def statistics(sink: DeltaTableSink) -> dict[str, Any]:
    """Return the newest statistics of each file in the log's JSON files, by attempt."""
    newest: dict[str, Any] = {}
    for commit in sorted(Path(str(sink.root), "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            if add := json.loads(line).get("add"):
                newest[add["path"].split("/")[1]] = json.loads(add["stats"])
    return dict(sorted(newest.items()))


@pytest.mark.parametrize("checkpointed", [False, True])
def test_older_files_count_as_null_in_an_added_column(sink: DeltaTableSink, checkpointed: bool) -> None:
    if checkpointed:
        DeltaTable(str(sink.root)).create_checkpoint()
    publish(sink, 3, WIDER)
    assert [one["nullCount"]["score"] for one in statistics(sink).values()] == [2, 2, 1]
    assert all("id" in one["minValues"] for one in statistics(sink).values())
    assert found(sink, pc.field("score").is_null()) == [1, 2, None, None, None]
    assert found(sink, pc.field("score") == 3) == [3]
    assert found(sink, pc.field("id") == 1) == [1]
    assert len(DeltaTable(str(sink.root)).file_uris()) == 3


def test_columns_added_again_and_again_keep_all_bounds(sink: DeltaTableSink) -> None:
    publish(sink, 3, WIDER)
    publish(sink, 4, WIDEST)
    assert [sorted(one["minValues"]) for one in statistics(sink).values()] == [
        ["id", "naïve %"],
        ["id", "naïve %"],
        ["id", "naïve %", "score"],
        ["id", "naïve %", "score", "word"],
    ]
    assert found(sink, pc.field("word").is_null()) == [1, 2, 3, None, None, None]


def test_a_batch_with_older_columns_has_no_bounds(sink: DeltaTableSink) -> None:
    publish(sink, 3, WIDER)
    publish(sink, 4, SCHEMA)
    assert "minValues" not in list(statistics(sink).values())[-1]
    assert found(sink, pc.field("score").is_null()) == [1, 2, 4, None, None, None, None]


def test_restated_files_are_no_additions_in_the_history(sink: DeltaTableSink) -> None:
    before = sink.load()
    assert before is not None
    files = publish(sink, 3, WIDER)
    operations = {commit.version: (commit.operation, len(commit.added)) for commit in sink.commits()}
    assert operations[before.version + 1] == ("COMPUTE STATS", 0)
    assert sum(added for _, added in operations.values()) == 3
    batches = [BatchFiles(seq=3, paths=[file.path for file in files])]
    RowLossCheck(sink).check(batches, written=lambda _: 6)
    assert before.files() == [file for file in loaded(sink).files() if "3/r1" not in file.path]  # type: ignore[attr-defined]  # a snapshot


def test_files_that_others_append_meanwhile_are_restated_too(
    sink: DeltaTableSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtakers = [lambda: publish(sink, 3, SCHEMA)]
    restate = LoadedDelta.restate_files

    def overtaken(*args: Any) -> None:
        restate(*args)
        while overtakers:
            overtakers.pop()()

    monkeypatch.setattr(LoadedDelta, "restate_files", overtaken)
    publish(sink, 4, WIDER)
    assert [one["nullCount"]["score"] for one in statistics(sink).values()] == [2, 2, 2, 1]
    assert found(sink, pc.field("score").is_null()) == [1, 2, 3, None, None, None, None]


def test_a_conflict_while_files_are_restated_is_a_conflict_of_the_publish(
    sink: DeltaTableSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    restate = LoadedDelta.restate_files

    def conflict(*args: Any) -> None:
        monkeypatch.setattr(LoadedDelta, "restate_files", restate)
        publish(sink, 3, SCHEMA)
        restate(*args)

    monkeypatch.setattr(LoadedDelta, "restate_files", conflict)
    with pytest.raises(PublishConflict):
        sink.ensure_schema(WIDER)
    sink.ensure_schema(WIDER)
    assert found(sink, pc.field("score").is_null()) == [1, 2, 3, None, None, None]


def test_a_process_that_dies_between_the_commits_leaves_a_table_that_reads_the_same(
    sink: DeltaTableSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise InterruptedError

    add_columns = LoadedDelta.add_columns
    monkeypatch.setattr(LoadedDelta, "add_columns", die)
    with pytest.raises(InterruptedError):
        sink.ensure_schema(WIDER)
    monkeypatch.setattr(LoadedDelta, "add_columns", add_columns)
    assert found(sink, pc.field("id") >= 1) == [1, 2]
    sink.ensure_schema(SCHEMA.append(pa.field("score", pa.string())))
    assert found(sink, pc.field("score").is_null()) == [1, 2, None, None]


def test_many_files_are_restated_in_several_commits(sink: DeltaTableSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_sink, "FILES_RESTATED_MAX", 1)
    publish(sink, 3, WIDER)
    assert [one["nullCount"]["score"] for one in statistics(sink).values()] == [2, 2, 1]
    assert [commit.operation for commit in sink.commits()].count("COMPUTE STATS") == 2


def test_files_of_other_writers_are_not_restated(sink: DeltaTableSink) -> None:
    write_deltalake(str(sink.root), pa.table({"id": [9], "naïve %": ["z"]}), mode="append")
    sink.ensure_schema(WIDER)
    restated = next(iter(sink.commits()))
    assert restated.operation == "ADD COLUMN"
    log = Path(str(sink.root), "_delta_log", f"{restated.version - 1:020}.json").read_text()
    assert log.count('"add"') == 2


def test_a_column_that_another_writer_added_is_found_to_be_null_after_a_compaction(sink: DeltaTableSink) -> None:
    DeltaTable(str(sink.root)).alter.add_columns(Field("score", PrimitiveType("long")))
    done = compact(sink, target_bytes=1, clock=FakeClock(auto_advance=True))
    assert done is not None
    assert (done.merged, done.restated) == (0, 2)
    assert found(sink, pc.field("score").is_null()) == [1, 2, None, None]
    done = compact(sink, target_bytes=1, clock=FakeClock(auto_advance=True))
    assert done is not None
    assert done.restated == 0


@pytest.mark.parametrize("in_partition", [False, True])
def test_dates_of_another_writer_that_python_lacks(tmp_path: Path, in_partition: bool) -> None:
    """A bound is unknown, and a partition is named in an error."""
    dates = pa.array([7], pa.int32()).cast(pa.date32())
    write_deltalake(tmp_path, pa.table({"id": [1], "day": dates}), partition_by=["day"] if in_partition else None)
    commit = tmp_path / "_delta_log" / f"{0:020}.json"
    commit.write_text(commit.read_text().replace("1970-01-08", "+10000-01-01"))
    opened = open_sink(
        LocalFiles(tmp_path), scheme="delta", pipeline="p", partition_by=("day",) if in_partition else ()
    )
    table = opened.load()
    assert isinstance(table, LoadedDelta)
    if not in_partition:
        assert len(table.files()) == 1
        assert [file.statistics["maxValues"] for file in table.files_to_search(())] == [{"id": 1}]
        return
    for read in (table.files, table.logged_files):
        with pytest.raises(TableError, match="a partition of a date outside the years 1 to 9999"):
            read()
