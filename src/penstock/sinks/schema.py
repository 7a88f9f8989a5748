"""Table schemas: compared by Delta's types, and stored as text.

The text is the JSON that Delta and Spark use for schemas, so that people can read it in the ledger. Arrow has several
types for one table type (``large_string``, ``string_view`` and a dictionary of strings are all a string); comparison
and text always use the table's type.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from penstock.errors import TableError

_BY_NAME = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_NAMES = {type_: name for name, type_ in _BY_NAME.items()}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_DECIMAL_PRECISION_MAX = 38
_SPARK_VARIANT = b"variant"  # PySpark's mark on the struct that a variant becomes in Arrow


def encode(schema: pa.Schema) -> str:
    """Encode a schema as text, without Arrow's metadata. Raises `TableError` for a type that no table can hold."""
    return json.dumps(_struct_to_json(_canonical_fields(schema)), ensure_ascii=False, separators=(",", ":"))


def decode(text: str) -> pa.Schema:
    """Decode a text made by `encode`. Raises `ValueError` for any other text."""
    value = json.loads(text)
    if not isinstance(value, dict) or value.get("type") != "struct":
        raise ValueError("not the JSON of a table's schema")
    return pa.schema([_field_from_json(field) for field in value["fields"]])


def canonical(schema: pa.Schema) -> pa.Schema:
    """Return the same columns with the table's types. Raises `TableError` for a type that no table can hold."""
    return pa.schema(_canonical_fields(schema))


def type_name(type_: pa.DataType) -> str:
    """Return the SQL name of a canonical type."""
    if types.is_struct(type_):
        return f"struct<{', '.join(f'{field.name}: {type_name(field.type)}' for field in type_)}>"
    if types.is_list(type_):
        return f"array<{type_name(type_.value_type)}>"
    if types.is_map(type_):
        return f"map<{type_name(type_.key_type)}, {type_name(type_.item_type)}>"
    if types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    return _NAMES[type_]


def paths(columns: Iterable[pa.Field], prefix: str = "") -> Iterator[str]:
    """Yield the names of columns and of their parts: ``tags``, ``tags.element``, ``tags.element.id``."""
    for field in columns:
        path, kind = f"{prefix}{field.name}", field.type
        yield path
        if types.is_struct(kind):
            yield from paths(kind, f"{path}.")
        elif types.is_map(kind):
            yield from paths([kind.key_field.with_name("key"), kind.item_field.with_name("value")], f"{path}.")
        elif _is_list(kind):
            yield from paths([kind.value_field.with_name("element")], f"{path}.")


def merge(existing: pa.Schema, wanted: pa.Schema, *, table: str, optional: Collection[str] = ()) -> pa.Schema:
    """Return the table's columns followed by those that only ``wanted`` has, as nullable columns.

    ``wanted`` is the schema that a run writes; it may lack the ``optional`` columns. Raises `TableError` for the first
    column that does not fit the table: different type, missing in ``wanted``, different letter case, or not nullable.
    """
    existing = canonical(existing)
    added = additions(existing, wanted, table=table)
    for field in existing:
        if field.name not in wanted.names and field.name not in optional:
            raise TableError(
                f"The column {field.name} ({type_name(field.type)}) of the table {table} is missing in what would be "
                f"written; let the transform return it, as nulls if need be, or write to another table."
            )
    return pa.schema([*existing, *added])


def additions(existing: pa.Schema, wanted: pa.Schema, *, table: str) -> tuple[pa.Field, ...]:
    """Return the columns that the table lacks to accept files with the columns ``wanted``.

    Raises `TableError` like `merge`, except for columns that only the table has: readers see nulls there.
    """
    existing, wanted = canonical(existing), canonical(wanted)
    spelled = {name.lower(): name for name in existing.names}
    added = []
    for field in wanted:
        name = spelled.get(field.name.lower())
        if name is None:
            added.append(field.with_nullable(True))
        elif name != field.name:
            raise TableError(
                f"The column {field.name} would be written to the table {table}, which spells it {name}, and readers "
                f"do not tell them apart; rename it to {name} in the transform."
            )
        else:
            _check_same(existing.field(name), field, table)
    _check_nullable(existing, table)
    return tuple(added)


def same_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Return True if both are the same table type, ignoring nullability. Raises `TableError` like `canonical`."""
    return bool(_without_nullability(_canonical(one, "")) == _without_nullability(_canonical(other, "")))


def _check_same(have: pa.Field, want: pa.Field, table: str) -> None:
    if _without_nullability(have.type) != _without_nullability(want.type):
        raise TableError(
            f"The column {have.name} is {type_name(have.type)} in the table {table} and would be written as "
            f"{type_name(want.type)}; cast it in the transform, or write to another table."
        )
    if _may_be_null(want.type) and not _may_be_null(have.type):
        raise TableError(
            f"The column {have.name} of the table {table} has parts that may not be null, which Penstock cannot "
            f"promise; drop that constraint, or write to another table."
        )


def _check_nullable(existing: pa.Schema, table: str) -> None:
    """Raise `TableError` for a column that may not be null: Spark cannot guarantee that for a file's contents."""
    for field in existing:
        if not field.nullable:
            raise TableError(
                f"The column {field.name} of the table {table} may not be null, which Penstock cannot promise; drop "
                f"its NOT NULL, or write to another table."
            )


def _without_nullability(type_: pa.DataType) -> pa.DataType:
    return _rebuilt(type_, lambda field: field.with_type(_without_nullability(field.type)).with_nullable(True))


def _may_be_null(type_: pa.DataType) -> bool:
    """Return True if a part of the type may be null. A map's keys never are."""
    if types.is_map(type_):
        return bool(type_.item_field.nullable) or _may_be_null(type_.item_type) or _may_be_null(type_.key_type)
    return any(field.nullable or _may_be_null(field.type) for field in _children(type_))


def _children(type_: pa.DataType) -> Iterable[pa.Field]:
    if types.is_struct(type_):
        return tuple(type_)
    if types.is_list(type_):
        return (type_.value_field,)
    return ()


def _rebuilt(type_: pa.DataType, change: Any) -> pa.DataType:
    """Return the same nested canonical type with each child field changed."""
    if types.is_struct(type_):
        return pa.struct([change(field) for field in type_])
    if types.is_list(type_):
        return pa.list_(change(type_.value_field))
    if types.is_map(type_):
        key = change(type_.key_field).with_nullable(False)
        return pa.map_(key, change(type_.item_field))
    return type_


def _canonical_fields(schema: pa.Schema) -> list[pa.Field]:
    if not schema.names:
        raise TableError("There is no column to write, and a table needs one; let the transform return some.")
    _check_distinct(schema.names)
    return [_canonical_field(field, field.name) for field in schema]


def _check_distinct(names: Sequence[str], prefix: str = "") -> None:
    """Raise `TableError` for names that differ only in letter case, which Delta and Spark ignore."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.lower())) is not None:
            raise TableError(
                f"The columns {prefix}{other} and {prefix}{name} have one name, since tables do not tell letter case "
                f"apart; rename one in the transform."
            )
        seen[name.lower()] = name


def _canonical_field(field: pa.Field, column: str) -> pa.Field:
    if field.metadata and _SPARK_VARIANT in field.metadata:
        raise _unstorable(column, "variant")
    return pa.field(field.name, _canonical(field.type, column), nullable=field.nullable)


def _canonical(type_: pa.DataType, column: str) -> pa.DataType:
    if types.is_dictionary(type_):
        return _canonical(type_.value_type, column)
    if types.is_struct(type_):
        _check_distinct([field.name for field in type_], prefix=f"{column}.")
        return pa.struct([_canonical_field(field, f"{column}.{field.name}") for field in type_])
    if types.is_map(type_):
        key, value = type_.key_field, type_.item_field
        return pa.map_(
            pa.field("key", _canonical(key.type, column), nullable=False),
            pa.field("value", _canonical(value.type, column), nullable=value.nullable),
        )
    if _is_list(type_):
        inner = type_.value_field
        return pa.list_(pa.field("element", _canonical(inner.type, column), nullable=inner.nullable))
    return _canonical_leaf(type_, column)


def _canonical_leaf(type_: pa.DataType, column: str) -> pa.DataType:
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_):
        return pa.string()
    if types.is_binary(type_) or types.is_large_binary(type_) or types.is_binary_view(type_):
        return pa.binary()
    if types.is_fixed_size_binary(type_) and not types.is_decimal(type_):
        return pa.binary()
    if types.is_date(type_):
        return pa.date32()
    if types.is_decimal(type_) and type_.precision <= _DECIMAL_PRECISION_MAX and 0 <= type_.scale <= type_.precision:
        return pa.decimal128(type_.precision, type_.scale)
    if types.is_timestamp(type_) and type_.unit != "ns":
        return pa.timestamp("us", tz="UTC") if type_.tz is not None else pa.timestamp("us")
    if type_ in _NAMES:
        return type_
    raise _unstorable(column, str(type_))


def _is_list(type_: pa.DataType) -> bool:
    return bool(types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_))


def _unstorable(column: str, type_: str) -> TableError:
    return TableError(
        f"The column {column} is of type {type_}, which a table cannot hold; cast it in the transform, or leave it out."
    )


def _struct_to_json(fields: Iterable[pa.Field]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": field.name, "type": _type_to_json(field.type), "nullable": field.nullable, "metadata": {}}
            for field in fields
        ],
    }


def _type_to_json(type_: pa.DataType) -> Any:
    if types.is_struct(type_):
        return _struct_to_json(type_)
    if types.is_list(type_):
        inner = type_.value_field
        return {"type": "array", "elementType": _type_to_json(inner.type), "containsNull": inner.nullable}
    if types.is_map(type_):
        return {
            "type": "map",
            "keyType": _type_to_json(type_.key_type),
            "valueType": _type_to_json(type_.item_type),
            "valueContainsNull": type_.item_field.nullable,
        }
    return type_name(type_)


def _field_from_json(field: Any) -> pa.Field:
    return pa.field(field["name"], _type_from_json(field["type"]), nullable=field["nullable"])


def _type_from_json(value: Any) -> pa.DataType:
    if isinstance(value, str):
        return _leaf_from_name(value)
    if value["type"] == "struct":
        return pa.struct([_field_from_json(field) for field in value["fields"]])
    if value["type"] == "array":
        return pa.list_(pa.field("element", _type_from_json(value["elementType"]), nullable=value["containsNull"]))
    if value["type"] == "map":
        return pa.map_(
            pa.field("key", _type_from_json(value["keyType"]), nullable=False),
            pa.field("value", _type_from_json(value["valueType"]), nullable=value["valueContainsNull"]),
        )
    raise ValueError(f"unknown type {value['type']!r} in a table's schema")


def _leaf_from_name(name: str) -> pa.DataType:
    if decimal := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if name not in _BY_NAME:
        raise ValueError(f"unknown type {name!r} in a table's schema")
    return _BY_NAME[name]
