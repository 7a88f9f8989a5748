"""Compute the values of partition transforms, as text, for many rows at once.

The values are those of the Iceberg specification. Their texts are the ones that Iceberg's writers use in folder names,
such as ``2024-01-31-05`` for an hour, so that no digit or character is lost; only binary values are written as
hexadecimal digits. Hashes and texts are computed once per distinct value of a batch.
"""

from decimal import Context
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from penstock.errors import TableError
from penstock.sinks.partitions import (
    BUCKET,
    DAY,
    HOUR,
    MONTH,
    NULL_PARTITION,
    TIMES,
    TRUNCATE,
    YEAR,
    PartitionField,
)
from penstock.sinks.schema import type_name

_UNITS = {YEAR: "Y", MONTH: "M", DAY: "D", HOUR: "h"}  # of NumPy's times
_EMPTY = "%"  # an empty text in a folder's name, where Hive and Spark write null for it
_DECIMAL_BYTES = 16
_EXACT = Context(prec=76)  # digits
_MICROSECONDS = {"h": 3_600_000_000, "D": 86_400_000_000}


def check_type(field: PartitionField, type_: pa.DataType) -> None:
    """Raise `TableError` if a transform does not take columns of this canonical type."""
    transform = field.transform
    is_time = types.is_timestamp(type_) or (types.is_date(type_) and transform != HOUR)
    is_whole = types.is_integer(type_) or types.is_decimal(type_)
    is_text = types.is_string(type_) or types.is_binary(type_)
    if transform in TIMES:
        fits, wanted = is_time, "a timestamp" if transform == HOUR else "a date or timestamp"
    elif transform == TRUNCATE:
        fits, wanted = is_whole or is_text, "a whole number, decimal, string or binary"
    else:
        fits = is_whole or is_text or types.is_timestamp(type_) or types.is_date(type_)
        wanted = "a whole number, decimal, date, timestamp, string or binary"
    if not fits:
        raise TableError(
            f"The column {field.source} is {type_name(type_)}, which cannot be partitioned by {field}; make "
            f"{wanted} of it in the transform."
        )


def texts(field: PartitionField, values: pa.Array) -> pa.Array:
    """Return the text of each row's value; null for null.

    Raises `TableError` if a truncated number is too small for the column's type.
    """
    encoded = (_ordinals(values, field) if field.transform in TIMES else values).dictionary_encode()
    distinct = encoded.dictionary
    if field.transform in TIMES:
        found = _time_texts(distinct, field)
    elif field.transform == BUCKET:
        assert field.argument is not None
        hashed = hashes(distinct) & np.uint32(0x7FFFFFFF)
        found = pa.array((hashed % np.uint32(field.argument)).astype(np.int64)).cast(pa.string())
    else:
        found = _truncated(distinct, field)
    return found.take(encoded.indices)


def folder_texts(texts: pa.Array) -> pa.Array:
    """Return texts that survive as folder names: `folder_value` is the reverse. Null stays null."""
    found = texts
    for character in ("%", "\0"):
        found = pc.replace_substring(found, character, f"%{ord(character):02X}")
    found = pc.if_else(pc.equal(found, ""), _EMPTY, found)
    return pc.if_else(pc.equal(found, NULL_PARTITION), f"%{ord('_'):02X}{NULL_PARTITION[1:]}", found)


def folder_value(name: str) -> str:
    """Return the text of a value from the name that `folder_texts` made of it."""
    return "" if name == _EMPTY else name.replace("%00", "\0").replace("%5F", "_").replace("%25", "%")


def ordinal(text: str, transform: str) -> int:
    """Return the number of years, months, days or hours since 1970 of a text."""
    if transform == HOUR:
        day, _, hour = text.rpartition("-")
        text = f"{day}T{hour}"
    return int(np.array([text], f"datetime64[{_UNITS[transform]}]").astype(np.int64)[0])


def ordinal_text(number: int, transform: str) -> str:
    """Return the text of a number of years, months, days or hours since 1970."""
    times = np.array([number], np.int64).astype(f"datetime64[{_UNITS[transform]}]")
    return str(np.datetime_as_string(times)[0]).replace("T", "-")


def hashes(values: pa.Array) -> NDArray[np.uint32]:
    """Return the 32-bit hash of each value, as Iceberg's buckets need it; values are not null."""
    kind = values.type
    if types.is_decimal(kind):
        data, starts, lengths = _decimal_bytes(values)
    elif types.is_string(kind) or types.is_binary(kind):
        data, starts, lengths = _text_bytes(values)
    else:
        numbers = _numbers(values)
        data = numbers.astype("<i8").view(np.uint8)
        starts = np.arange(len(numbers), dtype=np.int64) * 8
        lengths = np.full(len(numbers), 8, dtype=np.int64)
    return murmur3(data, starts, lengths)


def murmur3(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the Murmur3 hash (x86, 32 bits, seed 0) of each range of bytes."""
    state = np.zeros(len(starts), dtype=np.uint32)
    blocks = lengths // 4
    rows = np.argsort(-blocks, kind="stable")  # those with most blocks first: each step takes a prefix
    counts = np.searchsorted(-blocks[rows], -np.arange(1, int(blocks.max(initial=0)) + 1), side="right")
    for number, count in enumerate(counts.tolist()):
        some = rows[:count]
        mixed = state[some] ^ _scrambled(_word(data, starts[some] + 4 * number, 4))
        state[some] = _rotated(mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    for size in (1, 2, 3):
        some = np.flatnonzero(lengths % 4 == size)
        state[some] ^= _scrambled(_word(data, starts[some] + 4 * blocks[some], size))
    state ^= lengths.astype(np.uint32)
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return state ^ (state >> np.uint32(16))


def _word(data: NDArray[np.uint8], places: NDArray[np.int64], size: int) -> NDArray[np.uint32]:
    word = np.zeros(len(places), dtype=np.uint32)
    for byte in range(size):
        word |= data[places + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word


def _scrambled(word: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return _rotated(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotated(word: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def _text_bytes(values: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    wide = values.cast(pa.large_binary())
    _, offsets, data = wide.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[wide.offset : wide.offset + len(wide) + 1]
    found = np.zeros(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return found, bounds[:-1], np.diff(bounds)


def _decimal_bytes(values: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Return the unscaled numbers, each in as few bytes as its two's complement needs, the highest first."""
    wide = values.cast(pa.decimal128(values.type.precision, values.type.scale))
    stored = np.frombuffer(wide.buffers()[1], dtype=np.uint8).reshape(-1, _DECIMAL_BYTES)
    data = stored[wide.offset : wide.offset + len(wide), ::-1]
    sign = np.where(data[:, :1] >= 0x80, 0xFF, 0)
    same = data == sign  # bytes that only repeat the sign, as long as the next one has that sign too
    redundant = same[:, :-1] & ((data[:, 1:] >= 0x80) == (sign == 0xFF))
    skipped = np.cumprod(redundant, axis=1).sum(axis=1).astype(np.int64)
    starts = np.arange(len(data), dtype=np.int64) * _DECIMAL_BYTES + skipped
    return np.ascontiguousarray(data).reshape(-1), starts, _DECIMAL_BYTES - skipped


def _numbers(values: pa.Array) -> NDArray[np.int64]:
    """Return whole numbers, days since 1970, or microseconds since 1970."""
    if types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", tz=values.type.tz))
    elif types.is_date(values.type):
        values = values.cast(pa.date32()).cast(pa.int32())
    found: NDArray[np.int64] = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def _ordinals(values: pa.Array, field: PartitionField) -> pa.Array:
    """Return the number of years, months, days or hours since 1970 of each row."""
    assert field.transform is not None
    numbers, unit = _numbers(pc.fill_null(values, pa.scalar(0, values.type))), "D"
    if not types.is_date(values.type):
        unit = "h" if field.transform == HOUR else "D"
        numbers = numbers // _MICROSECONDS[unit]  # not by NumPy's times, which overflow for the first ones
    found = numbers.astype(f"datetime64[{unit}]").astype(f"datetime64[{_UNITS[field.transform]}]").astype(np.int64)
    return pc.if_else(values.is_valid(), pa.array(found), None)


def _time_texts(ordinals: pa.Array, field: PartitionField) -> pa.Array:
    assert field.transform is not None
    times = ordinals.to_numpy(zero_copy_only=False).astype(f"datetime64[{_UNITS[field.transform]}]")
    found = pa.array(np.datetime_as_string(times).tolist(), pa.string())
    return pc.replace_substring(found, "T", "-") if field.transform == HOUR else found


def _truncated(values: pa.Array, field: PartitionField) -> pa.Array:
    width, kind = field.argument, values.type
    assert width is not None
    if types.is_string(kind) or types.is_large_string(kind):
        return pc.utf8_slice_codeunits(values, 0, width).cast(pa.string())
    if types.is_binary(kind) or types.is_large_binary(kind):
        return pa.array([value[:width].hex() for value in values.to_pylist()], pa.string())
    if types.is_decimal(kind):
        return pa.array([_truncated_decimal(value, field, kind) for value in values.to_pylist()], pa.string())
    numbers = _numbers(values)
    found = numbers - numbers % width
    least = -(1 << 63) if types.is_int64(kind) else -(1 << 31)  # Iceberg has no shorter type than int
    if (wrong := numbers[(found > numbers) | (found < least)]).size:
        raise _too_small(field, wrong[0], kind)
    return pa.array(found).cast(pa.string())


def _truncated_decimal(value: Any, field: PartitionField, kind: pa.DataType) -> str:
    assert field.argument is not None
    unscaled = int(value.scaleb(kind.scale, _EXACT))
    found = unscaled - unscaled % field.argument
    if found <= -(10**kind.precision):
        raise _too_small(field, value, kind)
    return decimal_text(found, kind.scale)


def decimal_text(unscaled: int, scale: int) -> str:
    """Return a decimal with all digits of its scale."""
    digits = f"{abs(unscaled):0{scale + 1}d}"
    sign = "-" if unscaled < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else f"{sign}{digits}"


def _too_small(field: PartitionField, value: Any, kind: pa.DataType) -> TableError:
    return TableError(
        f"The value {value} of the column {field.source} is too small to be partitioned by {field}: truncated, it "
        f"is no {type_name(kind)}; make a wider type of the column in the transform, or partition otherwise."
    )
