"""Columns that Arrow's readers are given as strings, because they read them otherwise than we mean: dates and times.

A time may come with a zone or without one, then it is UTC, in one column; and with up to nine digits of a second, of
which a timestamp keeps six, as Spark does. Arrow's casts want one way for all of a column and refuse the digits.
"""

import re

import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.source.ddl import TIMESTAMP, TIMESTAMP_NTZ

_FINE = r"(\.[0-9]{6})[0-9]{1,3}($|[Z+-])"
_ZONED = r"[T ].*(Z|[+-][0-9:]+)$"


def holds_moments(kind: pa.DataType) -> bool:
    """Whether there is a timestamp in the type."""
    if pa.types.is_nested(kind):
        return any(holds_moments(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_timestamp(kind))


def text_type(kind: pa.DataType, *, moments: bool) -> pa.DataType:
    """The type with strings where dates are, and with ``moments`` where timestamps are, too."""
    if pa.types.is_date(kind) or (moments and pa.types.is_timestamp(kind)):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(text_type(kind.value_type, moments=moments)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(text_type(field.type, moments=moments)) for field in kind])
    return kind


def cast_texts(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array as that type, of which it has the `text_type`. Raises `ArrowInvalid` for a text that is none."""
    if array.type == kind:
        return array
    if pa.types.is_timestamp(kind):
        return to_moments(array, kind)
    if not holds_moments(kind):
        return array.cast(kind)
    if pa.types.is_list(kind):
        values = cast_texts(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())
    columns = [cast_texts(array.field(index), kind.field(index).type) for index in range(kind.num_fields)]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=array.is_null())


def to_moments(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Strings to timestamps. Raises `ArrowInvalid` when one of them is none."""
    first = pc.first(texts).as_py() or ""  # the others are mostly written like it, and refusing many is slow
    try:
        return texts.cast(TIMESTAMP if re.search(_ZONED, first) else TIMESTAMP_NTZ).cast(kind)
    except pa.ArrowInvalid:
        pass
    texts = pc.replace_substring_regex(texts, pattern=_FINE, replacement=r"\1\2")
    zoned = pc.match_substring_regex(texts, pattern=_ZONED)
    nothing = pa.scalar(None, pa.string())
    local = pc.if_else(zoned, nothing, texts).cast(TIMESTAMP_NTZ).cast(kind)
    return pc.coalesce(local, pc.if_else(zoned, texts, nothing).cast(TIMESTAMP).cast(kind))
