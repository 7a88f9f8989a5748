"""Convert columns and statistics between Penstock and Iceberg.

Iceberg identifies columns by numbers. The Parquet files have none, as they are written before the table numbers its
columns, so the table has a name mapping: readers find a column by its name in such a file.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types
from pyiceberg import types as iceberg
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, NameMapping, create_mapping_from_schema, parse_mapping_from_json

from penstock.errors import TableError
from penstock.sinks import schema as encoding
from penstock.sinks.schema import canonical

COLUMNS = "penstock.columns"  # table property: the columns as Penstock wrote them, which has types that Iceberg lacks
NAME_MAPPING = "schema.name-mapping.default"

_PRIMITIVES: Mapping[pa.DataType, iceberg.PrimitiveType] = {
    pa.int8(): iceberg.IntegerType(),
    pa.int16(): iceberg.IntegerType(),
    pa.int32(): iceberg.IntegerType(),
    pa.int64(): iceberg.LongType(),
    pa.float32(): iceberg.FloatType(),
    pa.float64(): iceberg.DoubleType(),
    pa.bool_(): iceberg.BooleanType(),
    pa.string(): iceberg.StringType(),
    pa.binary(): iceberg.BinaryType(),
    pa.date32(): iceberg.DateType(),
    pa.timestamp("us", tz="UTC"): iceberg.TimestamptzType(),
    pa.timestamp("us"): iceberg.TimestampType(),
}
_CANONICAL: Mapping[iceberg.PrimitiveType, pa.DataType] = {
    kind: type_ for type_, kind in _PRIMITIVES.items() if type_ not in (pa.int8(), pa.int16())
}
# Types whose bounds are read from the table. Others are seldom searched for, and their files are opened.
_BOUNDED = (iceberg.StringType, iceberg.IntegerType, iceberg.LongType, iceberg.DateType, iceberg.BooleanType)
_EPOCH_DAY = date(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 -- only subtracted from times without a zone


def iceberg_schema(columns: pa.Schema, *, schema_id: int = 0) -> Schema:
    """Return new columns for a table, numbered from 1."""
    numbers = iter(range(1, 1 << 30))
    return Schema(*_fields(canonical(columns), numbers), schema_id=schema_id)


def widened(existing: Schema, added: Iterable[pa.Field], *, last_column_id: int, schema_id: int) -> Schema:
    """Return the columns followed by the added ones, which get the next numbers."""
    numbers = iter(range(last_column_id + 1, 1 << 30))
    return Schema(
        *existing.fields,
        *_fields(canonical(pa.schema(list(added))), numbers),
        schema_id=schema_id,
        identifier_field_ids=existing.identifier_field_ids,
    )


def arrow_schema(columns: Schema, properties: Mapping[str, str], *, table: str) -> pa.Schema:
    """Return the columns with the types that Penstock wrote. Raises `TableError` for a type that it cannot write.

    Iceberg has no byte and no short: such a column is an int in the table.
    """
    written = encoding.decode(properties[COLUMNS]) if COLUMNS in properties else pa.schema([])
    return pa.schema([_arrow_field(field, written, table) for field in columns.fields])


def name_mapping(columns: Schema, properties: Mapping[str, str]) -> str:
    """Return the property that maps names to column numbers: the existing one, in which each column has its name.

    A name belongs to one column: the one that has it now. Two with one name would hide the values of both.
    """
    wanted = create_mapping_from_schema(columns)
    if NAME_MAPPING not in properties:
        return wanted.model_dump_json()
    existing = parse_mapping_from_json(properties[NAME_MAPPING])
    mapped = _mapped(wanted.root, existing.root)
    return properties[NAME_MAPPING] if mapped == existing.root else NameMapping(mapped).model_dump_json()


def has_renamed_columns(columns: Schema, properties: Mapping[str, str]) -> bool:
    """Return True if a column has, or had, another name in some file."""
    if NAME_MAPPING not in properties:
        return False
    return _differs(create_mapping_from_schema(columns).root, parse_mapping_from_json(properties[NAME_MAPPING]).root)


def renamed_to(name: str, columns: Schema, properties: Mapping[str, str]) -> str | None:
    """Return the present name of a column that files have under this name; None if there is no such column."""
    if NAME_MAPPING not in properties:
        return None
    present = {field.field_id: field.name for field in columns.fields}
    named = (field for field in parse_mapping_from_json(properties[NAME_MAPPING]).root if name in field.names)
    return next((present[field.field_id] for field in named if field.field_id in present), None)


def check_names(columns: pa.Schema, *, table: str) -> None:
    """Raise `TableError` for a column that is named like a part of another one, such as ``a.b`` beside a struct ``a``.

    Iceberg's libraries find columns and their parts by such paths, and refuse a table in which two are equal.
    """
    seen: set[str] = set()
    for path in encoding.paths(columns):
        if path in seen:
            raise TableError(
                f"The table {table} cannot have two columns or parts of columns with the name {path}, since Iceberg "
                "does not tell them apart; rename one in the transform."
            )
        seen.add(path)


def metrics(statistics: Mapping[str, Any], columns: Schema, *, rows: int) -> dict[str, Any]:
    """Return a file's counts and bounds. They are exact, or rounded outwards."""
    fields = {field.name: field for field in columns.fields if field.field_type.is_primitive}
    nulls = {fields[name].field_id: count for name, count in statistics.get("nullCount", {}).items() if name in fields}
    return {
        "value_counts": dict.fromkeys(nulls, rows),
        "null_value_counts": nulls,
        "lower_bounds": _bounds(statistics.get("minValues", {}), fields),
        "upper_bounds": _bounds(statistics.get("maxValues", {}), fields),
    }


def bounds(
    lower: Mapping[int, bytes] | None, upper: Mapping[int, bytes] | None, columns: Iterable[iceberg.NestedField]
) -> Mapping[str, Any]:
    """Return the bounds of these columns in a file, as the ``minValues`` and ``maxValues`` of its statistics."""
    found: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}}
    for field in columns:
        raw = [(values or {}).get(field.field_id) for values in (lower, upper)]
        if isinstance(field.field_type, _BOUNDED) and None not in raw:
            for values, one in zip(found.values(), raw, strict=True):
                bound = _read_bound(field.field_type, one or b"")
                if bound is not None:
                    values[field.name] = bound
    return found


def columns_text(columns: pa.Schema) -> str:
    """Return the value of the property `COLUMNS`."""
    return encoding.encode(columns)


def document(columns: pa.Schema) -> Mapping[str, Any]:
    """Return the columns as the JSON document that Delta and Spark use."""
    found: Mapping[str, Any] = json.loads(encoding.encode(columns))
    return found


def _fields(columns: Iterable[pa.Field], numbers: Iterator[int]) -> Sequence[iceberg.NestedField]:
    ids = [(next(numbers), field) for field in columns]  # columns of one level have consecutive numbers
    return [
        iceberg.NestedField(
            field_id=number, name=field.name, field_type=_iceberg_type(field.type, numbers), required=not field.nullable
        )
        for number, field in ids
    ]


def _iceberg_type(type_: pa.DataType, numbers: Iterator[int]) -> iceberg.IcebergType:
    if types.is_struct(type_):
        return iceberg.StructType(*_fields(list(type_), numbers))
    if types.is_list(type_):
        element = next(numbers)
        return iceberg.ListType(
            element_id=element,
            element_type=_iceberg_type(type_.value_type, numbers),
            element_required=not type_.value_field.nullable,
        )
    if types.is_map(type_):
        key, value = next(numbers), next(numbers)
        return iceberg.MapType(
            key_id=key,
            key_type=_iceberg_type(type_.key_type, numbers),
            value_id=value,
            value_type=_iceberg_type(type_.item_type, numbers),
            value_required=not type_.item_field.nullable,
        )
    if types.is_decimal(type_):
        return iceberg.DecimalType(type_.precision, type_.scale)
    return _PRIMITIVES[type_]


def _arrow_field(field: iceberg.NestedField, written: pa.Schema, table: str) -> pa.Field:
    made = pa.field(field.name, _arrow_type(field.field_type, field.name, table), nullable=not field.required)
    if field.name in written.names:
        known = written.field(field.name)
        if _same(_iceberg_type(known.type, iter(range(1 << 30))), field.field_type):
            return known.with_nullable(made.nullable)
    return made


def _arrow_type(kind: iceberg.IcebergType, column: str, table: str) -> pa.DataType:
    if isinstance(kind, iceberg.StructType):
        return pa.struct(
            [
                pa.field(part.name, _arrow_type(part.field_type, column, table), nullable=not part.required)
                for part in kind.fields
            ]
        )
    if isinstance(kind, iceberg.ListType):
        return pa.list_(
            pa.field("element", _arrow_type(kind.element_type, column, table), nullable=not kind.element_required)
        )
    if isinstance(kind, iceberg.MapType):
        return pa.map_(
            pa.field("key", _arrow_type(kind.key_type, column, table), nullable=False),
            pa.field("value", _arrow_type(kind.value_type, column, table), nullable=not kind.value_required),
        )
    if isinstance(kind, iceberg.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if not isinstance(kind, iceberg.PrimitiveType) or kind not in _CANONICAL:
        raise TableError(
            f"The column {column} of the table {table} is of Iceberg's type {kind}, which Penstock cannot write; "
            "write to another table."
        )
    return _CANONICAL[kind]


def _same(one: iceberg.IcebergType, other: iceberg.IcebergType) -> bool:
    """Return True if two types differ at most in the numbers of their parts."""
    if isinstance(one, iceberg.StructType) and isinstance(other, iceberg.StructType):
        return len(one.fields) == len(other.fields) and all(
            a.name == b.name and a.required == b.required and _same(a.field_type, b.field_type)
            for a, b in zip(one.fields, other.fields, strict=True)
        )
    if isinstance(one, iceberg.ListType) and isinstance(other, iceberg.ListType):
        return one.element_required == other.element_required and _same(one.element_type, other.element_type)
    if isinstance(one, iceberg.MapType) and isinstance(other, iceberg.MapType):
        return (
            one.value_required == other.value_required
            and _same(one.key_type, other.key_type)
            and _same(one.value_type, other.value_type)
        )
    return one == other


def _mapped(wanted: Sequence[MappedField], existing: Sequence[MappedField]) -> list[MappedField]:
    """Return the existing fields with the wanted ones that they lack, without names that now are other fields'."""
    now = {field.field_id: field for field in wanted}
    owners = {name: field.field_id for field in wanted for name in field.names}
    found = []
    for field in existing:
        names = [name for name in field.names if owners.get(name, field.field_id) == field.field_id]
        fields = field.fields
        if (present := now.pop(field.field_id, None)) is not None:
            names += [name for name in present.names if name not in names]
            fields = _mapped(present.fields, field.fields)
        if names:
            found.append(MappedField(field_id=field.field_id, names=names, fields=fields))
    return [*found, *now.values()]


def _differs(wanted: Iterable[MappedField], found: Iterable[MappedField]) -> bool:
    by_number = {field.field_id: field for field in found}
    return any(
        field.field_id in by_number
        and (
            set(by_number[field.field_id].names) != set(field.names)
            or _differs(field.fields, by_number[field.field_id].fields)
        )
        for field in wanted
    )


def _bounds(values: Mapping[str, Any], fields: Mapping[str, iceberg.NestedField]) -> dict[int, bytes]:
    found = {}
    for name, value in values.items():
        if name in fields:
            kind = fields[name].field_type
            assert isinstance(kind, iceberg.PrimitiveType)
            found[fields[name].field_id] = to_bytes(kind, _stored(value, kind))
    return found


def _read_bound(kind: iceberg.IcebergType, raw: bytes) -> Any:
    """Return a bound as the statistics of a `DataFile` have it; None if it cannot be read."""
    try:
        value: Any = from_bytes(kind, raw)  # type: ignore[arg-type] # it is one of `_BOUNDED`
    except (ValueError, struct.error):  # cut within a character, or written before the column's type was widened
        return None
    if isinstance(kind, iceberg.DateType):
        return _day(value)
    return value


def _day(number: int) -> str | None:
    try:
        return (_EPOCH_DAY + timedelta(days=number)).isoformat()
    except OverflowError:
        return None


def _stored(value: Any, kind: iceberg.PrimitiveType) -> Any:
    """Return a value of a file's statistics as Iceberg's number for it: days, microseconds, a decimal."""
    if isinstance(kind, iceberg.DateType):
        return (date.fromisoformat(value) - _EPOCH_DAY).days
    if isinstance(kind, (iceberg.TimestampType, iceberg.TimestamptzType)):
        return (datetime.fromisoformat(value.removesuffix("Z")) - _EPOCH) // timedelta(microseconds=1)
    return Decimal(value) if isinstance(kind, iceberg.DecimalType) else value
