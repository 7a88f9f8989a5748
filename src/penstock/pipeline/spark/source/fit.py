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
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ObjectUnreadable
from penstock.pipeline.spark.source.blocks import BadLine, Decoded, Flags, UnknownRows, to_moments
from penstock.pipeline.spark.source.ddl import DEPTH_MAX, RESCUED, TIMESTAMP, TIMESTAMP_NTZ, may_be_column, parse_ddl
from penstock.pipeline.spark.source.exact_json import exact_json
from penstock.pipeline.spark.source.explain import (
    Misfit,
    Refusal,
    field_step,
    item_step,
    key_step,
    not_of_type,
    not_utf8,
)
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.spellings import decimal_check

_DIGITS_MAX = 38
_DIGITS_WIDEST = 76
_DIGITS_TRUSTED = 19  # behind the point
_DIGITS_OF_INTEGERS = {8: 3, 16: 5, 32: 10, 64: 19}
_STORED_AS = {
    **{kind: kind for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_())},
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}
_NAMES_SHOWN = 5
_NARROWING = 8  # parts into which a refused column is cut
_JUDGED_ALONE_MAX = 8  # values; fewer are tried one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A column of the declared type. ``refused`` flags the values that did not fit and are null; None: all fit."""

    values: pa.Array
    refused: Flags | None = None


def names_read(found: Sequence[str], declared: pa.Schema, *, uri: str, all_of_them: bool = False) -> list[str]:
    """Return the names of an object's columns that are declared, as the object spells them.

    ``all_of_them``: the others follow. Raises `ObjectUnreadable` if there is none, because all rows would be made up of
    nulls, or if one is there twice.
    """
    counts = Counter(found)
    names = [found[place] for place in places_of(declared.names, found) if place is not None]
    if all_of_them:
        names = list(dict.fromkeys([*names, *found]))
    if not names:
        shown = ", ".join(repr(name) for name in found[:_NAMES_SHOWN])
        raise ObjectUnreadable(f"{uri} has no column of the schema, it has {shown[:200] or 'none at all'}")
    twice = next((name for name in names if counts[name] > 1), None)
    if twice is not None:
        raise ObjectUnreadable(f"{uri} has {counts[twice]} columns called {twice!r}: rename all but one")
    return names


class Fitter:
    """Fits the rows of objects with the columns ``found`` to the declared ones; missing ones are null.

    With ``rescues``, a row with a value that does not fit is a good one: the value is null, and in the column
    ``_rescued`` with those of columns that are not declared. ``unknown``: findings for all rows, by name.
    """

    def __init__(
        self,
        found: Sequence[str],
        declared: pa.Schema,
        *,
        unknown: Mapping[str, pa.DataType | None] | None = None,
        rescues: bool = False,
    ) -> None:
        self.names = found  # of the columns that `fit` takes
        self._declared = declared
        self._places = places_of(declared.names, found)
        self._unknown = unknown or {}
        self._rescues = rescues

    @classmethod
    def of(cls, found: pa.Schema, options: ReadOptions, *, uri: str) -> "Fitter":
        """Return the fitter of objects with these columns. Raises `ObjectUnreadable` if none of them is declared."""
        declared = parse_ddl(options.schema_ddl)
        names = names_read(found.names, declared, uri=uri, all_of_them=options.rescues)
        unknown = unknown_of(found, declared, typed=options.evolve == "add")
        return cls(names, declared, unknown=unknown, rescues=options.rescues)

    def fit(self, rows: pa.Table, first: int) -> Decoded:
        """Return the rows that fit, numbered from ``first``, and the others as bad ones."""
        decoded = self._fitted(rows, first)
        every = np.arange(decoded.rows.num_rows, dtype=np.int64)
        unknown = {name: UnknownRows(rows=every, kind=kind) for name, kind in self._unknown.items()}
        return replace(decoded, unknown=unknown)

    def _fitted(self, rows: pa.Table, first: int) -> Decoded:
        count = rows.num_rows
        columns: list[pa.Array] = []
        misfits: dict[int, Refusal] = {}  # by row; for the first column that does not fit
        rescued = _Rescued(rows) if self._rescues else None
        for field, place in zip(self._declared, self._places, strict=True):
            if place is None:
                columns.append(pa.nulls(count, field.type))
                continue
            values = rows.column(place).combine_chunks()
            fitted = fit(values, field.type)
            columns.append(fitted.values)
            refused = [] if fitted.refused is None else np.flatnonzero(fitted.refused).tolist()
            if rescued is not None and not pa.types.is_string(field.type):
                rescued.add(place, refused)
                refused = []
            for row in refused:
                if row not in misfits:
                    misfit = _misfit(values.slice(row, 1), field.type)
                    misfits[row] = misfit.within(field_step(field.name)).refusal
            if rescued is not None and any(name.startswith(f"{rows.column_names[place]}.") for name in self._unknown):
                rescued.add(place, np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False)).tolist())
        table = pa.Table.from_arrays(columns, schema=self._declared)
        if rescued is not None:
            table = table.append_column(RESCUED, rescued.texts({place for place in self._places if place is not None}))
        numbers = np.arange(first, first + count, dtype=np.int64)
        if not misfits:
            return Decoded(rows=table, starts=numbers, bad=())
        kept = np.ones(count, dtype=np.bool_)
        kept[list(misfits)] = False
        return Decoded(
            rows=table.filter(pa.array(kept)),
            starts=numbers[kept],
            bad=tuple(
                BadLine(
                    start=first + row,
                    raw=as_json({name: _python(rows.column(name)[row]) for name in rows.column_names}).encode(),
                    reason=misfits[row][0],
                    detail=misfits[row][1],
                )
                for row in sorted(misfits)
            ),
        )


class _Rescued:
    """The values of some rows that no column takes."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._values: dict[int, dict[str, Any]] = {}  # by row

    def add(self, place: int, rows: Iterable[int]) -> None:
        """Add the values of one column in these rows."""
        name, column = self._rows.column_names[place], self._rows.column(place)
        for row in rows:
            self._values.setdefault(row, {})[name] = _python(column[row])

    def texts(self, taken: Collection[int]) -> pa.Array:
        """Return the column, with the values of all columns other than those at these places."""
        for place in range(self._rows.num_columns):
            if place not in taken:
                valid = self._rows.column(place).combine_chunks().is_valid().to_numpy(zero_copy_only=False)
                self.add(place, np.flatnonzero(valid).tolist())
        texts: list[str | None] = [None] * self._rows.num_rows
        for row, values in self._values.items():
            texts[row] = exact_json(values)
        return pa.array(texts, RESCUED.type)


def unknown_of(found: pa.Schema, declared: pa.Schema, *, typed: bool) -> dict[str, pa.DataType | None]:
    """Return the columns of an object that are not declared, and the fields of structs as a.b.

    ``typed``: with the types of columns for them, which fields of structs lack.
    """
    places = places_of(declared.names, found.names)
    unknown: dict[str, pa.DataType | None] = {
        found.names[place]: storable(found.field(place).type) if typed else None
        for place in range(len(found))
        if place not in places
    }
    for field, place in zip(declared, places, strict=True):
        if place is not None:
            unknown |= dict.fromkeys(_unknown_inside(found.field(place), field.type), None)
    return unknown


def _unknown_inside(found: pa.Field, declared: pa.DataType) -> Iterator[str]:
    kind = found.type
    if _is_list(kind) and pa.types.is_list(declared):
        yield from _unknown_inside(pa.field(found.name, kind.value_type), declared.value_type)
    elif pa.types.is_map(kind) and pa.types.is_map(declared):
        yield from _unknown_inside(pa.field(found.name, kind.item_type), declared.item_type)
    elif pa.types.is_struct(kind) and pa.types.is_struct(declared):
        names = [field.name for field in kind]
        places = places_of([field.name for field in declared], names)
        yield from (f"{found.name}.{name}" for place, name in enumerate(names) if place not in places)
        for field, place in zip(declared, places, strict=True):
            if place is not None:
                yield from (f"{found.name}.{path}" for path in _unknown_inside(kind.field(place), field.type))


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


def storable(kind: pa.DataType, depth: int = 0) -> pa.DataType:
    """Return the declared type that holds all values of a type that objects may have; string if there is no other."""
    types = pa.types
    if types.is_dictionary(kind):
        return storable(kind.value_type, depth)
    if isinstance(kind, pa.BaseExtensionType):
        return storable(kind.storage_type, depth)
    if types.is_nested(kind) and depth >= DEPTH_MAX:
        return pa.string()
    if _is_list(kind):
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
        return pa.float64() if _is_number(one) and _is_number(other) else pa.string()
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


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _as_decimal(kind: pa.DataType) -> pa.DataType:
    return kind if pa.types.is_decimal(kind) else pa.decimal128(_DIGITS_OF_INTEGERS[kind.bit_width], 0)


def _wider_struct(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    fields = {field.name.lower(): field for field in one}
    for field in other:
        known = fields.get(field.name.lower())
        fields[field.name.lower()] = field if known is None else known.with_type(wider(known.type, field.type))
    return pa.struct(list(fields.values()))


def as_json(value: Any) -> str:
    """Return a value as JSON text for a person or a string column; what JSON lacks (bytes, times) as text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_as_text)


def _as_text(value: Any) -> str:
    return value.decode("utf-8", errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _misfit(values: pa.Array, kind: pa.DataType) -> Misfit:
    """Return the fault of a value that does not fit, which is the only one in the array: of its first part at fault."""
    values = _plain(values)
    if pa.types.is_struct(kind) and pa.types.is_struct(values.type):
        return _misfit_of_struct(values, kind)
    if pa.types.is_list(kind) and pa.types.is_list(values.type):
        items = _contents(values)[1]
        index = _first_refused(items, kind.value_type)
        return _misfit(items.slice(index, 1), kind.value_type).within(item_step(index))
    if pa.types.is_map(kind) and pa.types.is_map(values.type):
        return _misfit_of_map(_contents(values)[1], kind)
    found = as_json(_python(values[0]))
    return not_utf8(found) if pa.types.is_string(kind) else not_of_type(found, kind)


def _misfit_of_struct(values: pa.Array, kind: pa.DataType) -> Misfit:
    places = places_of([field.name for field in kind], [field.name for field in values.type])
    for field, place in zip(kind, places, strict=True):
        inner = None if place is None else values.field(place)
        if inner is not None and fit(inner, field.type).refused is not None:
            return _misfit(inner, field.type).within(field_step(field.name))
    return not_of_type(as_json(_python(values[0])), kind)


def _misfit_of_map(entries: pa.Array, kind: pa.DataType) -> Misfit:
    keys, items = entries.field(0), entries.field(1)
    if fit(keys, kind.key_type).refused is not None:
        return _misfit(keys.slice(_first_refused(keys, kind.key_type), 1), kind.key_type)
    index = _first_refused(items, kind.item_type)
    return _misfit(items.slice(index, 1), kind.item_type).within(key_step(str(_python(keys[index]))))


def _first_refused(values: pa.Array, kind: pa.DataType) -> int:
    refused = fit(values, kind).refused
    return 0 if refused is None else int(np.argmax(refused))


def _python(value: pa.Scalar) -> Any:
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
        return [[kind.field(index).name, _python(value[index])] for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [[_python(entry[0]), _python(entry[1])] for entry in value.values]
    if pa.types.is_nested(kind):
        return [_python(item) for item in value.values]
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
    if _is_list(kind) and not pa.types.is_list(kind):
        return _list_of_views(values)
    return values


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    has_offsets = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(has_offsets or types.is_list_view(kind) or types.is_large_list_view(kind))


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
    number = _is_number(found)
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
        values.validate(full=True)  # raises `ArrowInvalid` for text that is not UTF-8
        return values
    if pa.types.is_nested(values.type):
        return pa.array([None if value is None else as_json(value) for value in _pythons(values)], pa.string())
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        if not pa.types.is_timestamp(values.type) or values.type.tz is None:
            raise
        return values.cast(pa.timestamp(values.type.unit, tz="UTC")).cast(pa.string())  # the zone is unknown


def _pythons(values: pa.Array) -> list[Any]:
    """Return the values for `as_json`. Raises `ArrowInvalid` or `UnicodeDecodeError` for text that is not UTF-8."""
    try:
        found: list[Any] = values.to_pylist()
        return found
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError, KeyError):
        values.validate(full=True)
        return [_python(value) for value in values]


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
