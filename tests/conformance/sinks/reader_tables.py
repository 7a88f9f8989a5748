"""Tables for the matrix of readers: values of every type, nulls, and a column that older files lack."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from tests.conformance.sinks.kit import DeltaKit, append, loaded
from tests.conformance.sinks.readers import Comparison, Filter

from penstock.pipeline.maintenance.compact import compact
from penstock.sinks.delta.sink import DeltaTableSink
from penstock.sinks.parquet import FooterNote, list_files
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock

UTC_US = pa.timestamp("us", tz="UTC")
STRUCT = pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string())]))])
FIRST_COLUMNS = pa.schema([("id", pa.int64()), ("nested", STRUCT), ("list", pa.list_(pa.int64()))])


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
