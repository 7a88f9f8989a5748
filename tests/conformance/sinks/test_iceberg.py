"""Iceberg tables: what readers see, which tables are refused, what a halted or killed writer leaves, and expiry."""

import json
from collections.abc import Callable, Iterator
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
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import SetPropertiesUpdate, TableUpdate
from tests.conformance.sinks.kit import FIRST, PIPELINE, SCHEMA, SECOND, append, iceberg_table, write
from tests.conformance.sinks.test_sink_races import at_once
from tests.services.aws_server import AwsServer
from tests.services.duckdb_iceberg import duckdb_with_iceberg

from penstock.errors import PublishConflict, PublishHalted, TableError, TemporaryError
from penstock.pipeline.maintenance.compact import compact
from penstock.pipeline.maintenance.table_history import BatchFiles, RowLossCheck
from penstock.sinks.iceberg import folder
from penstock.sinks.iceberg.folder import HINT, FolderCatalog, StoredMetadata
from penstock.sinks.iceberg.log import SNAPSHOTS_KEPT, SNAPSHOTS_KEPT_DEFAULT
from penstock.sinks.iceberg.sink import IcebergTableSink, LoadedIceberg
from penstock.sinks.iceberg.snapshots import MERGED_MANIFESTS, SnapshotMaker, manifests_of
from penstock.sinks.manifest import DataFile, attempt_token
from penstock.sinks.parquet import list_files
from penstock.sinks.sink import Position
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
    loaded(sink).append(append(seq, attempt_id, write(root, attempt_id, id=[seq], name=[f"n{seq}"])))


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
        loaded(sink).append(append(seq, attempt_id, *files))
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


def test_a_table_without_the_property_keeps_all_snapshots(sink: IcebergTableSink, root: Path) -> None:
    changed(root, SetPropertiesUpdate(updates={SNAPSHOTS_KEPT: "all"}))
    for seq in range(1, 5):
        published(sink, root, seq)
    assert len(loaded(sink).metadata.snapshots) == 4


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
    loaded(sink).append(append(seq, attempt_id, file))


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
