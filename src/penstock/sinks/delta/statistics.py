"""The statistics of a file in Delta's log: bounds for every column that readers may filter by, or for none.

If a file has bounds, deltalake 1.6 (`DeltaTable.to_pyarrow_dataset`) takes an indexed column without bounds as
``column >= null`` and ``column <= null``, and drops rows that a filter on this column should find. Other readers take
it as unknown. So a file with bounds has, for each indexed column,

- of a struct: an empty object, which says nothing and is not null (measured: the fields in it are not used there),
- of a list, map or binary: nothing, as these are not compared,
- of another type: minimum, maximum and the number of nulls, or only that number if all values are null.

Otherwise the file has no bounds, only the numbers of rows and nulls. A column that is added later is null in all older
files, and their statistics must then say so: see `penstock.sinks.parquet.with_columns`.

The first columns of the table are indexed, 32 by default. Readers disagree on whether the fields of structs and the
partition columns count; here neither counts, so this set contains that of every reader.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types

from penstock.sinks.parquet import bounds

INDEXED_COLUMNS = 32  # Delta's default
_INDEXED_COLUMNS_KEY = "delta.dataSkippingNumIndexedCols"
_STATISTICS_COLUMNS_KEY = "delta.dataSkippingStatsColumns"
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 -- only ever subtracted; the zone is UTC or none, by the column's type
_MICROSECOND = timedelta(microseconds=1)
_CUT_MAX = 999  # microseconds by which a logged maximum may be below the greatest value: see `logged`

Statistics = Mapping[str, Any]  # of a `DataFile`


def indexed_columns(
    schema: pa.Schema, *, partition_by: Sequence[str], configuration: Mapping[str, str | None]
) -> Sequence[pa.Field]:
    """Return the columns that readers may use to skip files of a table with these columns and properties."""
    stored = [field for field in schema if field.name not in partition_by]
    if configuration.get(_STATISTICS_COLUMNS_KEY) is not None:
        return stored  # bounds of more columns than the named ones do no harm
    try:
        number = int(configuration.get(_INDEXED_COLUMNS_KEY) or INDEXED_COLUMNS)
    except ValueError:
        return stored
    return stored if number < 0 else stored[:number]


def encode(rows: int, statistics: Statistics, indexed: Sequence[pa.Field]) -> str:
    """Return the text for the log."""
    nulls = statistics.get("nullCount", {})
    found: dict[str, Any] = {"numRecords": rows}
    ranges = _ranges(rows, statistics, indexed)
    if ranges is not None:
        found["minValues"], found["maxValues"] = ranges
    return _json({**found, "nullCount": nulls})


def encodes_bounds(rows: int, statistics: Statistics, indexed: Sequence[pa.Field]) -> bool:
    """Return True if `encode` includes bounds."""
    return _ranges(rows, statistics, indexed) is not None


def logged(
    *,
    least: Mapping[str, Any] | None,
    greatest: Mapping[str, Any] | None,
    nulls: Mapping[str, Any] | None,
    schema: pa.Schema,
) -> Statistics:
    """Return statistics that deltalake read from a log, by column, as those of a `DataFile`.

    Spark and Databricks cut the bounds of timestamps to milliseconds, also the maximum. So that is moved up, by less
    than a millisecond, in every file.
    """
    found: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    for name, number in (nulls or {}).items():
        if isinstance(number, int):
            found["nullCount"][name] = number
    for field in schema:
        low, high = (one.get(field.name) if one else None for one in (least, greatest))
        if low is not None and high is not None and not types.is_nested(field.type):
            raw = _raw(high) + _CUT_MAX if types.is_timestamp(field.type) else _raw(high)
            for key, bound in zip(("minValues", "maxValues"), bounds(field.type, _raw(low), raw), strict=True):
                if bound is not None:
                    found[key][field.name] = bound
    return found


def with_raw_dates(actions: pa.Table) -> pa.Table:
    """Return the actions of a log with dates in their bounds as numbers of days: Python lacks those of other writers
    outside the years 1 to 9999.
    """
    for number, field in enumerate(actions.schema):
        if field.name in ("min", "max") and types.is_struct(field.type):
            raw = [one.with_type(pa.int32() if types.is_date32(one.type) else one.type) for one in field.type]
            column = actions.column(number).cast(pa.struct(raw))
            actions = actions.set_column(number, field.name, column)
    return actions


def has_bounds(statistics: Statistics) -> bool:
    """Return True if some column has a minimum."""
    return bool(statistics.get("minValues"))


def _ranges(
    rows: int, statistics: Statistics, indexed: Sequence[pa.Field]
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return minimum and maximum by column; None if a column lacks them, or if none has them."""
    nulls = statistics.get("nullCount", {})
    known = [statistics.get(key, {}) for key in ("minValues", "maxValues")]
    ranges: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for field in indexed:
        name = field.name
        if types.is_struct(field.type):
            for one in ranges:
                one[name] = {}
        elif types.is_nested(field.type) or types.is_binary(field.type):
            continue
        elif name not in nulls:
            return None
        elif all(name in one for one in known):
            for one, bound in zip(ranges, known, strict=True):
                one[name] = Decimal(bound[name]) if types.is_decimal(field.type) else bound[name]
        elif nulls[name] != rows:
            return None
    return ranges if any(bound != {} for bound in ranges[0].values()) else None


def _raw(value: Any) -> Any:
    """Return a value as Parquet stores it."""
    match value:
        case datetime():
            return (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
        case date():
            return (value - _EPOCH.date()).days
        case Decimal():
            return int(f"{value:f}".replace(".", ""))
    return value


def _json(value: Any) -> str:
    """Encode like `json`, and decimals as numbers with all their digits.

    Characters are not escaped: arrow-rs decodes some escaped ones of several bytes to others (measured with 1.6.6).
    """
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_json(name)}:{_json(one)}" for name, one in value.items()) + "}"
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)
