"""The contract of all sinks, for every table format."""

import re
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conformance.sinks.kit import (
    FIRST,
    SCHEMA,
    SECOND,
    THIRD,
    DeltaKit,
    IcebergKit,
    Kit,
    ToyKit,
    append,
    loaded,
    write,
)

from penstock.errors import PublishConflict, PublishHalted, TableError, UsageError
from penstock.objects.local_store import LocalStore
from penstock.objects.scanner import Scanner
from penstock.sinks.manifest import attempt_token
from penstock.sinks.sink import Position, Sink, TableSink

# Without a table


def test_loading_a_missing_folder_returns_none_and_creates_nothing(kit: Kit, root: Path) -> None:
    assert kit.sink(root).load() is None
    assert not root.exists()


def test_files_of_runs_and_the_data_directory_alone_are_no_table(kit: Kit, root: Path) -> None:
    write(root, FIRST, id=[1])
    (root / "_penstock").mkdir()
    assert kit.sink(root).load() is None


def test_a_file_at_the_tables_path_is_refused(kit: Kit, root: Path) -> None:
    root.write_text("rows")
    with pytest.raises(TableError, match="is a file"):
        kit.sink(root).load()


@pytest.mark.parametrize("name", ["part-0.parquet", "notes.txt", "metadata"])
def test_a_folder_with_foreign_files_is_refused(kit: Kit, root: Path, name: str) -> None:
    root.mkdir()
    (root / name).write_text("")
    with pytest.raises(TableError, match=name):
        kit.sink(root).load()


@pytest.mark.parametrize(
    ("made", "kit", "advice"),
    [
        (DeltaKit(), IcebergKit(), "write {root} (DeltaSink in an app)"),
        (DeltaKit(), ToyKit(), "write {root} (DeltaSink in an app)"),
        (IcebergKit(), DeltaKit(), "write iceberg:{root} (IcebergSink in an app)"),
        (IcebergKit(), ToyKit(), "write iceberg:{root} (IcebergSink in an app)"),
    ],
)
def test_a_table_in_another_format_is_refused_and_stays_as_it_is(root: Path, made: Kit, kit: Kit, advice: str) -> None:
    made.sink(root).ensure_schema(SCHEMA)
    before = sorted(root.rglob("*"))
    sink = cast(TableSink, kit.sink(root))
    for call in (sink.check_location, sink.load, lambda: sink.ensure_schema(SCHEMA)):
        with pytest.raises(TableError, match=re.escape(advice.format(root=root))):
            call()
    assert sorted(root.rglob("*")) == before


# Creating and changing the table


def test_a_table_is_created_with_its_columns_at_position_zero(sink: Sink) -> None:
    table = loaded(sink)
    assert table.schema.equals(SCHEMA)
    assert table.position == Position(seq=0, attempt_token=None)


def test_ensuring_the_same_schema_again_commits_nothing(sink: Sink) -> None:
    before = loaded(sink).version
    sink.ensure_schema(SCHEMA)
    assert loaded(sink).version == before


def test_missing_columns_are_added_and_are_null_in_older_rows(kit: Kit, sink: Sink, root: Path) -> None:
    loaded(sink).append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))
    wider = SCHEMA.append(pa.field("score", pa.float64()))
    sink.ensure_schema(wider)
    loaded(sink).append(append(2, SECOND, write(root, SECOND, id=[2], name=["b"], score=[0.5])))
    assert loaded(sink).schema.equals(wider)
    assert sorted(kit.rows(root), key=lambda row: row["id"]) == [
        {"id": 1, "name": "a", "score": None},
        {"id": 2, "name": "b", "score": 0.5},
    ]


def test_adding_columns_keeps_the_position(sink: Sink, root: Path) -> None:
    loaded(sink).append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))
    sink.ensure_schema(SCHEMA.append(pa.field("score", pa.float64())))
    assert loaded(sink).position == Position(seq=1, attempt_token=attempt_token(FIRST))


def test_an_older_batch_may_have_fewer_columns_than_the_table(sink: Sink) -> None:
    sink.ensure_schema(SCHEMA.append(pa.field("score", pa.float64())))
    before = loaded(sink).version
    sink.ensure_schema(SCHEMA)
    assert loaded(sink).version == before


def test_a_changed_column_type_is_refused_with_column_and_both_types(sink: Sink) -> None:
    with pytest.raises(TableError) as refusal:
        sink.ensure_schema(pa.schema([("id", pa.string()), ("name", pa.string())]))
    assert all(word in str(refusal.value) for word in ("id", "long", "string", "cast it"))


def test_a_column_name_in_another_case_is_refused(sink: Sink) -> None:
    with pytest.raises(TableError, match="Name"):
        sink.ensure_schema(pa.schema([("id", pa.int64()), ("Name", pa.string())]))


def test_other_partition_columns_are_refused(kit: Kit, sink: Sink, root: Path) -> None:
    with pytest.raises(TableError, match=r"partitioned by nothing and not by name; .* \(no --partition-by\)"):
        kit.sink(root, partition_by=["name"]).load()


def test_the_partition_columns_of_the_table_are_named_as_the_option_to_give(kit: Kit, root: Path) -> None:
    kit.sink(root, partition_by=["name", "id"]).ensure_schema(SCHEMA)
    with pytest.raises(TableError, match=r"\(--partition-by 'name, id'\)"):
        kit.sink(root).load()


def test_a_partition_column_that_does_not_exist_is_refused_before_the_table_is_created(kit: Kit, root: Path) -> None:
    with pytest.raises(UsageError, match="day"):
        kit.sink(root, partition_by=["day"]).ensure_schema(SCHEMA)
    assert not root.exists()


@pytest.mark.usefixtures("sink")
def test_a_source_above_the_table_reads_none_of_its_files(root: Path) -> None:
    write(root, FIRST, id=[1])
    (root.parent / "part-0.jsonl").touch()
    scanner = Scanner(root.parent, store=LocalStore(root.parent))
    found = [ref.key for chunk in scanner.chunks() for ref in chunk]
    assert found == [str((root.parent / "part-0.jsonl").resolve())]


# Publishing


def test_an_append_publishes_its_rows_and_its_position(kit: Kit, sink: Sink, root: Path) -> None:
    table = loaded(sink)
    version = table.append(append(1, FIRST, write(root, FIRST, id=[1, 2], name=["a", None])))
    after = loaded(sink)
    assert (after.version, version) == (table.version + 1, after.version)
    assert after.position == Position(seq=1, attempt_token=attempt_token(FIRST))
    assert sorted(kit.rows(root), key=lambda row: row["id"]) == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


def test_an_append_of_several_batches_moves_the_position_to_the_last(kit: Kit, sink: Sink, root: Path) -> None:
    files = [write(root, attempt_id, id=[7], name=["x"]) for attempt_id in (FIRST, SECOND)]
    loaded(sink).append(append(5, SECOND, *files))
    assert loaded(sink).position == Position(seq=5, attempt_token=attempt_token(SECOND))
    assert len(kit.rows(root)) == 2


def test_an_attempt_token_may_be_lower_than_the_one_before(sink: Sink, root: Path) -> None:
    high, low = sorted((FIRST, SECOND), key=attempt_token, reverse=True)
    loaded(sink).append(append(1, high, write(root, high, id=[1], name=["a"])))
    loaded(sink).append(append(2, low, write(root, low, id=[2], name=["b"])))
    assert loaded(sink).position == Position(seq=2, attempt_token=attempt_token(low))


def test_an_append_to_a_stale_snapshot_conflicts(kit: Kit, sink: Sink, root: Path) -> None:
    stale, current = loaded(sink), loaded(sink)
    current.append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))
    with pytest.raises(PublishConflict):
        stale.append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))
    assert len(kit.rows(root)) == 1


def test_a_second_append_to_a_snapshot_conflicts(kit: Kit, sink: Sink, root: Path) -> None:
    table = loaded(sink)
    table.append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))
    with pytest.raises(PublishConflict):
        table.append(append(2, SECOND, write(root, SECOND, id=[2], name=["b"])))
    assert len(kit.rows(root)) == 1


def test_a_schema_change_makes_older_snapshots_conflict(kit: Kit, sink: Sink, root: Path) -> None:
    stale = loaded(sink)
    sink.ensure_schema(SCHEMA.append(pa.field("score", pa.float64())))
    with pytest.raises(PublishConflict):
        stale.append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))
    assert kit.rows(root) == []


def test_another_pipeline_in_the_table_has_its_own_position_and_conflicts(kit: Kit, sink: Sink, root: Path) -> None:
    other = kit.sink(root, pipeline="file:///lake/elsewhere")
    stale = loaded(sink)
    loaded(other).append(append(9, THIRD, write(root, THIRD, id=[9], name=["z"])))
    assert loaded(sink).position.seq == 0
    assert loaded(other).position.seq == 9
    with pytest.raises(PublishConflict):
        stale.append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))
    loaded(sink).append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))
    assert loaded(other).position.seq == 9
    assert len(kit.rows(root)) == 2


def test_a_missing_file_halts_the_append_and_leaves_the_table_unchanged(kit: Kit, sink: Sink, root: Path) -> None:
    good, missing = (write(root, FIRST, file_name=name, id=[1]) for name in ("good", "gone"))
    (root / missing.path).unlink()
    with pytest.raises(PublishHalted, match="does not exist"):
        loaded(sink).append(append(1, FIRST, good, missing))
    assert loaded(sink).position.seq == 0
    assert kit.rows(root) == []


def test_a_file_of_another_size_halts_the_append(kit: Kit, sink: Sink, root: Path) -> None:
    file = write(root, FIRST, id=[1], name=["a"])
    with (root / file.path).open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(PublishHalted, match="bytes"):
        loaded(sink).append(append(1, FIRST, file))
    assert kit.rows(root) == []


def test_a_file_with_other_partitions_halts_the_append(kit: Kit, sink: Sink, root: Path) -> None:
    file = write(root, FIRST, partition={"name": "a"}, folder="name=a", id=[1])
    with pytest.raises(PublishHalted, match="partitioned by name"):
        loaded(sink).append(append(1, FIRST, file))


@pytest.mark.parametrize(
    ("folder", "value"),
    [
        ("name=plain", "plain"),
        ("name=a%2Fb%3Dc", "a/b=c"),
        ("name=50%25", "50%"),
        ("name=%2541", "%41"),
        ("name=x y+z&#é😀", "x y+z&#é😀"),
        ("name=new%0Aline", "new\nline"),
        ("name=..", ".."),
        ("name=__HIVE_DEFAULT_PARTITION__", None),
    ],
)
def test_partition_values_are_read_back_unchanged(kit: Kit, root: Path, folder: str, value: str | None) -> None:
    sink = kit.sink(root, partition_by=["name"])
    sink.ensure_schema(SCHEMA)
    loaded(sink).append(append(1, FIRST, write(root, FIRST, partition={"name": value}, folder=folder, id=[1])))
    assert kit.rows(root) == [{"id": 1, "name": value}]


def test_readers_see_neither_unpublished_files_nor_the_data_directory(kit: Kit, sink: Sink, root: Path) -> None:
    loaded(sink).append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))
    write(root, FIRST, file_name="straggler", id=[2])
    write(root, SECOND, id=[3])
    (root / "_penstock").mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": [4]}), root / "_penstock" / "report.parquet")
    assert kit.rows(root) == [{"id": 1, "name": "a"}]
