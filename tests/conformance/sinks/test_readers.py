"""Readers find the same rows with and without filters, and skip files by the statistics in Delta's log.

Each table has older files without the column, files with low and with high values, and one with nulls only, written by
several batches, before and after a checkpoint, and merged by a compaction.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.conformance.sinks.kit import DeltaKit, append, loaded
from tests.conformance.sinks.readers import READERS, Comparison, Filter, Reader

from penstock.pipeline.maintenance.compact import compact
from penstock.sinks.delta.sink import DeltaTableSink
from penstock.sinks.parquet import FooterNote, list_files
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock

UTC_US = pa.timestamp("us", tz="UTC")
STRUCT = pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string())]))])
FIRST_COLUMNS = pa.schema([("id", pa.int64()), ("nested", STRUCT), ("list", pa.list_(pa.int64()))])
FILES_WITH_VALUES = 2


@dataclass(frozen=True, slots=True)
class Kind:
    """Values of one type: those of two files, in order, without overlap."""

    type_: pa.DataType
    low: Sequence[Any]
    high: Sequence[Any]


KINDS = {
    "byte": Kind(pa.int8(), [-128, -1], [0, 127]),
    "short": Kind(pa.int16(), [-(2**15), -1], [0, 2**15 - 1]),
    "integer": Kind(pa.int32(), [-(2**31), -1], [0, 2**31 - 1]),
    "long": Kind(pa.int64(), [-(2**63), 2**53], [2**53 + 1, 2**63 - 1]),
    "float": Kind(pa.float32(), [-1.5, 0.10000000149011612], [0.25, 3.4028234663852886e38]),
    "double": Kind(pa.float64(), [-1.7976931348623157e308, -0.0], [5e-324, 0.1]),
    "boolean": Kind(pa.bool_(), [False], [True]),
    "string": Kind(pa.string(), ["", "a'b", "é"], ["é" + "z" * 40, "\U0001f600", "\U000ab1bb"]),
    "long strings": Kind(pa.string(), ["a" * 33, "b" * 5000], ["c" * 5000, "\uffff" * 3000]),
    "date": Kind(pa.date32(), [date(1, 1, 1), date(1969, 12, 31)], [date(1970, 1, 1), date(9999, 12, 31)]),
    "timestamp": Kind(
        UTC_US,
        [datetime(1, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)],
        [datetime(2024, 1, 1, 0, 0, 0, 125457, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)],
    ),
    "timestamp without zone": Kind(
        pa.timestamp("us"),
        [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999)],  # noqa: DTZ001 -- the type has no zone
        [datetime(1970, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 1)],  # noqa: DTZ001 -- the type has no zone
    ),
    "decimal": Kind(pa.decimal128(9, 2), [Decimal("-1.05"), Decimal("-0.05")], [Decimal("0.00"), Decimal("12.10")]),
    "long decimal": Kind(
        pa.decimal128(38, 2),
        [Decimal("-123456789012345678901234567890.12"), Decimal("123456789012345678901234567890.12")],
        [Decimal("123456789012345678901234567890.13"), Decimal("999999999999999999999999999999999999.99")],
    ),
    "binary": Kind(pa.binary(), [b"", b"a"], [b"b", b"\xff"]),
}
WITHOUT_BOUNDS = {"binary"}  # readers do not compare them with statistics
# Daft raises for a comparison if a file has only nulls in the column, also without statistics in the log.
REFUSED = {("daft", kind) for kind in ("boolean", "date", "timestamp", "timestamp without zone")}
STATES = ["appended", "checkpointed", "partitioned", "compacted"]
MATRIX = [
    (reader, kind, state)
    for reader in READERS
    for kind in KINDS
    for state in STATES
    if (reader, kind) not in REFUSED or state == "compacted"
]
SKIPPING = ["deltalake-pyarrow", "deltalake-datafusion", "duckdb", "polars"]  # readers that show which files they read
# Of five; by default 1, and for DuckDB 2. Some readers do not use the bounds of some types.
FILES_READ = {
    ("deltalake-pyarrow", "decimal"): 3,  # it cannot parse negative ones
    ("deltalake-datafusion", "boolean"): 3,
    ("polars", "boolean"): 4,
    ("duckdb", "timestamp"): 5,
    ("duckdb", "timestamp without zone"): 5,
}


class Table:
    """A table that is written as batches are published, and its rows."""

    def __init__(self, root: Path, *, partition_by: Sequence[str] = ()) -> None:
        self.root = root
        self.rows: list[dict[str, Any]] = []
        self._sink = DeltaKit().sink(root, partition_by=partition_by)
        self._partition_by = partition_by
        self._seq = 0

    def batch(self, schema: pa.Schema, *files: list[dict[str, Any]]) -> None:
        self._seq += 1
        attempt_id = f"01K0{self._seq:022d}"
        run = f"data/{attempt_id}/r1"
        stored = pa.schema([field for field in schema if field.name not in self._partition_by])
        for number, rows in enumerate(files):
            self.rows += rows
            folders = [f"{name}={rows[0][name]}" for name in self._partition_by]
            path = self.root.joinpath(run, *folders, f"part-{number}.parquet")
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, pa.Table.from_pylist(rows, schema=stored))
        self._sink.ensure_schema(schema)
        listed = list_files(LocalFiles(self.root), run, partition_by=self._partition_by, schema=schema)
        loaded(self._sink).append(append(self._seq, attempt_id, *listed))

    def compact(self) -> None:
        sink = DeltaTableSink(LocalFiles(self.root), pipeline="p", partition_by=None)
        done = compact(sink, clock=FakeClock(auto_advance=True))
        assert done is not None
        assert done.merged

    def add_actions(self) -> list[dict[str, Any]]:
        actions: list[dict[str, Any]] = pa.table(DeltaTable(str(self.root)).get_add_actions()).to_pylist()
        return actions


def write(path: Path, table: pa.Table) -> None:
    with pq.ParquetWriter(path, table.schema, store_decimal_as_integer=True) as writer:
        note = FooterNote(table.schema)
        writer.write_table(table)
        note.add(table)
        note.write(writer)


def filled(root: Path, kind: Kind, *, partitioned: bool = False) -> Table:
    """Write a table in which the column ``c`` is added after the first batch."""
    columns = FIRST_COLUMNS.append(pa.field("day", pa.string())) if partitioned else FIRST_COLUMNS
    wider = columns.append(pa.field("c", kind.type_))
    table = Table(root, partition_by=["day"] if partitioned else ())
    ids = iter(range(1_000))

    def rows(values: Sequence[Any], day: str = "a") -> list[dict[str, Any]]:
        found = [{"id": next(ids), "c": value, "list": [1]} for value in values]
        return [{**row, "day": day, "nested": {"x": row["id"]} if row["id"] % 2 else None} for row in found]

    table.batch(columns, [{**row, "c": None} for row in rows([None, None])])
    table.batch(wider, rows(kind.low), rows([None, *kind.high], "b"))
    table.batch(wider, rows([None]))
    table.batch(wider, rows([*kind.low, None], "b"))
    return table


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Table]:
    return {}


@pytest.fixture(scope="module")
def opened() -> dict[str, Reader]:
    return {}


def reader(name: str, opened: dict[str, Reader]) -> Reader:
    return opened.setdefault(name, READERS[name]()) if name not in opened else opened[name]


def table_of(name: str, state: str, tables: dict[tuple[str, str], Table], factory: pytest.TempPathFactory) -> Table:
    if (name, state) not in tables:
        table = filled(factory.mktemp("table"), KINDS[name], partitioned=state == "partitioned")
        if state == "checkpointed":
            DeltaTable(str(table.root)).create_checkpoint()
        if state == "compacted":
            table.compact()
        tables[name, state] = table
    return tables[name, state]


def filters(kind: Kind) -> Iterator[Filter]:
    def on(op: str, value: Any = None) -> Comparison:
        return Comparison("c", op, value, kind.type_)

    values = [*kind.low, *kind.high]
    is_null, late = on("is null"), Comparison("id", ">=", 2)
    yield Filter(is_null)
    yield Filter(on("is not null"))
    yield Filter(is_null, "and", late)
    yield Filter(on("is in", [values[0], values[-1]]))
    for value in values:
        yield Filter(on("==", value))
    yield Filter(on(">=", kind.high[0]))
    yield Filter(on("<", kind.high[0]))
    yield Filter(on(">=", kind.high[0]), "or", is_null)
    yield Filter(on("<", kind.high[0]), "and", late)


@pytest.mark.parametrize(("reader_name", "name", "state"), MATRIX)
def test_a_filter_finds_the_same_rows_with_every_reader(
    reader_name: str,
    name: str,
    state: str,
    tables: dict[tuple[str, str], Table],
    opened: dict[str, Reader],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    table = table_of(name, state, tables, tmp_path_factory)
    found = reader(reader_name, opened).open(table.root)
    assert found.ids(None) == sorted(row["id"] for row in table.rows)
    wrong = {}
    for wanted in filters(KINDS[name]):
        expected = sorted(row["id"] for row in table.rows if wanted.holds(row))
        if (ids := found.ids(wanted)) != expected:
            wrong[str(wanted)] = (ids, expected)
    assert wrong == {}


@pytest.mark.parametrize("state", ["appended", "checkpointed"])
@pytest.mark.parametrize("name", sorted(set(KINDS) - WITHOUT_BOUNDS))
@pytest.mark.parametrize("reader_name", SKIPPING)
def test_a_selective_filter_skips_files(
    reader_name: str,
    name: str,
    state: str,
    tables: dict[tuple[str, str], Table],
    opened: dict[str, Reader],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    kind = KINDS[name]
    table = table_of(name, state, tables, tmp_path_factory)
    found = reader(reader_name, opened).open(table.root)
    assert len(table.add_actions()) == 5
    wanted = Filter(Comparison("c", "==", kind.high[-1], kind.type_))
    files_read = found.files_read(wanted)
    assert files_read is not None
    assert files_read <= FILES_READ.get((reader_name, name), 2 if reader_name == "duckdb" else 1)
    assert len(found.ids(wanted)) == 1


# Files with and without bounds


def bounded(table: Table) -> list[bool]:
    """Return for each file, oldest first, if it has bounds in the log."""
    actions = sorted(table.add_actions(), key=lambda action: action["path"])
    return [any(value is not None for value in (action.get("min") or {}).values()) for action in actions]


@pytest.mark.parametrize(
    ("values", "has_bounds"),
    [([1.0, 2.0], True), ([1.0, math.nan], False), ([1.0, math.inf], False), ([None, None], True)],
    ids=["numbers", "nan", "infinite", "nulls"],
)
@pytest.mark.parametrize("reader_name", READERS)
def test_a_file_with_a_value_that_has_no_bound_has_no_bounds_at_all(
    reader_name: str, values: list[float | None], has_bounds: bool, opened: dict[str, Reader], tmp_path: Path
) -> None:
    table = Table(tmp_path / "t")
    schema = pa.schema([("id", pa.int64()), ("c", pa.float64()), ("s", pa.string())])
    table.batch(schema, [{"id": id, "c": value, "s": "a"} for id, value in enumerate(values)])
    table.batch(schema, [{"id": 2, "c": 0.5, "s": None}])
    assert bounded(table) == [has_bounds, True]
    found = reader(reader_name, opened).open(table.root)
    text = Comparison("s", "==", "a", pa.string())
    for wanted in (Filter(text), Filter(text, "and", Comparison("id", "<", 2)), Filter(Comparison("s", "is not null"))):
        assert found.ids(wanted) == [0, 1]
    if not any(value is not None and math.isnan(value) for value in values):  # readers disagree on NaN >= 1
        at_least = [id for id, value in enumerate(values) if value is not None and value >= 1]
        assert found.ids(Filter(Comparison("c", ">=", 1.0, pa.float64()))) == at_least
    assert found.ids(Filter(Comparison("c", "is null"))) == [id for id, value in enumerate(values) if value is None]


@pytest.mark.parametrize(
    "configuration",
    [
        {},
        {"delta.dataSkippingNumIndexedCols": "2"},
        {"delta.dataSkippingStatsColumns": "id,n35"},
        {"delta.dataSkippingNumIndexedCols": "-1"},
    ],
    ids=str,
)
@pytest.mark.parametrize("reader_name", READERS)
def test_columns_after_the_indexed_ones_are_read_in_full(
    reader_name: str, configuration: dict[str, str], opened: dict[str, Reader], tmp_path: Path
) -> None:
    table = Table(tmp_path / "t")
    names = [f"n{number}" for number in range(40)]
    schema = pa.schema([("id", pa.int64()), ("nested", STRUCT), *((name, pa.int64()) for name in names)])
    rows = [
        {"id": id, **{name: id * 100 if (id + number) % 3 else None for number, name in enumerate(names)}}
        for id in range(3)
    ]
    table.batch(schema, rows[:1])
    if configuration:
        DeltaTable(str(table.root)).alter.set_table_properties(configuration)
    table.batch(schema, rows[1:2], rows[2:])
    table.batch(schema.append(pa.field("later", pa.string())), [{"id": 3, "later": "x"}])
    found = reader(reader_name, opened).open(table.root)
    for name in ["n0", "n28", "n29", "n30", "n31", "n32", "n35", "n39"]:
        expected = [row["id"] for row in rows if row[name] is None]
        assert found.ids(Filter(Comparison(name, "is null"))) == [*expected, 3]
        assert found.ids(Filter(Comparison(name, "==", 200))) == [row["id"] for row in rows if row[name] == 200]
    assert found.ids(Filter(Comparison("later", "is null"))) == [0, 1, 2]


def test_an_added_struct_leaves_the_bounds_of_older_files(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    table.batch(pa.schema([("id", pa.int64())]), [{"id": 1}])
    table.batch(pa.schema([("id", pa.int64()), ("nested", STRUCT)]), [{"id": 2, "nested": {"x": 1}}])
    assert bounded(table) == [True, True]
    dataset = DeltaTable(str(table.root)).to_pyarrow_dataset()
    assert dataset.to_table(filter=pc.field("nested").is_null())["id"].to_pylist() == [1]
    assert dataset.to_table(filter=pc.field("nested", "x") == 1)["id"].to_pylist() == [2]


SCALARS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f": (pa.float64(), st.floats(allow_nan=False)),
    "s": (pa.string(), st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=40)),
    "d": (pa.date32(), st.dates()),
    "t": (UTC_US, st.datetimes(timezones=st.just(UTC))),
    "n": (pa.decimal128(12, 3), st.decimals(-(10**8), 10**8, places=3)),
    "b": (pa.bool_(), st.booleans()),
}
RANDOM_SCHEMA = pa.schema([("id", pa.int64()), *((name, type_) for name, (type_, _) in SCALARS.items())])
RANDOM_ROWS = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in SCALARS.items()})


@settings(
    max_examples=15,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(files=st.lists(st.lists(RANDOM_ROWS, min_size=1, max_size=3), min_size=1, max_size=3))
def test_each_row_is_found_by_each_of_its_values(
    files: list[list[dict[str, Any]]], opened: dict[str, Reader], tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = Table(tmp_path_factory.mktemp("random") / "t")
    ids = iter(range(100))
    for rows in files:
        table.batch(RANDOM_SCHEMA, [{"id": next(ids), **row} for row in rows])
    opened_tables = {name: reader(name, opened).open(table.root) for name in SKIPPING}
    for row in table.rows:
        for name, (type_, _) in SCALARS.items():
            wanted = Filter(
                Comparison(name, "is null") if row[name] is None else Comparison(name, "==", row[name], type_)
            )
            expected = [other["id"] for other in table.rows if wanted.holds(other)]
            assert {name: found.ids(wanted) for name, found in opened_tables.items()} == dict.fromkeys(
                SKIPPING, expected
            )
