"""Turn the positions of Avro values in a buffer into Arrow arrays, a whole column at a time.

A position is where a value begins. The scan (see avro_decoder.py) has found them in order and checked that each value
ends within the buffer, which has `PADDING` on both sides.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view

from penstock.pipeline.spark.source.avro_schema import DIGITS_WIDEST, AvroType, logical_type
from penstock.pipeline.spark.source.blocks import Flags, Positions

Bytes = npt.NDArray[np.uint8]
Leaf = Callable[[Bytes, Positions], pa.Array]

PADDING = bytes(32)
VARINT_BYTES_MAX = 10
_DECIMAL_BYTES = 32  # of Arrow's widest decimal
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_UUID_PLACES = [place for place in range(36) if place not in (8, 13, 18, 23)]
_INT = np.iinfo(np.int32)


class Damage(Exception):
    """The bytes are not what the schema says."""


def leaf_of(found: AvroType) -> Leaf:
    """Return the function that makes the array of a type without others inside it."""
    if found.logical == "decimal":
        return lambda data, at: _decimals(data, *_extents(data, at, found), found.scale)
    match found.kind:
        case "boolean":
            return _booleans
        case "int" | "long":
            kind = logical_type(found)
            return lambda data, at: _integers(data, at, narrow=found.kind == "int", kind=kind)
        case "float" | "double":
            return lambda data, at: _reals(data, at, found.kind)
        case "enum":
            return lambda data, at: _symbols(data, at, found.symbols)
        case "fixed" if found.logical == "uuid":
            return _uuids
        case "fixed" if found.logical == "duration":
            return _durations
        case "string":
            return lambda data, at: _texts(data, *_extents(data, at, found), pa.string())
        case _:
            return lambda data, at: _texts(data, *_extents(data, at, found), pa.binary())


def spread(values: pa.Array, is_there: Flags) -> pa.Array:
    """Return the values with nulls where none is there."""
    if is_there.all():
        return values
    return values.take(pa.array(np.cumsum(is_there) - 1, mask=~is_there))


def _varints(data: Bytes, at: Positions) -> tuple[npt.NDArray[np.uint64], Positions]:
    """Return the numbers that begin at the positions, and where each ends."""
    first = data[at]
    numbers = (first & 0x7F).astype(np.uint64)
    ends = at + 1
    longer = np.flatnonzero(first > 0x7F)
    shift = 7
    while len(longer):
        byte = data[ends[longer]]
        if shift == 63 and (byte > 1).any():
            raise Damage("a number of more than 64 bits")
        numbers[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        ends[longer] += 1
        longer = longer[byte > 0x7F]
        shift += 7
    return numbers, ends


def _signed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    return (numbers >> np.uint64(1)).view(np.int64) ^ -(numbers & np.uint64(1)).view(np.int64)


def _windows(data: Bytes, at: Positions, size_bytes: int) -> Bytes:
    """Return a row of bytes for each position."""
    if not len(at):
        return np.empty((0, size_bytes), dtype=np.uint8)
    found: Bytes = sliding_window_view(data, size_bytes)[at]
    return found


def _booleans(data: Bytes, at: Positions) -> pa.Array:
    bytes_ = data[at]
    if (bytes_ > 1).any():
        raise Damage("a boolean that is neither 0 nor 1")
    return pa.array(bytes_.astype(np.bool_))


def _integers(data: Bytes, at: Positions, *, narrow: bool, kind: pa.DataType | None) -> pa.Array:
    values = _signed(_varints(data, at)[0])
    if not narrow:
        found = pa.array(values)
    elif len(values) and (values.min() < _INT.min or values.max() > _INT.max):
        raise Damage("an int of more than 32 bits")
    else:
        found = pa.array(values.astype(np.int32))
    return found if kind is None else found.view(kind)


def _reals(data: Bytes, at: Positions, name: str) -> pa.Array:
    kind = np.dtype("<f4" if name == "float" else "<f8")
    return pa.array(_windows(data, at, kind.itemsize).view(kind).ravel())


def _symbols(data: Bytes, at: Positions, symbols: tuple[str, ...]) -> pa.Array:
    places = _signed(_varints(data, at)[0])
    if len(places) and (places.min() < 0 or places.max() >= len(symbols)):
        raise Damage("a place beyond the symbols of an enum")
    return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), pa.array(symbols, pa.string()))


def _extents(data: Bytes, at: Positions, found: AvroType) -> tuple[Positions, Positions]:
    """Return where the contents of texts begin and end."""
    if found.kind == "fixed":
        return at, at + found.size_bytes
    numbers, starts = _varints(data, at)
    return starts, starts + _signed(numbers)


def _texts(data: Bytes, starts: Positions, ends: Positions, kind: pa.DataType) -> pa.Array:
    """Return the texts, copied by Arrow: every other one of an array in which they alternate with the gaps."""
    edges = np.empty(2 * len(starts) + 1, dtype=np.int32)
    edges[:-1:2], edges[1::2] = starts, ends
    edges[-1] = edges[-2] if len(starts) else 0
    whole = pa.Array.from_buffers(kind, 2 * len(starts), [None, pa.py_buffer(edges), pa.py_buffer(data)])
    return whole.take(pa.array(np.arange(0, 2 * len(starts), 2)))


def _decimals(data: Bytes, starts: Positions, ends: Positions, scale: int) -> pa.Array:
    lengths = ends - starts
    if len(lengths) and lengths.max() > _DECIMAL_BYTES:
        raise Damage(f"a decimal of {lengths.max()} bytes")
    is_negative = (lengths > 0) & (data[starts] > 0x7F)
    digits = _windows(data, ends - _DECIMAL_BYTES, _DECIMAL_BYTES)
    is_before = np.arange(_DECIMAL_BYTES) < (_DECIMAL_BYTES - lengths)[:, None]
    digits = np.where(is_before, np.where(is_negative, 0xFF, 0).astype(np.uint8)[:, None], digits)
    numbers = np.ascontiguousarray(digits[:, ::-1])
    kind = pa.decimal256(DIGITS_WIDEST, scale)  # the declared type checks the digits
    return pa.Array.from_buffers(kind, len(starts), [None, pa.py_buffer(numbers)])


def _uuids(data: Bytes, at: Positions) -> pa.Array:
    digits = _windows(data, at, 16)
    text = np.full((len(at), 36), ord("-"), dtype=np.uint8)
    text[:, _UUID_PLACES] = np.stack((_HEX[digits >> 4], _HEX[digits & 15]), axis=2).reshape(len(at), 32)
    edges = np.arange(0, 36 * len(at) + 1, 36, dtype=np.int32)
    return pa.StringArray.from_buffers(len(at), pa.py_buffer(edges), pa.py_buffer(text))


def _durations(data: Bytes, at: Positions) -> pa.Array:
    """Return durations of months, days and milliseconds as ISO 8601 writes them."""
    parts = _windows(data, at, 12).view("<u4").tolist()
    return pa.array([f"P{months}M{days}DT{ms // 1000}.{ms % 1000:03}S" for months, days, ms in parts], pa.string())
