"""Declared types that hold the values of other types: of an object's own columns, or of several columns."""

import pyarrow as pa

from penstock.pipeline.spark.source.ddl import DEPTH_MAX, TIMESTAMP, TIMESTAMP_NTZ, may_be_column

_DIGITS_MAX = 38
_DIGITS_OF_INTEGERS = {8: 3, 16: 5, 32: 10, 64: 19}
_STORED_AS = {
    **{kind: kind for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_())},
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}


def storable(kind: pa.DataType, depth: int = 0) -> pa.DataType:
    """Return the declared type that holds all values of a type that objects may have; string if there is no other."""
    types = pa.types
    if types.is_dictionary(kind):
        return storable(kind.value_type, depth)
    if isinstance(kind, pa.BaseExtensionType):
        return storable(kind.storage_type, depth)
    if types.is_nested(kind) and depth >= DEPTH_MAX:
        return pa.string()
    if is_list(kind):
        return pa.list_(pa.field("element", storable(kind.value_type, depth + 1)))
    if types.is_map(kind):
        return pa.map_(storable(kind.key_type, depth + 1), storable(kind.item_type, depth + 1))
    if types.is_struct(kind):
        names = {field.name.lower() for field in kind}
        if len(names) < max(1, kind.num_fields) or not all(may_be_column(name, depth=1) for name in names):
            return pa.string()  # no field, one twice, or one without a name
        return pa.struct([field.with_type(storable(field.type, depth + 1)).with_nullable(True) for field in kind])
    if types.is_timestamp(kind):
        return TIMESTAMP_NTZ if kind.tz is None else TIMESTAMP
    if types.is_date(kind):
        return pa.date32()
    if types.is_decimal(kind):
        fits = kind.precision <= _DIGITS_MAX and 0 <= kind.scale <= kind.precision
        return pa.decimal128(kind.precision, kind.scale) if fits else pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    return _STORED_AS.get(kind, pa.string())


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the narrowest declared type for the values of both; string if there is no other.

    Beside fractions of a float, whole numbers and decimals become double, which may round them.
    """
    types = pa.types
    if one == other:
        return one
    if types.is_integer(one) and types.is_integer(other):
        return max(one, other, key=lambda kind: kind.bit_width)
    if types.is_floating(one) or types.is_floating(other):
        return pa.float64() if is_number(one) and is_number(other) else pa.string()
    decimals = [_as_decimal(kind) for kind in (one, other) if types.is_decimal(kind) or types.is_integer(kind)]
    if len(decimals) == 2:
        scale = max(kind.scale for kind in decimals)
        precision = max(kind.precision - kind.scale for kind in decimals) + scale
        return pa.decimal128(precision, scale) if precision <= _DIGITS_MAX else pa.string()
    moments = [kind for kind in (one, other) if types.is_timestamp(kind) or types.is_date(kind)]
    if len(moments) == 2:
        return TIMESTAMP if TIMESTAMP in moments else TIMESTAMP_NTZ
    if types.is_list(one) and types.is_list(other):
        return pa.list_(pa.field("element", wider(one.value_type, other.value_type)))
    if types.is_struct(one) and types.is_struct(other):
        return _wider_struct(one, other)
    return pa.string()


def is_number(kind: pa.DataType) -> bool:
    """Return True for integers, floats and decimals."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return True for lists in any of Arrow's layouts."""
    types = pa.types
    has_offsets = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(has_offsets or types.is_list_view(kind) or types.is_large_list_view(kind))


def _as_decimal(kind: pa.DataType) -> pa.DataType:
    return kind if pa.types.is_decimal(kind) else pa.decimal128(_DIGITS_OF_INTEGERS[kind.bit_width], 0)


def _wider_struct(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    fields = {field.name.lower(): field for field in one}
    for field in other:
        known = fields.get(field.name.lower())
        fields[field.name.lower()] = field if known is None else known.with_type(wider(known.type, field.type))
    return pa.struct(list(fields.values()))
