"""Fit typed rows, such as those of Parquet, to the declared columns, value by value.

====================  =============================================================================================
declared type         values that fit
====================  =============================================================================================
integers              whole numbers of any number type, within the type's range
float, double         any number; one beyond the type's range does not fit, NaN and infinity do
decimal(p, s)         a number, or one in a string, that p digits, s of them after the point, hold exactly
boolean               booleans
string                strings, and any other value as text: lists and structs as JSON, bytes if they are UTF-8
binary                bytes, and strings as UTF-8
timestamp             timestamps (finer than a microsecond: cut), dates, and strings as in JSON lines (see
                      jsonl_lines.py); a time without a zone is UTC. timestamp_ntz takes the same
date                  dates, and strings such as "2024-05-06"
array, struct, map    the same kind of value, by these same rules; a struct's fields by name
====================  =============================================================================================

Names are compared as Spark compares them: without case, unless a name fits exactly. A row with a value that does not
fit is a bad row. Arrow converts whole columns; only a column that it refuses is narrowed down to the values at fault.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.spark.source.blocks import Flags, to_moments
from penstock.pipeline.spark.source.column_types import is_list, is_number
from penstock.pipeline.spark.source.ddl import TIMESTAMP_NTZ
from penstock.pipeline.spark.source.explain import Misfit, field_step, item_step, key_step, not_of_type, not_utf8
from penstock.pipeline.spark.source.spellings import decimal_check

_DIGITS_MAX = 38
_DIGITS_WIDEST = 76
_DIGITS_TRUSTED = 19  # behind the point
_NARROWING = 8  # parts into which a refused column is cut
_JUDGED_ALONE_MAX = 8  # values; fewer are tried one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A column of the declared type. ``refused`` flags the values that did not fit and are null; None: all fit."""

    values: pa.Array
    refused: Flags | None = None


def places_of(wanted: Sequence[str], names: Sequence[str]) -> list[int | None]:
    """Return the position of each wanted name: spelled so, else differing only in case; None if missing."""
    exact: dict[str, int] = {}
    folded: dict[str, int] = {}
    for place, name in enumerate(names):
        exact.setdefault(name, place)
        folded.setdefault(name.lower(), place)
    return [exact.get(name, folded.get(name.lower())) for name in wanted]


def fit(values: pa.Array, kind: pa.DataType) -> Fitted:
    """Convert values to the type. Those that do not fit become null and are flagged."""
    if values.type != kind:
        values = _plain(values)
    if values.type == kind and not _holds_text(kind):
        return Fitted(values=values)
    if pa.types.is_list(kind):
        return _fit_list(values, kind)
    if pa.types.is_map(kind):
        return _fit_map(values, kind)
    if pa.types.is_struct(kind):
        return _fit_struct(values, kind)
    convert = _conversion(values.type, kind)
    if convert is None:
        return _none_fits(values, kind)
    return _narrowed(values, kind, convert)


def as_json(value: Any) -> str:
    """Return a value as JSON text for a person or a string column; what JSON lacks (bytes, times) as text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_as_text)


def _as_text(value: Any) -> str:
    return value.decode("utf-8", errors="backslashreplace") if isinstance(value, bytes) else str(value)


def misfit_of(values: pa.Array, kind: pa.DataType) -> Misfit:
    """Return the fault of a value that does not fit, which is the only one in the array: of its first part at fault."""
    values = _plain(values)
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        return _misfit_of_struct(values, kind)
    if pa.types.is_list(kind) and pa.types.is_list(values.type):
        items = _contents(values)[1]
        index = _first_refused(items, kind.value_type)
        return misfit_of(items.slice(index, 1), kind.value_type).within(item_step(index))
    if pa.types.is_map(kind) and pa.types.is_map(values.type):
        return _misfit_of_map(_contents(values)[1], kind)
    found = as_json(as_python(values[0]))
    return not_utf8(found) if pa.types.is_string(kind) else not_of_type(found, kind)


def _misfit_of_struct(values: pa.Array, kind: pa.DataType) -> Misfit:
    places = places_of([field.name for field in kind], [field.name for field in values.type])
    for field, place in zip(kind, places, strict=True):
        inner = None if place is None else values.field(place)
        if inner is not None and fit(inner, field.type).refused is not None:
            return misfit_of(inner, field.type).within(field_step(field.name))
    return not_of_type(as_json(as_python(values[0])), kind)


def _misfit_of_map(entries: pa.Array, kind: pa.DataType) -> Misfit:
    keys, items = entries.field(0), entries.field(1)
    if fit(keys, kind.key_type).refused is not None:
        return misfit_of(keys.slice(_first_refused(keys, kind.key_type), 1), kind.key_type)
    index = _first_refused(items, kind.item_type)
    return misfit_of(items.slice(index, 1), kind.item_type).within(key_step(str(as_python(keys[index]))))


def _first_refused(values: pa.Array, kind: pa.DataType) -> int:
    refused = fit(values, kind).refused
    return 0 if refused is None else int(np.argmax(refused))


def as_python(value: pa.Scalar) -> Any:
    """Return the value for `as_json`, whatever a damaged object holds."""
    kind = value.type
    try:
        return value.as_py()
    except UnicodeDecodeError:
        if not pa.types.is_nested(kind):
            return value.cast(pa.binary()).as_py() if pa.types.is_string(kind) else "not UTF-8"
    except (ValueError, OverflowError, KeyError):  # a time or a zone that Python lacks, or a name given twice
        pass
    if pa.types.is_struct(kind):
        return [[kind.field(index).name, as_python(value[index])] for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [[as_python(entry[0]), as_python(entry[1])] for entry in value.values]
    if pa.types.is_nested(kind):
        return [as_python(item) for item in value.values]
    if pa.types.is_timestamp(kind):
        value = value.cast(pa.timestamp(kind.unit))
    try:
        return value.cast(pa.string()).as_py()
    except pa.ArrowException:
        return str(value.value)


def _plain(values: pa.Array) -> pa.Array:
    """Return the values in Arrow's plain layout of their type: no dictionaries, views, large or fixed-size lists."""
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return _plain(values.storage)
    if pa.types.is_dictionary(kind):
        return _plain(values.dictionary_decode())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return values.cast(pa.string())
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return values.cast(pa.binary())
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return values.cast(pa.list_(kind.value_field))
    if is_list(kind) and not pa.types.is_list(kind):
        return _list_of_views(values)
    return values


def _list_of_views(values: pa.Array) -> pa.Array:
    """Return a list view as a list; Arrow's cast returns invalid arrays for slices and nulls (measured)."""
    sizes = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    kind = pa.list_(values.type.value_field)
    return pa.ListArray.from_arrays(pa.array(offsets), values.flatten(), type=kind, mask=values.is_null())


Convert = Callable[[pa.Array], pa.Array]


def _conversion(found: pa.DataType, kind: pa.DataType) -> Convert | None:
    """Return the function that converts an array, or raises `ArrowInvalid`; None if no value of the type fits."""
    types = pa.types
    if types.is_null(found):
        return lambda values: values.cast(kind)
    if types.is_string(kind):
        return _to_text
    if types.is_binary(kind):
        return (lambda values: values.cast(kind)) if types.is_string(found) or types.is_binary(found) else None
    number = is_number(found)
    if types.is_integer(kind):
        return (lambda values: _whole(values, kind)) if number else None
    if types.is_floating(kind):
        return (lambda values: _real(values, kind)) if number else None
    if types.is_decimal(kind):
        return (lambda values: _decimal(values, kind)) if number or types.is_string(found) else None
    if types.is_timestamp(kind):
        return _moment_conversion(found, kind)
    if types.is_date(kind):
        return (lambda values: values.cast(kind)) if types.is_date(found) or types.is_string(found) else None
    return None


def _whole(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values.cast(kind, safe=True)


def _real(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast to a float; whole numbers may be rounded, as in JSON lines. Raises `ArrowInvalid` for an overflow."""
    cast = values.cast(kind, safe=False)
    infinite = pc.is_inf(cast)
    if pa.types.is_floating(values.type):
        infinite = pc.and_(infinite, pc.invert(pc.is_inf(values)))
    if pc.any(infinite).as_py():
        raise pa.ArrowInvalid("a number too large for its type")
    return cast


def _decimal(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(values.type):
        values = values.cast(pa.string())  # the shortest text that is this number, instead of its binary expansion
    if pa.types.is_string(values.type):
        return _decimal_of_text(values, kind)
    found = pa.decimal256(_DIGITS_WIDEST, values.type.scale if pa.types.is_decimal(values.type) else 0)
    values = values.cast(found)
    cast = values.cast(kind, safe=True)
    cast.validate(full=True)
    if not cast.cast(found).equals(values):  # Arrow does not notice if a larger scale overflows: measured
        raise pa.ArrowInvalid("a number too large for its type")
    return cast


def _decimal_of_text(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast texts to decimals. Those that Arrow may turn into another number are checked alone, see `DecimalGuard`."""
    behind = max(_DIGITS_TRUSTED, kind.scale)
    trusted = pc.match_substring_regex(values, rf"^[+-]?0*[0-9]{{0,{_DIGITS_MAX - behind}}}(\.[0-9]{{0,{behind}}})?$")
    fits = decimal_check(kind.precision, kind.scale)
    if not all(fits(text) for text in values.filter(pc.invert(trusted)).unique().to_pylist() if text is not None):
        raise pa.ArrowInvalid("a number that the type does not hold exactly")
    cast = values.cast(kind, safe=True)
    cast.validate(full=True)
    return cast


def _moment_conversion(found: pa.DataType, kind: pa.DataType) -> Convert | None:
    if pa.types.is_string(found):
        return lambda values: to_moments(values, kind)
    if pa.types.is_date(found):
        return lambda values: values.cast(TIMESTAMP_NTZ).cast(kind)
    if not pa.types.is_timestamp(found):
        return None
    return lambda values: _microseconds(values).cast(kind)


def _microseconds(values: pa.Array) -> pa.Array:
    """Return timestamps in microseconds; finer ones are cut. Raises `ArrowInvalid` for one out of range."""
    kind = pa.timestamp("us", tz=values.type.tz)
    if values.type.unit != "ns":
        return values.cast(kind, safe=True)
    # without the zone, in whose local time some moments are ambiguous
    plain = values.cast(pa.timestamp("ns"))
    return pc.floor_temporal(plain, unit="microsecond").cast(pa.timestamp("us"), safe=True).cast(kind)


def _holds_text(kind: pa.DataType) -> bool:
    """Return True if the type contains strings, which Arrow's readers do not check."""
    if pa.types.is_nested(kind):
        return any(_holds_text(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_string(kind))


def _to_text(values: pa.Array) -> pa.Array:
    if pa.types.is_string(values.type):
        values.validate()  # raises `ArrowInvalid` if a buffer is too short
        if not _is_ascii(values):
            values.validate(full=True)  # raises it for text that is not UTF-8
        return values
    if pa.types.is_nested(values.type):
        return pa.array([None if value is None else as_json(value) for value in _pythons(values)], pa.string())
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        if not pa.types.is_timestamp(values.type) or values.type.tz is None:
            raise
        return values.cast(pa.timestamp(values.type.unit, tz="UTC")).cast(pa.string())  # the zone is unknown


def _is_ascii(texts: pa.StringArray) -> bool:
    """Return True if all bytes of the texts are ASCII and their offsets are valid.

    The bytes are read as one run, in a twentieth of the time that a check text by text takes (measured).
    """
    _, offset_bytes, data = texts.buffers()
    if not len(texts) or data is None:
        return False
    offsets = np.frombuffer(offset_bytes, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    if not 0 <= first <= last <= data.size or (offsets[1:] < offsets[:-1]).any():
        return False
    return bool(np.frombuffer(data, np.int8)[first:last].min(initial=0) >= 0)


def _pythons(values: pa.Array) -> list[Any]:
    """Return the values for `as_json`. Raises `ArrowInvalid` or `UnicodeDecodeError` for text that is not UTF-8."""
    try:
        found: list[Any] = values.to_pylist()
        return found
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError, KeyError):
        values.validate(full=True)
        return [as_python(value) for value in values]


def _narrowed(values: pa.Array, kind: pa.DataType, convert: Convert) -> Fitted:
    """Convert the values; find those that Arrow refuses by cutting the column into ever smaller parts."""
    try:
        return Fitted(values=convert(values))
    except (pa.ArrowInvalid, UnicodeDecodeError):
        pass
    count = len(values)
    if count == 1:
        return _none_fits(values, kind)
    step = 1 if count <= _JUDGED_ALONE_MAX else -(-count // _NARROWING)
    parts = [_narrowed(values.slice(start, step), kind, convert) for start in range(0, count, step)]
    refused = [np.zeros(len(part.values), np.bool_) if part.refused is None else part.refused for part in parts]
    return Fitted(values=pa.concat_arrays([part.values for part in parts]), refused=np.concatenate(refused))


def _none_fits(values: pa.Array, kind: pa.DataType) -> Fitted:
    """Refuse every value that is not null."""
    refused: Flags = values.is_valid().to_numpy(zero_copy_only=False)
    return Fitted(values=pa.nulls(len(values), kind), refused=refused if refused.any() else None)


def _fit_list(values: pa.Array, kind: pa.DataType) -> Fitted:
    if not pa.types.is_list(values.type):
        return _none_fits(values, kind)
    offsets, items = _contents(values)
    fitted = fit(items, kind.value_type)
    lists = pa.ListArray.from_arrays(pa.array(offsets), fitted.values, type=kind, mask=values.is_null())
    return Fitted(values=lists, refused=_refused_parents(fitted.refused, offsets, values))


def _fit_map(values: pa.Array, kind: pa.DataType) -> Fitted:
    if not pa.types.is_map(values.type):
        return _none_fits(values, kind)
    offsets, entries = _contents(values)
    keys, items = fit(entries.field(0), kind.key_type), fit(entries.field(1), kind.item_type)
    refused = _either(keys.refused, items.refused)
    parents = _refused_parents(refused, offsets, values)
    if keys.refused is not None and parents is not None:  # a map cannot hold null as a key, even in a refused row
        return _without(values, parents, kind)
    maps = pa.MapArray.from_arrays(pa.array(offsets), keys.values, items.values, type=kind, mask=values.is_null())
    return Fitted(values=maps, refused=parents)


def _without(maps: pa.Array, refused: Flags, kind: pa.DataType) -> Fitted:
    """Fit the maps that are not refused; the others become null."""
    kept = np.flatnonzero(~refused)
    places = np.zeros(len(maps), dtype=np.int64)
    places[kept] = np.arange(len(kept))
    fitted = _fit_map(maps.take(pa.array(kept)), kind)
    return Fitted(values=fitted.values.take(pa.array(places, mask=refused)), refused=refused)


def _fit_struct(values: pa.Array, kind: pa.DataType) -> Fitted:
    if not pa.types.is_struct(values.type):
        return _none_fits(values, kind)
    names = [values.type.field(index).name for index in range(values.type.num_fields)]
    inner, refused = [], None
    places = places_of([field.name for field in kind], names)
    for field, place in zip(kind, places, strict=True):
        if place is None:
            inner.append(pa.nulls(len(values), field.type))
            continue
        fitted = fit(values.field(place), field.type)
        inner.append(fitted.values)
        refused = _either(refused, fitted.refused)
    if refused is not None:
        refused = refused & values.is_valid().to_numpy(zero_copy_only=False)
    structs = pa.StructArray.from_arrays(inner, fields=list(kind), mask=values.is_null())
    return Fitted(values=structs, refused=refused if refused is not None and refused.any() else None)


def _contents(values: pa.Array) -> tuple[Any, pa.Array]:
    """Return the offsets of lists or maps, from 0, and the items or entries they refer to."""
    offsets = values.offsets.to_numpy()
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    return offsets - first, values.values.slice(first, last - first)


def _refused_parents(refused: Flags | None, offsets: Any, values: pa.Array) -> Flags | None:
    """Return a flag per list or map, set if one of its items was refused."""
    if refused is None:
        return None
    parents = np.zeros(len(values), dtype=np.bool_)
    parents[np.searchsorted(offsets, np.flatnonzero(refused), side="right") - 1] = True
    parents &= values.is_valid().to_numpy(zero_copy_only=False)
    return parents if parents.any() else None


def _either(one: Flags | None, other: Flags | None) -> Flags | None:
    if one is None or other is None:
        return other if one is None else one
    return one | other
