"""Iceberg tables: what readers see, which tables are refused, what a halted or killed writer leaves, and expiry."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import ManifestContent, ManifestFile, write_manifest_list
from pyiceberg.table import StaticTable
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import LongType
from tests.conformance.sinks.kit import FIRST, PIPELINE, SCHEMA, SECOND, THIRD, append, iceberg_table, write
from tests.conformance.sinks.test_sink_races import at_once
from tests.services.aws_server import AwsServer
from tests.services.duckdb_iceberg import duckdb_with_iceberg

from penstock.errors import PublishConflict, PublishHalted, TableError, TemporaryError
from penstock.events import Bus
from penstock.messaging.steps import no_probe
from penstock.pipeline.checkpoints import CheckpointWriter
from penstock.pipeline.maintenance.compact import compact
from penstock.pipeline.maintenance.table_history import BatchFiles, RowLossCheck
from penstock.sinks.iceberg import folder
from penstock.sinks.iceberg.folder import HINT, FolderCatalog, StoredMetadata
from penstock.sinks.iceberg.log import SNAPSHOTS_KEPT, SNAPSHOTS_KEPT_DEFAULT
from penstock.sinks.iceberg.position import property_of
from penstock.sinks.iceberg.sink import IcebergTableSink, LoadedIceberg
from penstock.sinks.iceberg.snapshots import MERGED_MANIFESTS, SnapshotMaker, manifests_of
from penstock.sinks.manifest import DataFile, attempt_token
from penstock.sinks.parquet import list_files
from penstock.sinks.sink import Append, Position
from penstock.storage.address import S3Address
from penstock.storage.files import Files
from penstock.storage.local import LocalFiles
from penstock.storage.s3_files import S3Files
from penstock.testing import FakeClock

KEPT = 5  # metadata files, in tests that need fewer


def sink_at(root: Path, **options: Any) -> IcebergTableSink:
    return IcebergTableSink(LocalFiles(root), pipeline=PIPELINE, **options)


def loaded(sink: IcebergTableSink) -> LoadedIceberg:
    table = sink.load()
    assert table is not None
    return table


@pytest.fixture
def sink(root: Path) -> IcebergTableSink:
    sink = sink_at(root)
    sink.ensure_schema(SCHEMA)
    return sink


def published(sink: IcebergTableSink, root: Path, seq: int) -> None:
    attempt_id = f"01K0{seq:022d}"
    commit(sink, append(seq, attempt_id, write(root, attempt_id, id=[seq], name=[f"n{seq}"])))


def commit(sink: IcebergTableSink, appended: Append) -> None:
    """Append to the newest snapshot as a publish does."""
    table = loaded(sink)
    checkpoints = CheckpointWriter(pipeline=PIPELINE, sink=sink.uri, bus=Bus())
    checkpoints.after_commit(table, table.append(appended), probe=no_probe)


def ids(root: Path) -> list[int]:
    return sorted(iceberg_table(root).scan().to_arrow()["id"].to_pylist())


def stored(root: Path) -> StoredMetadata:
    found = FolderCatalog(LocalFiles(root)).load()
    assert found is not None
    return found


def changed(root: Path, *updates: TableUpdate) -> None:
    """Commit as another writer."""
    FolderCatalog(LocalFiles(root)).commit(stored(root), (), updates)


# Readers

_COLUMNS: dict[str, tuple[pa.DataType, Any]] = {
    "id": (pa.int64(), 7),
    "small": (pa.int8(), 1),
    "medium": (pa.int16(), 2),
    "name": (pa.string(), "é"),
    "at": (pa.timestamp("us", tz="UTC"), datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)),
    "local": (pa.timestamp("us"), datetime(2024, 1, 2, 3, 4, 5, 678901)),  # noqa: DTZ001 -- without a zone
    "born": (pa.date32(), date(1969, 12, 31)),
    "price": (pa.decimal128(10, 2), Decimal("1.25")),
    "share": (pa.float64(), 0.5),
    "raw": (pa.binary(), b"x"),
    "nested": (pa.struct([("a", pa.int64())]), {"a": 1}),
    "parts": (pa.list_(pa.int64()), [1, 2]),
}
_PARTITIONS = {"day": pa.date32(), "place": pa.string()}
_FILTERS = {  # rows: one of each file, with id 7, and one that is null in all columns of its file
    "id = 7": 2,
    "id = 8": 0,
    "id is null": 2,
    "small = 1": 2,
    "name = 'é'": 2,
    "born = '1969-12-31'": 2,
    "share < 1": 2,
    "day = '2024-01-01'": 2,
    "place = 'a/b'": 2,
    "place is null": 2,
    "added = 9": 1,
    "added is null": 3,
}


@pytest.fixture
def readable(root: Path) -> Path:
    """Return a table with all types, a file before and a file after a column was added, and null partitions."""
    sink = sink_at(root, partition_by=list(_PARTITIONS))
    columns = pa.schema([*((name, type_) for name, (type_, _) in _COLUMNS.items()), *_PARTITIONS.items()])
    folders = (
        "day=2024-01-01/place=a%2Fb",
        "day=__HIVE_DEFAULT_PARTITION__/place=__HIVE_DEFAULT_PARTITION__",
    )
    for seq, (attempt_id, place) in enumerate(zip((FIRST, SECOND), folders, strict=True), start=1):
        values = {name: (type_, [value, None]) for name, (type_, value) in _COLUMNS.items()}
        if seq == 2:
            columns = columns.append(pa.field("added", pa.int64()))
            values["added"] = (pa.int64(), [9, None])
        sink.ensure_schema(columns)
        path = root / "data" / attempt_id / "r1" / place / "part-0.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({name: pa.array(some, type_) for name, (type_, some) in values.items()}), path)
        files = list_files(LocalFiles(root), f"data/{attempt_id}/r1", partition_by=list(_PARTITIONS), schema=columns)
        commit(sink, append(seq, attempt_id, *files))
    assert loaded(sink).schema.equals(columns)
    return root


def test_pyiceberg_reads_all_columns_and_filters(readable: Path) -> None:
    table = iceberg_table(readable)
    (row, *_) = table.scan(row_filter="added = 9").to_arrow().to_pylist()
    assert row == {name: value for name, (_, value) in _COLUMNS.items()} | {"day": None, "place": None, "added": 9}
    assert {one: table.scan(row_filter=one).to_arrow().num_rows for one in _FILTERS} == _FILTERS


def test_duckdb_reads_all_columns_and_filters(readable: Path, tmp_path: Path) -> None:
    connection = duckdb_with_iceberg(tmp_path)
    metadata = next(iter(readable.glob("metadata/v4.metadata.json")))
    for place in (metadata, readable):  # by file, and by the folder's hint
        query = f"select count(*) from iceberg_scan('{place}') where "
        found = {one: connection.execute(query + one).fetchall()[0][0] for one in _FILTERS}
        assert found == _FILTERS
    relation = connection.sql(f"select * from iceberg_scan('{readable}') where added = 9")
    row = dict(zip(relation.columns, relation.fetchall()[0], strict=True))
    expected = {name: value for name, (_, value) in _COLUMNS.items()} | {"day": None, "place": None, "added": 9}
    assert row == expected


@pytest.mark.filterwarnings("ignore:Iceberg scan planning")
def test_polars_reads_all_columns_and_filters(readable: Path) -> None:
    frame = pl.scan_iceberg(iceberg_table(readable))
    (row,) = frame.filter(pl.col("added") == 9).collect().to_dicts()
    assert row == {name: value for name, (_, value) in _COLUMNS.items()} | {"day": None, "place": None, "added": 9}
    filters = {one: one.replace(" = '", " = date '") if "day" in one or "born" in one else one for one in _FILTERS}
    found = {one: frame.filter(pl.sql_expr(text)).collect().height for one, text in filters.items()}
    assert found == _FILTERS


def test_pyiceberg_and_polars_read_the_newest_version_by_the_folder(tmp_path: Path) -> None:
    root = tmp_path / "clicks"
    sink = sink_at(root)
    sink.ensure_schema(SCHEMA)
    for seq in (1, 2):
        published(sink, root, seq)
    assert sorted(StaticTable.from_metadata(str(root)).scan().to_arrow()["id"].to_pylist()) == [1, 2]
    assert sorted(pl.scan_iceberg(str(root)).collect()["id"].to_list()) == [1, 2]


def test_the_sinks_own_dataset_reads_all_columns_and_filters(readable: Path) -> None:
    dataset = loaded(sink_at(readable, partition_by=None)).dataset()
    assert dataset.to_table(filter=ds.field("day") == date(2024, 1, 1)).num_rows == 2
    assert dataset.to_table(filter=ds.field("place").is_null())["added"].to_pylist() == [9, None]


def test_files_are_skipped_by_their_bounds(readable: Path) -> None:
    def planned(row_filter: str) -> int:
        return len(list(iceberg_table(readable).scan(row_filter=row_filter).plan_files()))

    expected = {"id = 7": 2, "id = 8": 0, "born > '1969-12-31'": 0, "at < '2024-01-02T03:04:05+00:00'": 0}
    assert {one: planned(one) for one in expected} == expected
    assert planned("at = '2024-01-02T03:04:05.678901+00:00'") == 2, "the bounds are rounded outwards"
    assert planned("name = 'é'") == 2


# Tables that are refused


def rewritten(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the metadata of the newest version, as another writer would have written it."""
    found = stored(root)
    path = Path(found.location)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update({"format-version": 3, "next-row-id": 0}), "format version 3"),
        (lambda d: d["properties"].update({"encryption.key-id": "k"}), "encryption"),
        (
            lambda d: d["partition-specs"][0]["fields"].append(
                {"name": "id_null", "source-id": 1, "field-id": 1000, "transform": "void"}
            ),
            r"the partition transform void \(id_null\)",
        ),
        (
            lambda d: d["partition-specs"][0]["fields"].append(
                {"name": "other", "source-id": 1, "field-id": 1000, "transform": "identity"}
            ),
            r"a partition field named otherwise than its column \(other\)",
        ),
        (
            lambda d: d["partition-specs"].append({"spec-id": 1, "fields": []}),
            "a partitioning that was changed",
        ),
    ],
)
@pytest.mark.usefixtures("sink")
def test_a_feature_that_an_append_would_violate_is_refused(
    root: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    rewritten(root, change)
    with pytest.raises(TableError, match=message):
        sink_at(root, partition_by=None).load()


def test_a_column_of_a_type_that_penstock_cannot_write_is_refused_by_name(sink: IcebergTableSink, root: Path) -> None:
    extra = {"id": 3, "name": "key", "required": False, "type": "uuid"}
    rewritten(root, lambda d: d["schemas"][0]["fields"].append(extra))
    with pytest.raises(TableError, match=r"column key of the table .* is of Iceberg's type uuid"):
        sink.ensure_schema(SCHEMA)


def test_a_moved_table_is_refused(sink: IcebergTableSink, root: Path) -> None:
    published(sink, root, 1)
    moved = root.rename(root.with_name("moved"))
    with pytest.raises(TableError, match=f"was moved or copied: its metadata says that it is at {root}"):
        sink_at(moved).load()


def test_a_folder_with_a_table_of_another_catalog_is_refused(root: Path) -> None:
    (root / "metadata").mkdir(parents=True)
    (root / "metadata" / "00000-5b3b5e4c-0000-4000-8000-000000000000.metadata.json").write_text("{}")
    with pytest.raises(TableError, match="is no Iceberg table and not empty"):
        sink_at(root).load()


def test_a_table_with_deleted_rows_accepts_appends_and_no_compaction(sink: IcebergTableSink, root: Path) -> None:
    published(sink, root, 1)
    newest = stored(root).metadata.current_snapshot_id
    rewritten(
        root,
        lambda d: [
            one["summary"].update({"total-delete-files": "1"}) for one in d["snapshots"] if one["snapshot-id"] == newest
        ],
    )
    assert loaded(sink).rows() is None
    with pytest.raises(TableError, match="deleted single rows"):
        loaded(sink).logged_files()
    with pytest.raises(TableError, match="deleted single rows"):
        loaded(sink).dataset()
    published(sink, root, 2)
    assert loaded(sink).position.seq == 2


def test_deletes_that_no_summary_counts_are_found(sink: IcebergTableSink, root: Path) -> None:
    published(sink, root, 1)
    with_deletes(root)
    assert loaded(sink).rows() is None
    with pytest.raises(TableError, match="deleted single rows"):
        loaded(sink).logged_files()


def with_deletes(root: Path) -> None:
    """Commit a snapshot with one more manifest, of delete files, as a writer that keeps no totals."""
    found = stored(root)
    files = FolderCatalog(LocalFiles(root)).io
    before = found.metadata.current_snapshot()
    assert before is not None
    deletes = ManifestFile.from_args(
        manifest_path=f"{root}/metadata/deletes.avro",
        manifest_length=1,
        partition_spec_id=0,
        content=ManifestContent.DELETES,
        sequence_number=2,
        min_sequence_number=2,
        added_snapshot_id=1,
        added_files_count=1,
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=1,
        existing_rows_count=0,
        deleted_rows_count=0,
    )
    path = f"{root}/metadata/snap-1.avro"
    with write_manifest_list(
        format_version=2,
        output_file=files.new_output(path),
        snapshot_id=1,
        parent_snapshot_id=before.snapshot_id,
        sequence_number=2,
        avro_compression="deflate",
    ) as writer:
        writer.add_manifests([*manifests_of(before, files), deletes])
    snapshot = before.model_copy(
        update={
            "snapshot_id": 1,
            "parent_snapshot_id": before.snapshot_id,
            "sequence_number": 2,
            "manifest_list": path,
            "summary": Summary(Operation.OVERWRITE),
        }
    )
    changed(
        root,
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate(
            ref_name="main",
            type=SnapshotRefType.BRANCH,
            snapshot_id=1,
            max_ref_age_ms=None,
            max_snapshot_age_ms=None,
            min_snapshots_to_keep=None,
        ),
    )


def test_spark_is_given_no_files_of_a_table_in_which_rows_were_deleted(sink: IcebergTableSink, root: Path) -> None:
    from penstock.pipeline.spark.frames import frame_of

    published(sink, root, 1)
    with_deletes(root)
    with pytest.raises(TableError, match=r"deleted single rows .* Read it with PyIceberg"):
        frame_of(None, loaded(sink))  # type: ignore[arg-type] # Spark is not asked


# Columns that other writers change


def rows_by_id(root: Path, row_filter: str = "true") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = iceberg_table(root).scan(row_filter=row_filter).to_arrow().sort_by("id").to_pylist()
    return found


def as_other_writer(root: Path, change: Callable[[UpdateSchema], object], *, maps_names: bool = True) -> None:
    """Change the columns with PyIceberg. Not every engine keeps the name mapping right, as it does."""
    before = stored(root)
    with UpdateSchema(iceberg_table(root).transaction(), allow_incompatible_changes=True) as update:
        change(update)
        updates, _ = update._commit()
        update._transaction._autocommit = False
    kept = updates if maps_names else [one for one in updates if not isinstance(one, SetPropertiesUpdate)]
    FolderCatalog(LocalFiles(root)).commit(before, (), kept)


@pytest.mark.parametrize("maps_names", [True, False])
def test_a_dropped_column_that_batches_still_have_is_added_with_all_its_values(
    sink: IcebergTableSink, root: Path, maps_names: bool
) -> None:
    published(sink, root, 1)
    as_other_writer(root, lambda update: update.delete_column("name"), maps_names=maps_names)
    sink.ensure_schema(SCHEMA)
    published(sink, root, 2)
    rows = rows_by_id(root, "id > 0")
    assert rows == [{"id": 1, "name": "n1"}, {"id": 2, "name": "n2"}]
    assert iceberg_table(root).scan(row_filter="name = 'n2'").to_arrow().num_rows == 1
    assert loaded(sink).dataset().to_table().num_rows == 2


@pytest.mark.parametrize("maps_names", [True, False])
def test_a_renamed_column_that_batches_have_under_its_old_name_is_refused(
    sink: IcebergTableSink, root: Path, maps_names: bool
) -> None:
    published(sink, root, 1)
    as_other_writer(root, lambda update: update.rename_column("name", "title"), maps_names=maps_names)
    with pytest.raises(TableError, match=r"name of the table .* was renamed to title .* Rename title back to name"):
        sink.ensure_schema(SCHEMA)
    as_other_writer(root, lambda update: update.rename_column("title", "name"), maps_names=maps_names)
    sink.ensure_schema(SCHEMA)
    published(sink, root, 2)
    rows = rows_by_id(root)
    assert rows == [{"id": 1, "name": "n1"}, {"id": 2, "name": "n2"}]


@pytest.mark.parametrize("maps_names", [True, False])
def test_batches_with_the_new_name_of_a_renamed_column_are_read_with_the_old_ones(
    sink: IcebergTableSink, root: Path, maps_names: bool
) -> None:
    published(sink, root, 1)
    as_other_writer(root, lambda update: update.rename_column("name", "title"), maps_names=maps_names)
    loaded(sink).append(append(2, THIRD, write(root, THIRD, id=[2], title=["n2"])))
    rows = rows_by_id(root)
    assert rows == [{"id": 1, "title": "n1"}, {"id": 2, "title": "n2"}]
    with pytest.raises(TableError, match="were renamed"):
        loaded(sink).check_readable()


def test_parts_of_columns_that_another_writer_adds_get_their_names(sink: IcebergTableSink, root: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int64())]))])
    nested = root.with_name("nested")
    sink = sink_at(nested)
    sink.ensure_schema(columns)
    as_other_writer(nested, lambda update: update.add_column(("s", "b"), LongType()), maps_names=False)
    loaded(sink).append(append(1, FIRST, write(nested, FIRST, id=[1], s=[{"a": 1, "b": 2}])))
    assert iceberg_table(nested).scan().to_arrow().to_pylist() == [{"id": 1, "s": {"a": 1, "b": 2}}]


@pytest.mark.parametrize("parts", [pa.struct([("b", pa.int64())]), pa.map_(pa.string(), pa.int64())])
def test_a_column_named_like_a_part_of_another_one_is_refused_by_name(root: Path, parts: pa.DataType) -> None:
    name = "a.b" if pa.types.is_struct(parts) else "a.key"
    columns = pa.schema([("a", parts), (name, pa.int64())])
    with pytest.raises(TableError, match=f"two columns or parts of columns with the name {name}"):
        sink_at(root).ensure_schema(columns)
    assert not root.exists()
    sink_at(root).ensure_schema(pa.schema([columns.field(0)]))
    with pytest.raises(TableError, match=f"two columns or parts of columns with the name {name}"):
        sink_at(root).ensure_schema(columns)


# Other writers


def foreign_append(root: Path) -> None:
    """Add an empty snapshot that knows nothing of positions."""
    found = stored(root)
    maker = SnapshotMaker(
        metadata=found.metadata,
        io=FolderCatalog(LocalFiles(root)).io,
        location=found.metadata.location,
        operation=Operation.APPEND,
    )
    changed(root, *maker.updates())


def test_commits_of_other_writers_keep_the_position_and_count_as_versions(sink: IcebergTableSink, root: Path) -> None:
    published(sink, root, 1)
    stale = loaded(sink)
    foreign_append(root)
    assert (loaded(sink).version, loaded(sink).position.seq) == (2, 1)
    assert sink.load_version(2).position.seq == sink.load_version(1).position.seq == 1
    with pytest.raises(PublishConflict):
        stale.append(append(2, SECOND, write(root, SECOND, id=[2], name=["b"])))
    published(sink, root, 2)
    commits = list(sink.commits())
    assert [one.version for one in commits] == [3, 2, 1, 0]
    assert [None if one.position is None else one.position.seq for one in commits] == [2, None, 1, None]


def test_a_position_whose_property_was_removed_is_found_in_the_snapshots(sink: IcebergTableSink, root: Path) -> None:
    for seq in (1, 2):
        published(sink, root, seq)
    position = loaded(sink).position
    changed(root, RemovePropertiesUpdate(removals=[property_of(PIPELINE)]))
    foreign_append(root)
    assert (loaded(sink).position, position.seq) == (position, 2)
    published(sink, root, 3)
    assert (loaded(sink).position.seq, ids(root)) == (3, [1, 2, 3])


def test_changed_table_properties_alone_make_older_snapshots_conflict(sink: IcebergTableSink, root: Path) -> None:
    stale = loaded(sink)
    changed(root, SetPropertiesUpdate(updates={"comment": "x"}))
    with pytest.raises(PublishConflict):
        stale.append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))


def test_a_batch_whose_files_no_snapshot_names_any_more_is_reported_with_the_property_that_keeps_snapshots(
    sink: IcebergTableSink, root: Path
) -> None:
    published(sink, root, 1)
    check = RowLossCheck(sink)
    with pytest.raises(PublishHalted, match=rf"rows of batch 1: .*the table's property {SNAPSHOTS_KEPT}\)"):
        check.check([BatchFiles(seq=1, paths={"data/unnamed.parquet"})], written=lambda _: 2)


# The table's folder as catalog


@pytest.mark.parametrize("hint", [None, "1", "999", "text"])
def test_the_newest_version_is_found_without_a_right_hint(sink: IcebergTableSink, root: Path, hint: str | None) -> None:
    for seq in (1, 2, 3):
        published(sink, root, seq)
    (root / HINT).unlink()
    if hint is not None:
        (root / HINT).write_text(hint)
    assert loaded(sink).position.seq == 3


@pytest.mark.parametrize("name", ["v3.gz.metadata.json", "v3.metadata.json.gz"])
def test_a_newer_version_that_another_writer_compressed_is_not_passed_over(
    sink: IcebergTableSink, root: Path, name: str
) -> None:
    published(sink, root, 1)
    (root / "metadata" / name).write_bytes(b"")
    (root / HINT).write_text("3")
    with pytest.raises(TableError, match=r"Version 3 of the table .* is by another writer and compressed"):
        sink.load()


def test_a_writer_halted_for_longer_than_versions_are_kept_changes_nothing(
    sink: IcebergTableSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next version's file was deleted, so it can be created again, and is not taken for the newest one."""
    monkeypatch.setattr(folder, "KEPT", KEPT)
    stale = loaded(sink)
    for seq in range(1, KEPT + 4):
        published(sink, root, seq)
    assert not (root / "metadata" / "v2.metadata.json").exists()
    for hint in ("2", str(KEPT + 4)):
        with pytest.raises(PublishConflict, match="version 1 is no longer known"):
            stale.append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))
        assert not (root / "metadata" / "v2.metadata.json").exists()
        (root / "metadata" / "v2.metadata.json").write_text("left behind by a writer that was killed")
        (root / HINT).write_text(hint)
        assert loaded(sink).position.seq == KEPT + 3
        (root / "metadata" / "v2.metadata.json").unlink()


def test_metadata_stays_small_and_old_snapshots_expire(
    sink: IcebergTableSink, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "KEPT", KEPT)
    assert stored(root).metadata.properties[SNAPSHOTS_KEPT] == str(SNAPSHOTS_KEPT_DEFAULT)
    changed(root, SetPropertiesUpdate(updates={SNAPSHOTS_KEPT: "20"}))
    commits = 2 * MERGED_MANIFESTS
    for seq in range(1, commits + 1):
        published(sink, root, seq)
    table = loaded(sink)
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None
    assert len(table.metadata.snapshots) == 20
    assert len(manifests_of(snapshot, FolderCatalog(LocalFiles(root)).io)) <= MERGED_MANIFESTS + 1
    assert len(list(root.glob("metadata/v*.metadata.json"))) == KEPT
    assert (table.version, table.rows(), ids(root)) == (commits, commits, list(range(1, commits + 1)))
    assert list(sink.versions()) == list(range(commits, commits - 20, -1))
    oldest = sink.load_version(commits - 20 + 1)
    assert (oldest.position.seq, oldest.rows()) == (oldest.version, oldest.version)
    with pytest.raises(TableError, match=r"Version 1 of the table .* has expired"):
        sink.load_version(1)


def foreign_change(root: Path, operation: Operation, *, added: Sequence[DataFile] = (), removed: str = "") -> None:
    found = stored(root)
    maker = SnapshotMaker(
        metadata=found.metadata,
        io=FolderCatalog(LocalFiles(root)).io,
        location=found.metadata.location,
        operation=operation,
        added=[loaded(sink_at(root))._iceberg_file(file) for file in added],
        removed={f"{root}/{removed}"} if removed else (),
    )
    changed(root, *maker.updates())


def test_a_removal_is_found_behind_expired_appends_though_others_added_as_many_rows(
    sink: IcebergTableSink, root: Path
) -> None:
    changed(root, SetPropertiesUpdate(updates={SNAPSHOTS_KEPT: "3"}))
    foreign_change(root, Operation.APPEND, added=[write(root, "others", id=list(range(100)), name=["x"] * 100)])
    file = write(root, FIRST, id=[1, 2], name=["a", "b"])
    loaded(sink).append(append(1, FIRST, file))
    foreign_change(root, Operation.OVERWRITE, removed=file.path)
    for seq in range(2, 8):
        published(sink, root, seq)
    assert min(sink.versions()) > 3
    with pytest.raises(PublishHalted, match=r"Version 3 of the table .* removed rows of batch 1"):
        RowLossCheck(sink).check([BatchFiles(seq=1, paths=[file.path])], written=lambda seq: seq + 1)


def test_files_that_were_merged_behind_expired_appends_are_no_loss(sink: IcebergTableSink, root: Path) -> None:
    changed(root, SetPropertiesUpdate(updates={SNAPSHOTS_KEPT: "3"}))
    published(sink, root, 1)
    published(sink, root, 2)
    compact(sink, clock=FakeClock(auto_advance=True))
    for seq in range(3, 9):
        published(sink, root, seq)
    assert min(sink.versions()) > 3
    merged = [file for commit in sink.earlier_removals() for file in commit.merged]
    assert len(merged) == 2
    check = RowLossCheck(sink)
    check.check([BatchFiles(seq=1, paths=merged)], written=lambda _: 1_000)
    with pytest.raises(PublishHalted, match="its log no longer says what became of files of this batch"):
        check.check([BatchFiles(seq=1, paths=["data/other.parquet"])], written=lambda _: 1_000)


def test_a_table_without_the_property_keeps_all_snapshots(sink: IcebergTableSink, root: Path) -> None:
    changed(root, SetPropertiesUpdate(updates={SNAPSHOTS_KEPT: "all"}))
    for seq in range(1, 5):
        published(sink, root, seq)
    assert len(loaded(sink).metadata.snapshots) == 4


def test_a_retention_that_is_no_number_is_named(sink: IcebergTableSink, root: Path) -> None:
    changed(root, SetPropertiesUpdate(updates={"history.expire.max-snapshot-age-ms": "7 days"}))
    with pytest.raises(TableError, match=r"max-snapshot-age-ms of the table at .* is '7 days', which is no number"):
        loaded(sink).vacuum(retention_hours=None, dry_run=True)


def test_a_commit_that_began_before_a_vacuum_cannot_succeed_after_it(sink: IcebergTableSink, root: Path) -> None:
    published(sink, root, 1)
    published(sink, root, 2)
    changed(root, SetPropertiesUpdate(updates={"history.expire.max-snapshot-age-ms": "0"}))
    stale = loaded(sink)
    assert loaded(sink).vacuum(retention_hours=None, dry_run=False) == []
    with pytest.raises(PublishConflict):
        stale.append(append(3, "late", write(root, "late", id=[3], name=["c"])))
    published(sink, root, 3)
    assert (ids(root), loaded(sink).position.seq) == ([1, 2, 3], 3)
    assert len(loaded(sink).metadata.snapshots) == 3, "the newest before the vacuum, the vacuum's, and the append"


# Faults and kills


class Died(BaseException):
    """Simulates the death of the process."""


@dataclass(slots=True)
class FaultyFiles:
    """Local files that raise at the numbered change of a file, before or after it is made."""

    inner: Files
    fault: Callable[[], BaseException]
    at: int
    before: bool
    changes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return str(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def write(self, path: str, data: bytes) -> None:
        with self._change(path):
            self.inner.write(path, data)

    def write_new(self, path: str, data: bytes) -> bool:
        with self._change(path):
            return self.inner.write_new(path, data)

    def delete(self, paths: Any) -> None:
        some = list(paths)
        with self._change(",".join(some)):
            self.inner.delete(some)

    def _change(self, path: str) -> AbstractContextManager[None]:
        @contextmanager
        def made() -> Iterator[None]:
            self.changes.append(path)
            hit = len(self.changes) == self.at
            if hit and self.before:
                raise self.fault()
            yield
            if hit:
                raise self.fault()

        return made()


def _commit_with(root: Path, files: Any, seq: int) -> None:
    attempt_id = f"01K0{seq:022d}"
    file = write(root, attempt_id, id=[seq], name=["x"])
    sink = IcebergTableSink(files, pipeline=PIPELINE)
    sink.ensure_schema(SCHEMA)
    commit(sink, append(seq, attempt_id, file))


CHANGES = 6  # of a creation and an append


def test_the_number_of_changes_that_are_killed_is_right(root: Path) -> None:
    files = FaultyFiles(LocalFiles(root), Died, at=0, before=True)
    _commit_with(root, files, 1)
    assert len(files.changes) == CHANGES, files.changes


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, CHANGES + 1))
def test_a_process_killed_at_any_change_of_a_file_loses_and_doubles_nothing(root: Path, at: int, before: bool) -> None:
    with pytest.raises(Died):
        _commit_with(root, FaultyFiles(LocalFiles(root), Died, at=at, before=before), 1)
    sink = sink_at(root)
    table = sink.load()
    shown = 0 if table is None else table.position.seq
    assert shown in (0, 1)
    if shown == 0:
        _commit_with(root, LocalFiles(root), 1)
    _commit_with(root, LocalFiles(root), 2)
    assert (ids(root), loaded(sink).position) == (
        [1, 2],
        Position(seq=2, attempt_token=attempt_token(f"01K0{2:022d}")),
    )


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, CHANGES + 1))
def test_a_failed_change_of_a_file_is_a_conflict_or_a_temporary_error_until_the_commit(
    root: Path, at: int, before: bool
) -> None:
    """An error after the commit, or for a commit that was made, is none."""
    files = FaultyFiles(LocalFiles(root), lambda: TemporaryError("no answer"), at=at, before=before)
    try:
        _commit_with(root, files, 1)
        failed = False
    except (PublishConflict, TemporaryError):
        failed = True
    table = sink_at(root).load()
    assert failed == (table is None or table.position.seq == 0)
    if failed:
        _commit_with(root, LocalFiles(root), 1)
    assert ids(root) == [1]


# S3


def test_a_table_in_s3_is_published_compacted_read_and_vacuumed(moto: AwsServer) -> None:
    moto.client("s3").create_bucket(Bucket="lake")
    files = S3Files(S3Address(bucket="lake", prefix="a b/clicks"), moto.aws)

    def in_s3(attempt_id: str, number: int) -> DataFile:
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": [number], "name": ["x"]}), buffer)
        files.write(f"data/{attempt_id}/r1/part-0.parquet", buffer.getvalue().to_pybytes())
        (found,) = list_files(files, f"data/{attempt_id}/r1", partition_by=(), schema=SCHEMA)
        return found

    def publish(seq: int) -> None:
        """Check and commit, as every publisher does."""
        while True:
            sink = IcebergTableSink(files, pipeline=PIPELINE)
            try:
                sink.ensure_schema(SCHEMA)
                table = loaded(sink)
                if table.position.seq >= seq:
                    return
                table.append(append(seq, f"attempt-{seq}", named[seq]))
            except PublishConflict:
                continue

    named = {seq: in_s3(f"attempt-{seq}", seq) for seq in range(1, 5)}
    for seq in named:
        assert at_once(*[lambda seq=seq: publish(seq)] * 3) == [None] * 3
    sink = IcebergTableSink(files, pipeline=PIPELINE, partition_by=None)
    assert (loaded(sink).version, loaded(sink).rows()) == (4, 4)
    done = compact(sink, clock=FakeClock(auto_advance=True))
    assert done is not None
    assert (done.files_before, done.files_after, done.table_version) == (4, 1, 5)
    rows = loaded(sink).dataset().to_table(filter=ds.field("id") > 1)
    assert sorted(rows["id"].to_pylist()) == [2, 3, 4]
    assert loaded(sink).position.seq == 4
    changes: list[TableUpdate] = [SetPropertiesUpdate(updates={"history.expire.max-snapshot-age-ms": "0"})]
    catalog = FolderCatalog(files)
    before = catalog.load()
    assert before is not None
    catalog.commit(before, (), changes)
    assert len(loaded(sink).vacuum(retention_hours=None, dry_run=False)) == 4
    assert sorted(loaded(sink).dataset().to_table()["id"].to_pylist()) == [1, 2, 3, 4]
    assert list(files.names("data")) == []
