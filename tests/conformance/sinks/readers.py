"""Readers of Delta tables, and the filters that each of them can apply."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast

import duckdb
import duckdb_extension_delta  # type: ignore[import-untyped]  # it has one file, and no types
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder

_SQL = {"==": "=", "is in": "in"}
_SQL_TYPES: Mapping[pa.DataType, str] = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double",
}


_LONG = pa.int64()

Dialect = Callable[[Any, pa.DataType], str]  # a value as a literal of SQL


@dataclass(frozen=True, slots=True)
class Comparison:
    """A condition on one column: ``column op value``; "is null" and "is not null" have no value."""

    column: str
    op: str
    value: Any = None
    type_: pa.DataType = _LONG

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Return True if SQL finds the row."""
        found = row.get(self.column)
        if self.op == "is null":
            return found is None
        if found is None:
            return False
        match self.op:
            case "is not null":
                return True
            case "is in":
                return found in self.value
        return bool(_compared(found, self.op, self.value))

    def sql(self, dialect: "Dialect") -> str:
        if self.op in ("is null", "is not null"):
            return f"{self.column} {self.op}"
        if self.op == "is in":
            return f"{self.column} in ({', '.join(dialect(value, self.type_) for value in self.value)})"
        return f"{self.column} {_SQL.get(self.op, self.op)} {dialect(self.value, self.type_)}"

    def arrow(self) -> pc.Expression:
        column = pc.field(self.column)
        match self.op:
            case "is null":
                return column.is_null()
            case "is not null":
                return column.is_valid()
            case "is in":
                return column.isin(pa.array(self.value, self.type_))
        return _compared(column, self.op, pa.scalar(self.value, self.type_))

    def polars(self) -> pl.Expr:
        column = pl.col(self.column)
        match self.op:
            case "is null":
                return column.is_null()
            case "is not null":
                return column.is_not_null()
            case "is in":
                return column.is_in(pl.from_arrow(pa.array(self.value, self.type_)).implode())  # type: ignore[union-attr]  # an array is a Series
        value = pl.lit(self.value, dtype=pl.Series(pa.array([], self.type_)).dtype)
        return cast("pl.Expr", _compared(column, self.op, value))

    def daft(self) -> Any:
        import daft  # type: ignore[import-not-found] # not locked

        column = daft.col(self.column)
        match self.op:
            case "is null":
                return column.is_null()
            case "is not null":
                return column.not_null()
            case "is in":
                return column.is_in([_daft_literal(value, self.type_) for value in self.value])
        return _compared(column, self.op, _daft_literal(self.value, self.type_))


@dataclass(frozen=True, slots=True)
class Filter:
    """One condition, or two joined by "and" or "or"."""

    first: Comparison
    join: str = ""
    second: Comparison | None = None

    def holds(self, row: Mapping[str, Any]) -> bool:
        return bool(self._joined(lambda one: one.holds(row), lambda a, b: a and b, lambda a, b: a or b))

    def sql(self, dialect: "Dialect") -> str:
        return str(self._joined(lambda one: one.sql(dialect), "{} and {}".format, "{} or {}".format))

    def arrow(self) -> pc.Expression:
        return self._joined(Comparison.arrow, lambda a, b: a & b, lambda a, b: a | b)

    def polars(self) -> pl.Expr:
        return cast("pl.Expr", self._joined(Comparison.polars, lambda a, b: a & b, lambda a, b: a | b))

    def daft(self) -> Any:
        return self._joined(Comparison.daft, lambda a, b: a & b, lambda a, b: a | b)

    def __str__(self) -> str:
        return self.sql(lambda value, _: repr(value))

    def _joined(
        self, each: Callable[[Comparison], Any], both: Callable[[Any, Any], Any], either: Callable[[Any, Any], Any]
    ) -> Any:
        if self.second is None:
            return each(self.first)
        return (both if self.join == "and" else either)(each(self.first), each(self.second))


class Reader(Protocol):
    """One way to read a table. Tables have a column ``id``."""

    def open(self, root: Path) -> "OpenTable": ...


class OpenTable(Protocol):
    """A table that one reader has opened."""

    def ids(self, wanted: Filter | None) -> Sequence[int]:
        """Return the ids of the rows that the filter finds, sorted."""
        ...

    def files_read(self, wanted: Filter) -> int | None:
        """Return the number of files that are not skipped; None if the reader does not show it."""
        ...


class ArrowOfDeltalake:
    """deltalake's `to_pyarrow_dataset`."""

    def open(self, root: Path) -> OpenTable:
        return _Dataset(DeltaTable(str(root)).to_pyarrow_dataset(), skips=True)


class ArrowFiles:
    """PyArrow over the list of files. It reads no statistics of the log."""

    def open(self, root: Path) -> OpenTable:
        table = DeltaTable(str(root))
        columns = pa.schema(table.schema())
        stored = pa.schema([field for field in columns if field.name not in table.metadata().partition_columns])
        return _Dataset(ds.dataset(table.file_uris(), schema=stored), skips=False)


class DataFusionOfDeltalake:
    """deltalake's `QueryBuilder`."""

    def open(self, root: Path) -> OpenTable:
        return _DataFusion(QueryBuilder().register("t", DeltaTable(str(root))))


class DuckDb:
    """DuckDB with its extension for Delta, which uses the kernel of Delta."""

    def __init__(self) -> None:
        (extension,) = Path(duckdb_extension_delta.__file__).parent.glob("extensions/*/delta.duckdb_extension")
        self._connection = duckdb.connect()
        self._connection.execute(f"load '{extension}'")
        self._connection.execute("set timezone = 'UTC'")

    def open(self, root: Path) -> OpenTable:
        return _DuckDb(self._connection, root)


class Polars:
    """Polars' `scan_delta`."""

    def open(self, root: Path) -> OpenTable:
        return _Polars(pl.scan_delta(str(root)))


class Daft:
    """Daft's `read_deltalake`."""

    def open(self, root: Path) -> OpenTable:
        import daft

        return _Daft(daft.read_deltalake(str(root)))


READERS: Mapping[str, type[Reader]] = {
    "deltalake-pyarrow": ArrowOfDeltalake,
    "deltalake-datafusion": DataFusionOfDeltalake,
    "duckdb": DuckDb,
    "polars": Polars,
    **({"daft": Daft} if find_spec("daft") else {}),  # not in the lock: docs/why/decisions/readers-in-tests.md
    "pyarrow-files": ArrowFiles,
}


class _Dataset:
    def __init__(self, dataset: ds.Dataset, *, skips: bool) -> None:
        self._dataset = dataset
        self._skips = skips

    def ids(self, wanted: Filter | None) -> Sequence[int]:
        found = self._dataset.to_table(columns=["id"], filter=None if wanted is None else wanted.arrow())
        return sorted(found["id"].to_pylist())

    def files_read(self, wanted: Filter) -> int | None:
        return len(list(self._dataset.get_fragments(filter=wanted.arrow()))) if self._skips else None


class _DataFusion:
    def __init__(self, builder: QueryBuilder) -> None:
        self._builder = builder

    def ids(self, wanted: Filter | None) -> Sequence[int]:
        where = "" if wanted is None else f"where {wanted.sql(_datafusion_literal)}"
        return sorted(pa.table(self._builder.execute(f"select id from t {where}").read_all())["id"].to_pylist())

    def files_read(self, wanted: Filter) -> int | None:
        plan = pa.table(
            self._builder.execute(f"explain select id from t where {wanted.sql(_datafusion_literal)}").read_all()
        )
        return len(re.findall(r"[^\s\[,]+\.parquet", plan["plan"].to_pylist()[-1]))


class _DuckDb:
    def __init__(self, connection: duckdb.DuckDBPyConnection, root: Path) -> None:
        self._connection = connection
        self._from = f"from delta_scan('{root}')"

    def ids(self, wanted: Filter | None) -> Sequence[int]:
        where = "" if wanted is None else f"where {wanted.sql(_duckdb_literal)}"
        return sorted(row[0] for row in self._connection.execute(f"select id {self._from} {where}").fetchall())

    def files_read(self, wanted: Filter) -> int | None:
        plan = self._connection.execute(
            f"explain analyze select id {self._from} where {wanted.sql(_duckdb_literal)}"
        ).fetchall()
        found = re.search(r"Scanning Files: (\d+)/\d+", plan[0][1])
        return None if found is None else int(found[1])


class _Polars:
    def __init__(self, frame: pl.LazyFrame) -> None:
        self._frame = frame

    def ids(self, wanted: Filter | None) -> Sequence[int]:
        return sorted(self._wanted(wanted).collect()["id"].to_list())

    def files_read(self, wanted: Filter) -> int | None:
        plan = self._wanted(wanted).explain()
        scan = re.search(r"Parquet SCAN \[([^\],]*)(?:, \.\.\. (\d+) other sources)?\]", plan)
        if scan is None:
            return 0
        return (1 if scan[1] else 0) + int(scan[2] or 0)

    def _wanted(self, wanted: Filter | None) -> pl.LazyFrame:
        return (self._frame if wanted is None else self._frame.filter(wanted.polars())).select("id")


class _Daft:
    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def ids(self, wanted: Filter | None) -> Sequence[int]:
        return sorted(self._wanted(wanted).to_pydict()["id"])

    def files_read(self, wanted: Filter) -> int | None:
        return None

    def _wanted(self, wanted: Filter | None) -> Any:
        return (self._frame if wanted is None else self._frame.where(wanted.daft())).select("id")


def _compared(column: Any, op: str, value: Any) -> Any:
    match op:
        case "==":
            return column == value
        case "<":
            return column < value
        case ">=":
            return column >= value
    raise AssertionError(op)


def _duckdb_literal(value: Any, type_: pa.DataType) -> str:
    match value:
        case bytes():
            return f"unhex('{value.hex()}')"
        case datetime():
            kind = "timestamp" if value.tzinfo is None else "timestamptz"
            return f"cast('{value.isoformat(' ')}' as {kind})"
    return _literal(value, type_)


def _datafusion_literal(value: Any, type_: pa.DataType) -> str:
    match value:
        case bytes():
            return f"decode('{value.hex()}', 'hex')"
        case datetime():  # DataFusion's own timestamps are in nanoseconds, of fewer years
            zone = "None" if value.tzinfo is None else 'Some("UTC")'
            return f"arrow_cast('{value.replace(tzinfo=None).isoformat()}', 'Timestamp(Microsecond, {zone})')"
    return _literal(value, type_)


def _daft_literal(value: Any, type_: pa.DataType) -> Any:
    import daft

    return daft.lit(value).cast(daft.DataType.from_arrow_type(type_))


def _literal(value: Any, type_: pa.DataType) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return "'" + value.replace("'", "''") + "'"
        case date():
            return f"date '{value.isoformat()}'"
        case Decimal():
            return f"cast('{value:f}' as decimal({type_.precision}, {type_.scale}))"
    return f"cast('{value!r}' as {_SQL_TYPES[type_]})"
