"""Files that other writers add to a table, as a batch that replaces rows finds them: written again or refused."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from tests.conformance.sinks.kit import KITS, CatalogKit, DeltaKit, Kit
from tests.services.iceberg_catalogs import client, configure, name_of
from tests.services.spark_writer import SparkWriter

from penstock.errors import PublishHalted
from penstock.messaging.clock import SystemClock
from penstock.messaging.steps import no_probe
from penstock.pipeline.maintenance.compact import compact
from penstock.pipeline.replacing import Replacement, RowReplacer, count_rows
from penstock.sinks.parquet import list_files
from penstock.sinks.sink import Append, Position, TableSink, VersionedTable
from penstock.storage.local import LocalFiles

A, B = "s3://b/a", "s3://b/b"
FORMATS = [name for name in KITS if name != "toy"]
TIME = pa.timestamp("us", tz="UTC")


class SharedObjects:
    """A table with rows of two objects, and the other writers that add files to it."""

    def __init__(self, root: Path, kit: Kit, partition_by: Sequence[str] = ()) -> None:
        self.root = root
        self.kit = kit
        self.partition_by = partition_by
        self.sink: TableSink = kit.sink(root, partition_by=partition_by)  # type: ignore[assignment] # has a history
        self._seq = 0

    @property
    def loaded(self) -> VersionedTable:
        assert self.sink.history is not None
        table = self.sink.history.load()
        assert table is not None
        return table

    @property
    def iceberg(self) -> Table:
        return client().load_table(name_of(self.root).parts)

    def put(self, table: pa.Table, *, folder: str = "", name: str = "part-0") -> None:
        """Append a file as a batch does."""
        attempt_id = self._next()
        below = f"data/{attempt_id}/r0"
        path = self.root / below / folder / f"{name}.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(table.drop_columns(list(self.partition_by)), path)
        self.sink.ensure_schema(table.schema)
        files = list_files(self.sink.root, below, partition_by=self.partition_by, schema=table.schema)
        self.loaded.append(Append(seq=self._seq, attempt_id=attempt_id, files=files))

    def add_to_delta(self, table: pa.Table, path: Path | None = None, **options: Any) -> None:
        """Add a file as a program does that writes with other settings, or elsewhere."""
        target = path or self.root / f"part-{self._next()}.parquet"
        pq.write_table(table, target, **options)
        location = f"file://{target}" if path is not None else target.name
        writer = SparkWriter(files=self.sink.root)
        writer.add_file(location, size_bytes=target.stat().st_size, rows=table.num_rows).put()

    def replace(self, *objects: str) -> Replacement:
        table, attempt_id = self.loaded, self._next()
        of = Position(seq=self._seq, attempt_token=None)
        found = RowReplacer(sink=self.sink, probe=no_probe).replacement(table, objects, of=of)
        table.append(Append(seq=self._seq, attempt_id=attempt_id, files=found.added, replaced=found.removed))
        return found

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.kit.rows(self.root))

    def count(self, name: str) -> int:
        found = count_rows(self.sink, self.loaded, [name])
        return found[name].rows if name in found else 0

    def _next(self) -> str:
        self._seq += 1
        return f"01K0{self._seq:022d}"


Make = Callable[..., SharedObjects]


@pytest.fixture
def delta(tmp_path: Path) -> SharedObjects:
    return SharedObjects(tmp_path.resolve() / "t", DeltaKit())


@pytest.fixture
def iceberg(tmp_path: Path, request: pytest.FixtureRequest) -> Make:
    configure("sql", request)
    return lambda *partition_by: SharedObjects(tmp_path.resolve() / "t", CatalogKit(), partition_by)


@pytest.fixture(params=FORMATS)
def shared(tmp_path: Path, request: pytest.FixtureRequest) -> SharedObjects:
    return SharedObjects(tmp_path.resolve() / "t", KITS[request.param]())


def both(**more: Any) -> pa.Table:
    return pa.table({"id": [1, 2], "_object": [A, B], **more})


# Times, names and types of other writers


def test_spark_s_times_are_read_and_written_again(delta: SharedObjects) -> None:
    at = pa.array([-62_135_596_800_000_000, 253_402_300_799_999_999], TIME)  # years 1 and 9999
    inside = pa.array([{"at": at[0]}, {"at": at[1]}], pa.struct([("at", TIME)]))
    delta.put(both(at=at, inside=inside))
    times = pa.table({"id": [3, 4], "_object": [A, B], "at": at, "inside": inside})
    delta.add_to_delta(times, use_deprecated_int96_timestamps=True, store_schema=False)
    assert delta.count(A) == 2
    delta.replace(A)
    files = [pq.read_table(delta.root / file.path) for file in delta.loaded.files()]
    assert sorted(table["id"].to_pylist() for table in files) == [[2], [4]]
    assert {table["at"].cast(pa.int64()).to_pylist()[0] for table in files} == {at.cast(pa.int64())[1].as_py()}
    assert {table["inside"].type for table in files} == {inside.type}


def test_a_compaction_merges_files_with_spark_s_times(delta: SharedObjects) -> None:
    at = pa.array([0, 1], TIME)
    delta.put(both(at=at))
    delta.add_to_delta(both(at=at), use_deprecated_int96_timestamps=True, store_schema=False)
    result = compact(delta.sink, clock=SystemClock())
    assert result is not None
    assert (result.merged, result.left) == (2, 0)
    assert [row["at"].timestamp() for row in delta.kit.rows(delta.root)] == [0, 1e-6, 0, 1e-6]


def test_a_partition_column_that_the_file_has_too_is_left_out(iceberg: Make) -> None:
    table = iceberg("day")
    table.put(both(day=["x", "x"]), folder="day=x")
    table.iceberg.append(pa.table({"id": [3, 4], "_object": [A, B], "day": ["x", "y"]}))
    table.replace(A)
    assert table.ids() == [2, 4]
    assert {row["day"] for row in table.kit.rows(table.root)} == {"x", "y"}


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16()], ids=str)
def test_small_numbers_that_are_stored_as_large_ones(iceberg: Make, kind: pa.DataType) -> None:
    table = iceberg()
    table.put(both(n=pa.array([1, 2], kind)))
    table.iceberg.overwrite(table.iceberg.scan().to_arrow())
    table.replace(A)
    assert [(row["id"], row["n"]) for row in table.kit.rows(table.root)] == [(2, 2)]


def test_a_number_that_does_not_fit_halts_with_the_name_of_the_file(iceberg: Make) -> None:
    table = iceberg()
    table.put(both(n=pa.array([1, 2], pa.int8())))
    found = table.iceberg.scan().to_arrow()
    table.iceberg.append(found.set_column(2, "n", pa.array([1, 300], pa.int32())))
    with pytest.raises(PublishHalted, match=r"The file \S+ of the table \S+ has rows .* cannot be read: .*300"):
        table.replace(A)
    assert table.ids() == [1, 1, 2, 2]
    assert not list((table.root / "compacted").rglob("*.parquet"))


@pytest.mark.parametrize("name", ["user-id", "user id", "1st", "a.b"])
def test_names_that_iceberg_s_writers_spell_otherwise_in_their_files(iceberg: Make, name: str) -> None:
    table = iceberg()
    table.put(both(**{name: [5, 6]}))
    table.iceberg.overwrite(table.iceberg.scan().to_arrow())
    (file,) = table.loaded.files()
    assert name not in pq.read_schema(table.root / file.path).names
    table.replace(A)
    assert [(row["id"], row[name]) for row in table.kit.rows(table.root)] == [(2, 6)]


def test_a_compaction_merges_files_with_other_spellings_of_the_columns(iceberg: Make) -> None:
    table = iceberg()
    table.put(both(**{"user-id": [5, 6]}))
    table.iceberg.append(pa.table({"id": [3], "_object": [B], "user-id": [7]}))
    result = compact(table.sink, clock=SystemClock())
    assert result is not None
    assert (result.merged, result.left) == (2, 0)
    assert sorted((row["id"], row["user-id"]) for row in table.kit.rows(table.root)) == [(1, 5), (2, 6), (3, 7)]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_all_of_arrow_s_strings_are_addresses(delta: SharedObjects, kind: pa.DataType) -> None:
    delta.put(both())
    addresses = pa.array([A, B]).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array([A, B]).cast(kind)
    delta.add_to_delta(pa.table({"id": [3, 4], "_object": addresses}))
    assert delta.count(A) == 2
    delta.replace(A)
    assert delta.ids() == [2, 4]


def test_addresses_that_are_stored_as_bytes_are_found_and_the_type_named(delta: SharedObjects) -> None:
    delta.put(both())
    delta.add_to_delta(pa.table({"id": [3, 4], "_object": pa.array([A, B]).cast(pa.binary())}))
    with pytest.raises(PublishHalted, match=r"has rows .* has the column _object as binary, and the table has it as s"):
        delta.replace(A)
    delta.replace("s3://b/none")
    assert delta.ids() == [1, 2, 3, 4]


# Files that cannot be read or written again


def test_a_column_of_another_type_is_named(delta: SharedObjects) -> None:
    delta.put(both(n=[1, 2]))
    delta.add_to_delta(both(n=["x", "y"]))
    with pytest.raises(PublishHalted, match=r"has rows .* has the column n as string, and the table has it as int64"):
        delta.replace(A)
    with pytest.raises(PublishHalted, match="has the column n as string"):
        delta.count(A)


def test_a_file_that_is_not_parquet_is_named(delta: SharedObjects) -> None:
    delta.put(both())
    (delta.root / "broken.parquet").write_bytes(b"no Parquet at all")
    SparkWriter(files=delta.sink.root).add_file("broken.parquet", size_bytes=17, rows=2).put()
    with pytest.raises(PublishHalted, match=r"broken\.parquet of the table \S+ may have rows .* cannot be read: "):
        delta.replace(A)


def test_a_file_in_another_format_is_named_and_left_alone_by_compactions(iceberg: Make) -> None:
    table = iceberg()
    table.put(both())
    table.put(pa.table({"id": [3], "_object": [B]}))
    path = table.root / "data" / "theirs.orc"
    orc.write_table(pa.table({"id": [4], "_object": [A]}), path)
    file = IcebergFile.from_args(
        content=DataFileContent.DATA,
        file_path=str(path),
        file_format=FileFormat.ORC,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
    )
    file.spec_id = 0
    with table.iceberg.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        update.append_data_file(file)
    with pytest.raises(PublishHalted, match=r"theirs\.orc .* may have rows .* in the format ORC and not in Parquet"):
        table.replace(A)
    result = compact(table.sink, clock=SystemClock())
    assert result is not None
    assert result.merged == 2


def test_a_file_outside_the_folder_of_a_delta_table_halts(delta: SharedObjects, tmp_path: Path) -> None:
    delta.put(both())
    delta.add_to_delta(pa.table({"id": [3], "_object": [A]}), path=tmp_path.resolve() / "other.parquet")
    with pytest.raises(PublishHalted, match=r"other\.parquet .* may have rows .* lies outside the table's folder"):
        delta.replace(A)
    with pytest.raises(PublishHalted, match="lies outside the table's folder"):
        delta.count(A)


def test_a_file_outside_the_folder_of_an_iceberg_table_halts_if_it_may_have_rows(iceberg: Make, tmp_path: Path) -> None:
    table = iceberg()
    table.put(both())
    with table.iceberg.transaction() as transaction:
        transaction.set_properties({"write.data.path": f"{tmp_path}/elsewhere"})
    table.iceberg.overwrite(table.iceberg.scan().to_arrow())
    with pytest.raises(PublishHalted, match=r"elsewhere/\S+ .* may have rows .* lies outside the table's folder"):
        table.replace(A)
    with pytest.raises(PublishHalted, match="lies outside the table's folder"):
        table.count(A)
    table.replace("s3://b/none")  # by its bounds in the log, the file has no such row
    assert table.ids() == [1, 2]


# Which files are opened


def test_files_are_opened_only_if_the_log_s_bounds_leave_room(
    shared: SharedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        shared.put(pa.table({"id": [number], "_object": [f"s3://b/{number}"]}))
    opened: list[str] = []
    real = LocalFiles.open_input

    def noted(self: LocalFiles, path: str) -> Any:
        opened.append(path)
        return real(self, path)

    monkeypatch.setattr(LocalFiles, "open_input", noted)
    assert shared.count("s3://b/3") == 1
    assert len([path for path in opened if path.endswith(".parquet")]) == 1
    shared.replace("s3://b/3")
    assert shared.ids() == [0, 1, 2, 4]


def test_files_of_the_batch_itself_are_no_earlier_rows(shared: SharedObjects) -> None:
    """The snapshot may have them already, if their commit was overwritten and they came back."""
    shared.put(both())
    shared.put(pa.table({"id": [3, 4], "_object": [A, B]}))
    own = next(
        file.path
        for file in shared.loaded.logged_files()
        if pq.read_table(shared.root / file.path)["id"][0].as_py() == 3
    )
    replacer = RowReplacer(sink=shared.sink, probe=no_probe)
    found = replacer.replacement(shared.loaded, [A], of=Position(seq=9, attempt_token=9), keep=[own])
    assert own not in [file.path for file in found.removed]
    assert len(found.removed) == 1


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 2]),
        pa.array([b"\xff", b"s3"]),
        pa.array([{"a": A}, {"a": B}]),
        pa.array([[A], [B]]),
        pa.array([1, 2], pa.int32()).cast(pa.date32()),
    ],
    ids=lambda values: str(values.type),
)
def test_a_column_of_that_name_without_texts_has_no_addresses(shared: SharedObjects, values: pa.Array) -> None:
    shared.put(pa.table({"id": [1, 2], "_object": values}))
    assert shared.replace(A) == Replacement()
    assert shared.ids() == [1, 2]


def test_rows_in_many_columns_survive_being_written_again(shared: SharedObjects) -> None:
    columns = {
        "f": pa.array([float("nan"), -0.0]),
        "s": pa.array([None, {"a": None, "b": [1, None]}], pa.struct([("a", pa.int16()), ("b", pa.list_(pa.int32()))])),
        "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())),
        "b": pa.array([b"", None], pa.binary()),
    }
    written = both(**columns)
    shared.put(written)
    (file,) = shared.replace(A).added
    stored = pq.read_table(shared.root / file.path)
    wanted = written.filter(pc.equal(written["_object"], B))
    assert repr(stored.to_pylist()) == repr(wanted.to_pylist())
    assert stored.num_rows == 1
    with io.BytesIO((shared.root / file.path).read_bytes()) as data:
        assert "field_id" not in str(pq.ParquetFile(data).schema).replace("field_id=-1", "")
