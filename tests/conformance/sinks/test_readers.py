"""Readers find the same rows with and without filters, and skip files by the statistics in Delta's log.

Each table has older files without the column, files with low and with high values, and one with nulls only, written by
several batches, before and after a checkpoint, and merged by a compaction.
"""

import math
from collections.abc import Callable
from datetime import UTC
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.conformance.sinks.reader_tables import KINDS, STRUCT, UTC_US, Table, filled, filters
from tests.conformance.sinks.readers import READERS, Comparison, Filter, OpenTable

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


TableOf = Callable[[str, str], Table]
OpenWith = Callable[[str, Table], OpenTable]


@pytest.fixture(scope="module")
def table_of(tmp_path_factory: pytest.TempPathFactory) -> TableOf:
    """Return a function that makes the table of a type and a state, each once."""

    @cache
    def made(name: str, state: str) -> Table:
        table = filled(tmp_path_factory.mktemp("table"), KINDS[name], partitioned=state == "partitioned")
        if state == "checkpointed":
            DeltaTable(str(table.root)).create_checkpoint()
        if state == "compacted":
            table.compact()
        return table

    return made


@pytest.fixture(scope="module")
def open_with() -> OpenWith:
    """Return a function that opens a table with a reader, each of which is started once."""
    started = cache(lambda name: READERS[name]())
    return lambda name, table: started(name).open(table.root)


@pytest.mark.parametrize(("reader_name", "name", "state"), MATRIX)
def test_a_filter_finds_the_same_rows_with_every_reader(
    reader_name: str,
    name: str,
    state: str,
    table_of: TableOf,
    open_with: OpenWith,
) -> None:
    table = table_of(name, state)
    found = open_with(reader_name, table)
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
    table_of: TableOf,
    open_with: OpenWith,
) -> None:
    kind = KINDS[name]
    table = table_of(name, state)
    found = open_with(reader_name, table)
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
    reader_name: str, values: list[float | None], has_bounds: bool, open_with: OpenWith, tmp_path: Path
) -> None:
    table = Table(tmp_path / "t")
    schema = pa.schema([("id", pa.int64()), ("c", pa.float64()), ("s", pa.string())])
    table.batch(schema, [{"id": id, "c": value, "s": "a"} for id, value in enumerate(values)])
    table.batch(schema, [{"id": 2, "c": 0.5, "s": None}])
    assert bounded(table) == [has_bounds, True]
    found = open_with(reader_name, table)
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
    reader_name: str, configuration: dict[str, str], open_with: OpenWith, tmp_path: Path
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
    found = open_with(reader_name, table)
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
    files: list[list[dict[str, Any]]], open_with: OpenWith, tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = Table(tmp_path_factory.mktemp("random") / "t")
    ids = iter(range(100))
    for rows in files:
        table.batch(RANDOM_SCHEMA, [{"id": next(ids), **row} for row in rows])
    opened = {name: open_with(name, table) for name in SKIPPING}
    for row in table.rows:
        for name, (type_, _) in SCALARS.items():
            wanted = Filter(
                Comparison(name, "is null") if row[name] is None else Comparison(name, "==", row[name], type_)
            )
            expected = [other["id"] for other in table.rows if wanted.holds(other)]
            assert {name: found.ids(wanted) for name, found in opened.items()} == dict.fromkeys(SKIPPING, expected)
