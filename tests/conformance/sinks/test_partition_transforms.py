"""Iceberg tables that are partitioned by transforms: readers see the same rows with any filter, and skip files.

Also: compaction, other writers' tables, and the history of commits.
"""

import operator
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg import expressions as pyiceberg
from tests.conformance.sinks.kit import FIRST, SECOND, append, iceberg_table
from tests.conformance.sinks.test_iceberg import loaded, rewritten, sink_at
from tests.services.duckdb_iceberg import duckdb_with_iceberg

from penstock.errors import PublishHalted, TableError, UsageError
from penstock.messaging.steps import no_probe
from penstock.pipeline.maintenance.compact import compact
from penstock.sinks.derived import folder_texts, texts
from penstock.sinks.iceberg.sink import IcebergTableSink
from penstock.sinks.manifest import DataFile
from penstock.sinks.parquet import list_files
from penstock.sinks.partitions import names_of, resolve
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock

_BEFORE = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
_AFTER = datetime(2024, 2, 29, 5, 6, 7, 8, tzinfo=UTC)
_COLUMNS: dict[str, tuple[pa.DataType, Sequence[Any]]] = {  # the values of four rows
    "id": (pa.int64(), [1, 2, 3, 4]),
    "at": (pa.timestamp("us", tz="UTC"), [_BEFORE, _AFTER, datetime(2024, 2, 29, 6, tzinfo=UTC), None]),
    "local": (
        pa.timestamp("us"),
        [_BEFORE.replace(tzinfo=None), _AFTER.replace(tzinfo=None), datetime(1900, 1, 1), None],  # noqa: DTZ001
    ),
    "born": (pa.date32(), [date(1969, 12, 31), date(2024, 2, 29), date(2024, 3, 1), None]),
    "small": (pa.int8(), [-128, 7, 127, None]),
    "n": (pa.int32(), [-1, 10, 19, None]),
    "long": (pa.int64(), [-(1 << 40), 0, 1 << 40, None]),
    "price": (pa.decimal128(9, 2), [Decimal("-0.01"), Decimal("10.65"), Decimal("10.50"), None]),
    "exact": (
        pa.decimal128(38, 10),
        [Decimal("-1234567890123456789012345678.0123456789"), Decimal("1.5000000000"), None, None],
    ),
    "path": (pa.string(), ["", "é😀xyz/=%", "__HIVE_DEFAULT_PARTITION__", None]),
    "raw": (pa.binary(), [b"", b"\x00\xff\x00", b"abc", None]),
    "country": (pa.string(), ["ch", "jp", "ch", None]),
}
SCHEMA = pa.schema([(name, type_) for name, (type_, _) in _COLUMNS.items()])
ROWS = pa.table({name: pa.array(values, type_) for name, (type_, values) in _COLUMNS.items()})
_OPERATORS: dict[str, tuple[Any, Any]] = {  # as functions, and as PyIceberg's
    "=": (operator.eq, pyiceberg.EqualTo),
    "<": (operator.lt, pyiceberg.LessThan),
    ">=": (operator.ge, pyiceberg.GreaterThanOrEqual),
}
_SOME = ["day(at)", "hour(local)", "month(born)", "year(at)", "bucket(7, path)", "bucket(7, exact)", "truncate(3, n)"]
_SOME += ["truncate(26, path)", "truncate(3, raw)", "truncate(50, price)"]
_ALL = [
    *(f"{transform}({column})" for column in ("at", "local") for transform in ("year", "month", "day", "hour")),
    *(f"{transform}(born)" for transform in ("year", "month", "day")),
    *(f"bucket(7, {column})" for column in SCHEMA.names),
    *(f"truncate(3, {column})" for column in ("n", "long", "path", "raw")),
    *("truncate(5, small)", "truncate(50, price)", "truncate(70, exact)", "truncate(26, path)"),
]
PARTITIONINGS = [*_SOME, *(pytest.param(text, marks=pytest.mark.slow) for text in _ALL if text not in _SOME)]


def written(root: Path, attempt_id: str, rows: pa.Table, partition_by: Sequence[str]) -> Sequence[DataFile]:
    """Write a file for each partition, as a run does."""
    fields = resolve(partition_by, rows.schema.names)
    columns = {}
    for field, name in zip(fields, names_of(fields, rows.schema.names), strict=True):
        values = rows[field.source].combine_chunks()
        columns[name] = values if field.transform is None else folder_texts(texts(field, values))
    keys = pa.table(columns).to_pylist()
    for number, key in enumerate(dict.fromkeys(tuple(key.items()) for key in keys)):
        folders = [f"{name}={_escaped(value)}" for name, value in key]
        path = root.joinpath("data", attempt_id, "r1", *folders, f"part-{number}.parquet")
        path.parent.mkdir(parents=True)
        some = rows.filter(pa.array([tuple(one.items()) == key for one in keys]))
        pq.write_table(some.drop_columns([name for name in partition_by if name in rows.schema.names]), path)
    return list_files(LocalFiles(root), f"data/{attempt_id}/r1", partition_by=partition_by, schema=rows.schema)


def _escaped(value: str | None) -> str:
    if value is None:
        return "__HIVE_DEFAULT_PARTITION__"
    assert value not in ("", "__HIVE_DEFAULT_PARTITION__"), "Spark would write null"
    return value.replace("%", "%25").replace("/", "%2F").replace("=", "%3D")


def published(sink: IcebergTableSink, root: Path, partition_by: Sequence[str], *, batches: int = 1) -> None:
    sink.ensure_schema(SCHEMA)
    for seq, attempt_id in zip(range(1, batches + 1), (FIRST, SECOND), strict=False):
        table = loaded(sink)
        version = table.append(append(seq, attempt_id, *written(root, attempt_id, ROWS, partition_by)))
        table.write_checkpoint(version, probe=no_probe)  # the version hint, which DuckDB follows


def filters(column: str) -> list[tuple[str, Any]]:
    values = [value for value in _COLUMNS[column][1] if value is not None]
    return [(comparison, value) for comparison in _OPERATORS for value in values]


def matching(column: str, comparison: str, value: Any) -> list[int]:
    compare = _OPERATORS[comparison][0]
    found = zip(_COLUMNS[column][1], _COLUMNS["id"][1], strict=True)
    return [id_ for one, id_ in found if one is not None and compare(one, value)]


def equal_to(column: str, value: Any) -> Any:
    return _OPERATORS["="][1](column, value)


@pytest.fixture(scope="module")
def duck(tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    connection = duckdb_with_iceberg(tmp_path_factory.mktemp("duckdb"))
    connection.execute("set timezone = 'UTC'")
    return connection


@pytest.mark.filterwarnings("ignore:Iceberg scan planning")
@pytest.mark.parametrize("text", PARTITIONINGS)
def test_readers_see_the_same_rows_with_and_without_filters(
    root: Path, text: str, duck: duckdb.DuckDBPyConnection
) -> None:
    sink = sink_at(root, partition_by=[text])
    published(sink, root, [text])
    (field,) = resolve([text], ())
    column, table = field.source, iceberg_table(root)
    frame = pl.scan_iceberg(table)
    expected = ROWS.to_pylist()
    assert sorted(table.scan().to_arrow().to_pylist(), key=_id) == expected
    assert sorted(loaded(sink).dataset().to_table().to_pylist(), key=_id) == expected
    for comparison, value in filters(column):
        want = matching(column, comparison, value)
        scanned = table.scan(row_filter=_OPERATORS[comparison][1](column, value)).to_arrow()
        assert sorted(scanned["id"].to_pylist()) == want, (comparison, value)
        if not _is_wrong_in_duckdb(text, value):
            query = f"select id from iceberg_scan('{root}') where \"{column}\" {comparison} ? order by id"
            assert [row[0] for row in duck.execute(query, [value]).fetchall()] == want, (comparison, value)
        condition = _OPERATORS[comparison][0](pl.col(column), pl.lit(value))
        assert sorted(frame.filter(condition).collect()["id"].to_list()) == want, (comparison, value)
    nulls = [row["id"] for row in expected if row[column] is None]
    assert (
        sorted(table.scan(row_filter=pyiceberg.IsNull(term=pyiceberg.Reference(column))).to_arrow()["id"].to_pylist())
        == nulls
    )
    query = f"select id from iceberg_scan('{root}') where \"{column}\" is null order by id"
    assert [row[0] for row in duck.execute(query).fetchall()] == nulls


def _id(row: dict[str, Any]) -> Any:
    return row["id"]


def _is_wrong_in_duckdb(text: str, value: Any) -> bool:
    """Return True for filters that DuckDB 1.5.5 translates wrongly: see the limits in docs/use/iceberg.md."""
    if isinstance(value, datetime):
        return value.year < 1970 and text.startswith(("month", "day"))
    return isinstance(value, Decimal) and value < 0 and text.startswith("truncate")


def test_duckdb_misses_some_rows_as_the_docs_say(root: Path, duck: duckdb.DuckDBPyConnection) -> None:
    published(sink_at(root, partition_by=["day(at)"]), root, ["day(at)"])
    scan = f"select count(*) from iceberg_scan('{root}')"
    assert duck.execute(scan).fetchall() == [(4,)]
    assert duck.execute(f'{scan} where "at" = ?', [_BEFORE]).fetchall() == [(0,)], (
        "DuckDB was repaired: update the docs"
    )


@pytest.mark.parametrize("text", PARTITIONINGS)
def test_a_filter_on_the_source_column_skips_the_other_partitions(root: Path, text: str) -> None:
    (field,) = resolve([text], ())
    sink = sink_at(root, partition_by=[text])
    sink.ensure_schema(SCHEMA)
    files = written(root, FIRST, ROWS, [text])
    without_bounds = [DataFile(**{**_fields(file), "statistics": {}}) for file in files]
    loaded(sink).append(append(1, FIRST, *without_bounds))
    values = [value for value in _COLUMNS[field.source][1] if value is not None]
    partitions = dict(zip(_COLUMNS[field.source][1], texts(field, ROWS[field.source].combine_chunks()), strict=True))
    for value in values:
        same = [file for file in files if file.partition_values[text] == partitions[value].as_py()]
        scan = iceberg_table(root).scan(row_filter=equal_to(field.source, value))
        assert [task.file.file_path.removeprefix(f"{root}/") for task in scan.plan_files()] == [same[0].path]
        assert len(same) == 1 < len(files)


def _fields(file: DataFile) -> dict[str, Any]:
    return {name: getattr(file, name) for name in file.__slots__}


def test_transforms_and_columns_are_combined(root: Path, duck: duckdb.DuckDBPyConnection) -> None:
    partition_by = ["day(at)", "bucket(7, long)", "truncate(1, path)", "country"]
    sink = sink_at(root, partition_by=partition_by)
    published(sink, root, partition_by)
    table = loaded(sink)
    assert table.partition_by == tuple(partition_by)
    spec = table.metadata.spec()
    assert [(field.name, str(field.transform)) for field in spec.fields] == [
        ("at_day", "day"),
        ("long_bucket", "bucket[7]"),
        ("path_trunc", "truncate[1]"),
        ("country", "identity"),
    ]
    assert sorted(iceberg_table(root).scan().to_arrow().to_pylist(), key=_id) == ROWS.to_pylist()
    assert sorted(table.dataset().to_table().to_pylist(), key=_id) == ROWS.to_pylist()
    query = f"select id from iceberg_scan('{root}') where country = 'ch' and born < '2000-01-01'"
    assert duck.execute(query).fetchall() == [(1,)]
    (first,) = [file for file in table.files() if file.partition_values["day(at)"] == "1969-12-31"]
    assert dict(first.partition_values) == {
        "day(at)": "1969-12-31",
        "bucket(7, long)": first.partition_values["bucket(7, long)"],
        "truncate(1, path)": "",
        "country": "ch",
    }


@pytest.mark.parametrize(
    "text", ["day(at)", "bucket(2, long)", "truncate(3, path)", "truncate(50, price)", "hour(local)"]
)
def test_compaction_merges_files_within_partitions(root: Path, text: str) -> None:
    sink = sink_at(root, partition_by=[text])
    published(sink, root, [text], batches=2)
    before = {file.path: file.partition_values for file in loaded(sink).logged_files()}
    result = compact(sink_at(root, partition_by=None), clock=FakeClock())
    assert result is not None
    assert result.merged == len(before)
    assert result.files_after == len(before) // 2
    (field,) = resolve([text], ())
    for file in loaded(sink).logged_files():
        rows = pq.read_table(root / file.path)
        assert rows.num_rows >= 2
        assert set(texts(field, rows[field.source].combine_chunks()).to_pylist()) == {file.partition_values[text]}
    assert {str(file.partition_values) for file in loaded(sink).logged_files()} == set(map(str, before.values()))
    assert iceberg_table(root).scan().count() == 2 * ROWS.num_rows
    first = _COLUMNS[field.source][1][0]
    scanned = iceberg_table(root).scan(row_filter=equal_to(field.source, first)).to_arrow()
    assert scanned["id"].to_pylist() == [1, 1]


def test_the_history_has_the_values_that_the_ledger_had(root: Path) -> None:
    partition_by = ["month(at)", "bucket(7, raw)", "truncate(26, path)", "truncate(50, price)"]
    sink = sink_at(root, partition_by=partition_by)
    sink.ensure_schema(SCHEMA)
    files = written(root, FIRST, ROWS, partition_by)
    loaded(sink).append(append(1, FIRST, *files))
    commit = next(iter(sink.commits()))
    assert {file.path: file.partition_values for file in commit.added} == {
        file.path: file.partition_values for file in files
    }


def test_a_table_that_another_writer_partitioned_is_written_under_its_own_names(root: Path) -> None:
    sink_at(root).ensure_schema(SCHEMA)

    def partitioned(document: dict[str, Any]) -> None:
        document["partition-specs"][0]["fields"] = [
            {"name": "day", "source-id": 2, "field-id": 1000, "transform": "day"},
            {"name": "id_bucket_16", "source-id": 1, "field-id": 1001, "transform": "bucket[16]"},
        ]
        document["last-partition-id"] = 1001

    rewritten(root, partitioned)
    partition_by = ["day(at)", "bucket(16, id)"]
    assert loaded(sink_at(root, partition_by=partition_by)).partition_by == tuple(partition_by)
    published(sink_at(root, partition_by=partition_by), root, partition_by)
    table = iceberg_table(root)
    assert sorted(table.scan().to_arrow().to_pylist(), key=_id) == ROWS.to_pylist()
    assert len(list(table.scan(row_filter="id = 3").plan_files())) == 1
    with pytest.raises(
        TableError, match=r"is partitioned by day\(at\), bucket\(16, id\) and not by day\(at\); ask for"
    ):
        sink_at(root, partition_by=["day(at)"]).load()


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"name": "a", "source-id": 99, "transform": "day"}, r"the partition transform day \(a\)"),
        ({"name": "a", "source-id": 3, "transform": "day"}, r"a partition field of a nested column \(a\)"),
        ({"name": "a", "source-id": 1, "transform": "bucket[2]"}, r"a column that is named like the partition field"),
    ],
)
def test_a_partitioning_that_cannot_be_written_is_refused(root: Path, field: dict[str, Any], message: str) -> None:
    columns = [("id", pa.int64()), ("bucket(2, id)", pa.struct([("at", pa.timestamp("us"))]))]
    sink = sink_at(root, partition_by=None)
    sink_at(root).ensure_schema(pa.schema(columns))
    rewritten(root, lambda document: document["partition-specs"][0]["fields"].append({**field, "field-id": 1000}))
    with pytest.raises(TableError, match=message):
        sink.load()


def test_a_column_may_have_the_name_that_a_transform_makes(root: Path) -> None:
    schema = SCHEMA.append(pa.field("at_day", pa.string()))
    rows = ROWS.append_column("at_day", pc.cast(ROWS["id"], pa.string()))
    sink = sink_at(root, partition_by=["day(at)"])
    sink.ensure_schema(schema)
    loaded(sink).append(append(1, FIRST, *written(root, FIRST, rows, ["day(at)"])))
    assert [field.name for field in loaded(sink).metadata.spec().fields] == ["at_day_"]
    assert sorted(iceberg_table(root).scan().to_arrow()["at_day"].to_pylist()) == ["1", "2", "3", "4"]


def test_a_column_with_the_transforms_name_may_be_added_later(root: Path) -> None:
    sink = sink_at(root, partition_by=["day(at)"])
    published(sink, root, ["day(at)"])
    sink.ensure_schema(SCHEMA.append(pa.field("at_day", pa.int64())))
    rows = ROWS.append_column("at_day", ROWS["id"])
    loaded(sink).append(append(2, SECOND, *written(root, SECOND, rows, ["day(at)"])))
    table = iceberg_table(root)
    assert table.scan().count() == 8
    assert table.scan(row_filter="at_day = 2").to_arrow()["id"].to_pylist() == [2]
    assert table.scan(row_filter=equal_to("at", _AFTER)).to_arrow()["id"].to_pylist() == [2, 2]


def test_a_missing_source_column_and_a_wrong_type_are_named_before_a_table_exists(root: Path) -> None:
    with pytest.raises(UsageError, match="The partition column ts is not among the columns of the table"):
        sink_at(root, partition_by=["day(ts)"]).ensure_schema(SCHEMA)
    with pytest.raises(TableError) as caught:
        sink_at(root, partition_by=["hour(born)"]).ensure_schema(SCHEMA)
    assert str(caught.value) == (
        "The column born is date, which cannot be partitioned by hour(born); make a timestamp of it in the transform."
    )
    assert sink_at(root).load() is None


def test_files_of_another_partitioning_are_refused(root: Path) -> None:
    sink = sink_at(root, partition_by=["bucket(16, id)"])
    sink.ensure_schema(SCHEMA)
    with pytest.raises(PublishHalted, match=r"is partitioned by bucket\(8, id\) and its table by bucket\(16, id\)"):
        loaded(sink).append(append(1, FIRST, *written(root, FIRST, ROWS, ["bucket(8, id)"])))


def test_tables_are_opened_with_the_position_of_their_pipeline(root: Path) -> None:
    published(sink_at(root, partition_by=["year(at)"]), root, ["year(at)"], batches=2)
    assert loaded(sink_at(root, partition_by=["year(at)"])).position.seq == 2
    other = IcebergTableSink(LocalFiles(root), pipeline="another", partition_by=["year(at)"])
    assert loaded(other).position.seq == 0
