"""The order of the rows of one key, over Arrow columns.

It is total and depends on the rows alone: first the columns of ``order_by``, then a delete after a row that stays, then
all stored columns by name, and last those that say where a row is from. Null is the oldest value; NaN is the greatest
number, and -0.0 equals 0.0, as in Spark. A column that older rows lack is null in them, so adding one changes no order.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.errors import TableError, UsageError
from penstock.pipeline.merging.declaration import PROVENANCE, Merge

Rows = np.ndarray[Any, np.dtype[np.int64]]  # numbers of rows
Signs = np.ndarray[Any, np.dtype[np.int8]]  # -1: earlier, 0: equal, 1: later

_NUMBERS: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (types.is_date32, pa.int32()),
    (types.is_timestamp, pa.int64()),
    (types.is_boolean, pa.int8()),
)


def check_types(schema: pa.Schema, key: Sequence[str], order_by: Sequence[str]) -> None:
    """Raise `TableError` for a column of the key or the order that the table lacks, or whose type has no order."""
    for name in (*key, *order_by):
        if name not in schema.names:
            raise TableError(f"The merge needs the column {name}, and the rows have {', '.join(schema.names)}.")
        kind = schema.field(name).type
        if types.is_nested(kind) or (name in key and (types.is_floating(kind) or types.is_binary(kind))):
            use = "be a key" if name in key else "order rows"
            raise TableError(
                f"The column {name} is {kind}, which cannot {use}; let the transform make a number, string, date or "
                "timestamp of it."
            )


def check_compared(columns: pa.Schema, merge: Merge) -> None:
    """Raise `UsageError` for a column of the key or the order that the rows lack, or whose type has no order."""
    try:
        check_types(columns, merge.key, merge.order_by)
    except TableError as error:
        raise UsageError(str(error)) from error


def key_texts(columns: Sequence[pa.Array]) -> pa.Array:
    """Return one text per row, equal for equal keys only."""
    texts = [_text(column) for column in columns]
    if len(texts) == 1:
        return texts[0]
    parts = [part for text in texts for part in (pc.cast(pc.binary_length(text), pa.large_string()), text)]
    return pc.binary_join_element_wise(*parts, pa.scalar(":", pa.large_string()))


def compare(left: Sequence[pa.Array], right: Sequence[pa.Array], rows: int) -> Signs:
    """Compare rows, column by column: the first column that differs decides."""
    found: Signs = np.zeros(rows, np.int8)
    for one, other in zip(left, right, strict=True):
        if found.all():
            break
        found = np.where(found == 0, _compared(one, other), found).astype(np.int8)
    return found


def content_names(schema: pa.Schema, compared: Sequence[str]) -> Sequence[str]:
    """Return the columns that decide between rows which are equal in key and order."""
    others = [name for name in schema.names if name not in compared]
    last = [name for name in PROVENANCE if name in others]
    return [*sorted(set(others).difference(last)), *last]


def last_of_each(keys: pa.Array, decide: Callable[[Rows, Rows], Signs]) -> Rows:
    """Return the numbers of the rows that are the last of their key, in ascending order.

    ``decide`` compares rows, given by number. Each round compares neighbours, so the rounds are few for any input.
    """
    codes = pc.dictionary_encode(keys).indices.to_numpy(zero_copy_only=False)
    left = np.argsort(codes, kind="stable")
    while True:
        of = codes[left]
        starts = np.flatnonzero(np.r_[True, of[1:] != of[:-1]]) if len(of) else np.array([], np.int64)
        if len(starts) == len(left):
            return np.sort(left).astype(np.int64)
        place = np.arange(len(left)) - np.repeat(starts, np.diff(np.r_[starts, len(left)]))
        firsts = np.flatnonzero((place[:-1] % 2 == 0) & (of[:-1] == of[1:]))
        signs = decide(left[firsts], left[firsts + 1])
        losers = np.where(signs < 0, firsts, firsts + 1)
        left = np.delete(left, losers)


def _text(column: pa.Array) -> pa.Array:
    for fits, number in _NUMBERS:
        if fits(column.type):
            column = column.cast(number)
    return column.cast(pa.large_string())


def _compared(one: pa.Array, other: pa.Array) -> Signs:
    if types.is_nested(one.type):
        one, other = _texts(one), _texts(other)
    if types.is_boolean(one.type):
        one, other = one.cast(pa.int8()), other.cast(pa.int8())
    found = _flags(pc.greater(one, other)).astype(np.int8) - _flags(pc.less(one, other)).astype(np.int8)
    if types.is_floating(one.type):
        found += _flags(pc.is_nan(one)).astype(np.int8) - _flags(pc.is_nan(other)).astype(np.int8)
    nulls = _flags(other.is_null()).astype(np.int8) - _flags(one.is_null()).astype(np.int8)
    is_null = _flags(one.is_null()) | _flags(other.is_null())
    signs: Signs = np.where(is_null, nulls, found).astype(np.int8)
    return signs


def _flags(values: pa.Array) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    flags: np.ndarray[Any, np.dtype[np.bool_]] = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return flags


def _texts(column: pa.Array) -> pa.Array:
    values = column.cast(_python_type(column.type)).to_pylist()
    return pa.array([None if value is None else _canonical(value) for value in values], pa.large_string())


def _python_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Python has all values: not dates outside the years 1 to 9999, nor strings that are no
    UTF-8. Numbers and bytes take their place.
    """
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _python_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_python_type(kind.key_type), _python_type(kind.item_type))
    if types.is_large_list(kind):
        return pa.large_list(_python_type(kind.value_type))
    if types.is_list(kind):
        return pa.list_(_python_type(kind.value_type))
    if types.is_date32(kind):
        return pa.int32()
    if types.is_timestamp(kind):
        return pa.int64()
    return pa.large_binary() if types.is_string(kind) or types.is_large_string(kind) else kind


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=repr, separators=(",", ":"))
