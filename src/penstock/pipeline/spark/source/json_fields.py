"""Find the fields of JSON lines that no column takes, and cut lines into their fields.

`UnknownFinder` remembers the fields without a column that it has seen, with a type that takes their values. So Arrow
reads a whole block once, strictly, and the validity of its columns says which rows have which field. A block with
another field, or with a value of another type, is searched instead: in windows of lines, Arrow infers the types of such
fields, and those are remembered.

Arrow's columns have a place for each row and name, so with objects whose keys are ids it takes long and much memory:
the first windows are small, and once one has many fields, no field is remembered and later lines are read by Python. So
are those of a window that Arrow refuses, such as one with a field of two types.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from penstock.pipeline.spark.source.blocks import NEWLINE, Flags, Lines, Positions, cast_texts, text_type
from penstock.pipeline.spark.source.column_types import wider
from penstock.pipeline.spark.source.ddl import TIMESTAMP, may_be_column
from penstock.pipeline.spark.source.exact_json import Constant, Number
from penstock.pipeline.spark.source.spellings import is_moment

_WINDOW_BYTES = 256 << 10
_WINDOW_ROWS_FIRST, _WINDOW_ROWS_MAX, _WINDOW_GROWTH = 32, 512, 4
_WIDE = 300  # fields, from which on Arrow is slower than Python
_LEARNED_ROWS = 160  # the first two windows of a block
_REFUSALS_MAX = 3
_NOTHING = pa.struct([])
_WHITESPACE = " \t\r\n"
_DEPTH_MAX = 16
_NESTING_MAX = 64  # deeper than declared types are; Arrow's types of a few hundred levels overflow stacks
_QUOTE, _OPEN, _CLOSE = b'"{}'
_CURLY = 0x20  # the bit that tells { from [, and } from ]
_ESCAPE = re.compile(rb"\\.")
_EXACT_MAX = 1 << 53  # beyond this, a double cannot represent all whole numbers
_DIGITS_MAX = 38
_CONSTANTS = re.compile(r'"(?:[^"\\]|\\.)*"|[+-]?(?:NaN|INF|Inf(?:inity)?)')
_LITERALS = {"true": True, "false": False, "null": None}
# a member whose strings have no escapes and whose value has no others inside
_USUAL = re.compile(
    r"""(?P<key>"[^"\\\x00-\x1f]*")[ \t\r\n]*:[ \t\r\n]*"""
    r"""(?P<text>"[^"\\\x00-\x1f]*"|true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"""
    r"""[ \t\r\n]*(?=[,}])"""
)
UNCUT = "\udfffuncut"  # in place of a name: the line cannot be cut into fields

Names: TypeAlias = Mapping[str, Any]  # declared names of an object: those inside each; None: the field is taken whole


class _MapNames(dict[str, Any]):
    """The names inside the values of a map, whose keys are no names."""


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object; of a name given twice, the last value that is not null."""
    found = dict(pairs)
    if len(found) < len(pairs):
        found |= {name: value for name, value in pairs if value is not None}
    return found


# faster, but it refuses whole numbers of many digits
_PLAIN = json.JSONDecoder(object_pairs_hook=_fields)
_SCANNER = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=Constant, object_pairs_hook=_fields)


class Member(NamedTuple):  # made faster than a frozen dataclass
    """One field of a JSON object, as written."""

    name: str
    key: str  # the name in quotes
    text: str
    value: Any  # numbers are text


def names_of(fields: Iterable[pa.Field]) -> Names:
    """Return the names of declared fields, and of those inside them."""
    return {field.name: _inner(field.type) for field in fields}


def members(line: str) -> list[Member]:
    """Return the fields of one JSON object. Raises `ValueError` if it cannot be cut."""
    try:
        return _members(line)
    except ValueError:
        return _members(_with_quoted_constants(line))


def _members(line: str) -> list[Member]:
    at = _blank_end(line, 0)
    if not line.startswith("{", at):
        raise ValueError("not a JSON object")
    at = _blank_end(line, at + 1)
    found: list[Member] = []
    try:
        while not line.startswith("}", at):
            if found:
                at = _blank_end(line, _behind(line, at, ","))
            if (match := _USUAL.match(line, at)) is not None:
                found.append(_usual_member(match))
                at = match.end()
                continue
            begin = at
            _behind(line, begin, '"')
            name, at = _SCANNER.raw_decode(line, begin)
            key = line[begin:at]
            begin = _blank_end(line, _behind(line, _blank_end(line, at), ":"))
            value, at = _SCANNER.raw_decode(line, begin)
            found.append(Member(name, key, line[begin:at], value))
            at = _blank_end(line, at)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return found


def _usual_member(match: re.Match[str]) -> Member:
    key, text = match["key"], match["text"]
    value: Any = text[1:-1] if text[0] == '"' else _LITERALS[text] if text in _LITERALS else Number(text)
    return Member(key[1:-1], key, text, value)


def is_unknown(member: Member, names: Names) -> bool:
    """Return True if the field has a value that its column does not hold, or has no column."""
    if member.value is None:
        return False
    if member.name not in names:
        return True
    inner = names[member.name]
    return inner is not None and any(True for _ in _inside(member.value, inner))


def as_object(kept: Iterable[Member]) -> str | None:
    """Return the fields as the text of a JSON object; None if there are none."""
    texts = [f"{member.key}:{_exact(member)}" for member in kept]
    return "{" + ",".join(texts) + "}" if texts else None


def kind_of(values: Iterable[Any]) -> pa.DataType | None:
    """Return the type of a column for values of `members`; None if there is none, as for objects without fields."""
    kinds = [kind for value in values if value is not None and (kind := _kind(value, 0)) is not None]
    if not kinds:
        return None
    found = kinds[0].kind
    for kind in kinds[1:]:
        found = wider(found, kind.kind)
    if any(kind.is_large for kind in kinds) and pa.types.is_floating(found):
        return pa.string()  # a double would round them
    return found


class UnknownFinder:
    """Finds the fields of JSON lines that no column takes, under one schema. Used by the thread that decodes."""

    def __init__(self, schema: pa.Schema) -> None:
        self.names = names_of(schema)
        self._declared = schema
        self._reading = pa.schema([field.with_type(text_type(field.type, moments=True)) for field in schema])
        self._seen = _NOTHING  # the fields of all objects, in types that take their values
        self._is_wide = False  # keys may be ids
        self._refusals = 0  # blocks refused one after the other

    @property
    def knows_some(self) -> bool:
        """Return True if fields are remembered that the schema lacks."""
        return not self._widened(self._reading).equals(self._reading)

    def read(self, block: bytes, reading: pa.Schema) -> tuple[pa.Table, dict[str, Positions]]:
        """Return the declared fields of a whole block, and the rows that have each other one.

        Raises `ArrowInvalid`, also if a field, or the type of one, is not remembered.
        """
        table = read_json(block, self._widened(reading), unexpected="error")
        columns = [column.chunk(0) for column in table.columns]
        declared = [cast_texts(column, field.type) for column, field in zip(columns, reading, strict=False)]
        found = _by_path(_extra_fields(zip(table.column_names, columns, strict=True), self._declared))
        if found:
            self._refusals = 0
        return pa.Table.from_arrays(declared, schema=reading), found

    def learns(self, block: bytes, starts: Positions) -> bool:
        """Return True if the first lines of a refused block have fields or types that are not remembered."""
        if self._is_wide or self._refusals >= _REFUSALS_MAX:
            return False
        before = self._seen
        self.find(block, starts[:_LEARNED_ROWS])
        return not self._seen.equals(before)

    def note_refusal(self) -> None:
        """Forget all fields once `read` is refused for block after block."""
        self._refusals += 1
        if self._refusals >= _REFUSALS_MAX:
            self._seen = _NOTHING

    def find(self, block: bytes, starts: Positions) -> dict[str, Positions]:
        """Return the rows that have each field, by the field's path. Row i is the line that begins at ``starts[i]``."""
        lines = Lines.of(block)
        kept = np.searchsorted(lines.starts, starts)
        ends = lines.ends[kept]
        found: dict[str, list[Positions]] = {}
        low, rows_max = 0, _WINDOW_ROWS_FIRST
        while low < len(starts):
            high = int(np.searchsorted(ends, starts[low] + _WINDOW_BYTES))
            high = max(low + 1, min(high, low + rows_max))
            rows_max = min(rows_max * _WINDOW_GROWTH, _WINDOW_ROWS_MAX)
            if kept[high - 1] - kept[low] == high - 1 - low:
                window = block[int(starts[low]) : int(ends[high - 1]) + 1]
            else:
                pairs = zip(starts[low:high].tolist(), ends[low:high].tolist(), strict=True)
                window = b"".join(block[start : end + 1] for start, end in pairs)
            for name, rows in self._window(_shallow(window), high - low).items():
                found.setdefault(name, []).append(rows + low)
            low = high
        return {name: np.concatenate(rows) for name, rows in found.items()}

    def _window(self, window: bytes, rows: int) -> dict[str, Positions]:
        if self._is_wide:
            return self._line_by_line(window)
        try:
            table = read_json(window, self._reading, unexpected="infer")
        except pa.ArrowException:  # a field of two types; a name given twice
            return self._line_by_line(window)
        self._remember(table.schema)
        if table.num_rows != rows:
            return self._line_by_line(window)
        columns = [column.chunk(0) for column in table.columns]
        return _by_path(_extra_fields(zip(table.column_names, columns, strict=True), self._declared))

    def _remember(self, found: pa.Schema) -> None:
        if self._refusals < _REFUSALS_MAX:
            self._seen = _joined(self._seen, _loose(pa.struct(list(found))))
        if _width(found) > _WIDE or _width(self._seen) > _WIDE:
            self._is_wide, self._seen = True, _NOTHING

    def _widened(self, reading: pa.Schema) -> pa.Schema:
        return pa.schema(list(_widened(pa.struct(list(reading)), self._seen)))

    def _line_by_line(self, window: bytes) -> dict[str, Positions]:
        found: defaultdict[str, list[int]] = defaultdict(list)
        for row, fields in enumerate(_decoded_lines(window.decode())):
            for path in _unknown(fields, self.names):
                found[path].append(row)
        return {path: np.unique(np.array(rows, dtype=np.int64)) for path, rows in found.items()}


def read_json(block: bytes, schema: pa.Schema, *, unexpected: str) -> pa.Table:
    """Read at least one line of JSON under a schema, as one chunk. ``unexpected`` is the treatment of other fields."""
    return pj.read_json(
        pa.BufferReader(block),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior=unexpected, newlines_in_values=False
        ),
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    kind: pa.DataType
    is_large: bool = False  # a whole number that a double may round


def _shallow(window: bytes) -> bytes:
    """Return the lines with a 0 in place of each value that is nested too deeply, since types of it end processes."""
    data = np.frombuffer(window, dtype=np.uint8)
    ends = np.flatnonzero(data == NEWLINE)
    opens = np.flatnonzero(data | _CURLY == _OPEN)
    if not (np.diff(np.searchsorted(opens, ends), prepend=0) > _NESTING_MAX).any():
        return window
    plain = np.frombuffer(_ESCAPE.sub(b"__", window) if b"\\" in window else window, dtype=np.uint8)
    sizes = np.diff(ends, prepend=-1)
    quotes = np.cumsum(plain == _QUOTE, dtype=np.int32)
    is_outside = (quotes - np.repeat([0, *quotes[ends[:-1]]], sizes)) % 2 == 0
    steps = (plain | _CURLY == _OPEN).astype(np.int8) - (plain | _CURLY == _CLOSE)
    depths = np.cumsum(steps * is_outside, dtype=np.int32)
    is_deep = depths - np.repeat([0, *depths[ends[:-1]]], sizes) > _NESTING_MAX
    begins = is_deep & ~np.concatenate([[False], is_deep[:-1]])
    closes = ~is_deep & np.concatenate([[False], is_deep[:-1]])
    return bytes(np.where(begins, np.uint8(ord("0")), data)[begins | ~(is_deep | closes)])


def _decoded_lines(text: str) -> list[Mapping[str, Any]]:
    """Return the fields of each line, all read as one array unless that takes care."""
    with suppress(ValueError, RecursionError):
        found: list[Mapping[str, Any]] = _PLAIN.decode("[" + text.removesuffix("\n").replace("\n", ",") + "]")
        return found
    return [_decoded(line) for line in text.split("\n")[:-1]]


def _decoded(line: str) -> Mapping[str, Any]:
    """Return the fields of a line that Arrow has read; one field without a name if Python cannot read it."""
    try:
        found: Mapping[str, Any] = _SCANNER.decode(line)
        return found
    except RecursionError:
        return {UNCUT: True}
    except ValueError:
        quoted = _with_quoted_constants(line)
    return _decoded(quoted) if quoted != line else {UNCUT: True}


def _with_quoted_constants(line: str) -> str:
    """Return the line with spellings that only Arrow reads, such as -Inf, in quotes."""
    return _CONSTANTS.sub(lambda found: found[0] if found[0].startswith('"') else f'"{found[0]}"', line)


def _exact(member: Member) -> str:
    # Python's parser accepts constants, and a reader of the rescued text may not
    has_constants = "NaN" in member.text or "Infinity" in member.text
    return _with_quoted_constants(member.text) if has_constants else member.text


def _inner(kind: pa.DataType) -> Names | None:
    if pa.types.is_list(kind):
        return _inner(kind.value_type)
    if pa.types.is_map(kind):
        inner = _inner(kind.item_type)
        return None if inner is None else _MapNames(inner=inner)
    return names_of(kind) if pa.types.is_struct(kind) else None


def _unknown(value: Mapping[str, Any], names: Names) -> Iterator[str]:
    """Yield the paths of fields with a value that have no declared field; a path may be there more than once."""
    for name, item in value.items():
        if item is None:
            continue
        if name not in names:
            yield name
        elif (inner := names[name]) is not None:
            yield from (f"{name}.{path}" for path in _inside(item, inner))


def _inside(value: Any, names: Names) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _inside(item, names)
    elif isinstance(value, dict) and isinstance(names, _MapNames):
        yield from _inside(list(value.values()), names["inner"])
    elif isinstance(value, dict):
        yield from _unknown(value, names)


def _loose(kind: pa.DataType, depth: int = 0) -> pa.DataType:
    """Return a type that also takes most other values of the same kind; none for those nested deeply."""
    if depth > _DEPTH_MAX:
        return pa.null()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_loose(field.type, depth + 1)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_loose(kind.value_type, depth + 1))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return pa.float64()
    return kind if pa.types.is_boolean(kind) or pa.types.is_null(kind) else pa.string()


def _joined(known: pa.DataType, seen: pa.DataType) -> pa.DataType:
    """Return the type that takes the values of both; if there is none, the one seen last."""
    if pa.types.is_null(seen):
        return known
    if pa.types.is_struct(known) and pa.types.is_struct(seen):
        fields = {field.name: field.type for field in known}
        fields |= {field.name: _joined(fields.get(field.name, pa.null()), field.type) for field in seen}
        return pa.struct(fields.items())
    if pa.types.is_list(known) and pa.types.is_list(seen):
        return pa.list_(_joined(known.value_type, seen.value_type))
    return seen


def _widened(declared: pa.DataType, seen: pa.DataType) -> pa.DataType:
    """Return a declared type with the fields that only the seen one has, behind its own."""
    if pa.types.is_struct(declared) and pa.types.is_struct(seen):
        more = {field.name: field for field in seen}
        own = [
            field if (one := more.pop(field.name, None)) is None else field.with_type(_widened(field.type, one.type))
            for field in declared
        ]
        return pa.struct([*own, *more.values()])
    if pa.types.is_list(declared) and pa.types.is_list(seen):
        return pa.list_(declared.value_field.with_type(_widened(declared.value_type, seen.value_type)))
    return declared


def _width(fields: Iterable[pa.Field]) -> int:
    """Return the number of fields, with those inside them."""
    return sum(1 + _width_inside(field.type) for field in fields)


def _width_inside(kind: pa.DataType) -> int:
    if pa.types.is_list(kind):
        return _width_inside(kind.value_type)
    return _width(kind) if pa.types.is_struct(kind) else 0


def _by_path(found: Iterable[tuple[str, Positions]]) -> dict[str, Positions]:
    """Return the rows by path. A field of a struct and another one whose name is that path share it."""
    rows_of: dict[str, Positions] = {}
    for path, rows in found:
        rows_of[path] = np.union1d(rows_of[path], rows) if path in rows_of else rows
    return rows_of


def _extra_fields(
    columns: Iterable[tuple[str, pa.Array]], declared: Iterable[pa.Field], prefix: str = ""
) -> Iterator[tuple[str, Positions]]:
    """Yield the paths of undeclared fields, with the rows that have a value there."""
    known = {field.name: field.type for field in declared}
    for name, array in columns:
        if name not in known:
            rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
            if len(rows):
                yield prefix + name, rows
        else:
            yield from _extra_inside(array, known[name], f"{prefix}{name}.")


def _extra_inside(array: pa.Array, declared: pa.DataType, prefix: str) -> Iterator[tuple[str, Positions]]:
    if pa.types.is_list(declared) and pa.types.is_list(array.type):
        offsets = array.offsets.to_numpy()
        items = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        begins = offsets - offsets[0]
        for path, rows in _extra_inside(items, declared.value_type, prefix):
            yield path, np.unique(np.searchsorted(begins, rows, side="right") - 1)
    elif pa.types.is_struct(declared) and pa.types.is_struct(array.type):
        valid: Flags = array.is_valid().to_numpy(zero_copy_only=False)
        children = [(field.name, array.field(index)) for index, field in enumerate(array.type)]
        for path, rows in _extra_fields(children, declared, prefix):
            kept = rows[valid[rows]]
            if len(kept):
                yield path, kept


def _kind(value: Any, depth: int) -> _Kind | None:
    match value:
        case None:
            return None
        case bool():
            return _Kind(pa.bool_())
        case Constant():
            return _Kind(pa.float64())
        case Number():
            return _number_kind(value)
        case str():
            return _Kind(TIMESTAMP if len(value) > len("2024-05-06") and is_moment(value) else pa.string())
        case _ if depth > _DEPTH_MAX:
            return _Kind(pa.string())
        case list():
            item = _kind_of_all(value, depth + 1)
            return None if item is None else _Kind(pa.list_(pa.field("element", item)))
        case _:
            return _object_kind(value, depth)


def _number_kind(text: str) -> _Kind:
    if not text.removeprefix("-").isdigit():
        return _Kind(pa.float64()) if math.isfinite(float(text)) else _Kind(pa.string())
    if len(text) > _DIGITS_MAX:
        return _Kind(pa.string())
    number = int(text)
    if not -(1 << 63) <= number < 1 << 63:
        return _Kind(pa.decimal128(_DIGITS_MAX, 0), True)
    return _Kind(pa.int64(), abs(number) > _EXACT_MAX)


def _object_kind(value: Mapping[str, Any], depth: int) -> _Kind | None:
    fields = {name: kind.kind for name, item in value.items() if (kind := _kind(item, depth + 1)) is not None}
    folded = {name.lower() for name in fields}
    if not fields or len(folded) < len(fields) or not all(may_be_column(name, depth=1) for name in fields):
        return None
    return _Kind(pa.struct(fields.items()))


def _kind_of_all(values: Iterable[Any], depth: int) -> pa.DataType | None:
    found: pa.DataType | None = None
    for value in values:
        if (kind := _kind(value, depth)) is not None:
            found = kind.kind if found is None else wider(found, kind.kind)
    return found


def _behind(line: str, at: int, mark: str) -> int:
    if not line.startswith(mark, at):
        raise ValueError(f"no {mark} at character {at}")
    return at + 1


def _blank_end(line: str, at: int) -> int:
    while at < len(line) and line[at] in _WHITESPACE:
        at += 1
    return at
