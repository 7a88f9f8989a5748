"""Check one JSON object under a schema, and note the edits after which Arrow's JSON reader takes it.

Arrow reads strings only from strings, has no maps, and refuses a line for what is in a field that no column wants. So
a line that it refuses is walked along the schema, and spelled as Arrow wants it:

=======================  =====================================================================================
value                    edit
=======================  =====================================================================================
in a field that no       null, under an empty name
column wants
not a string, for a      its source text, as a string
string column
object, for a map        a list of its names and values (see `blocks.text_type`)
[], for a struct         {}
"NaN", INF, +Infinity    NaN, Infinity, -Infinity
other spellings of       the one of jsonl_lines.py
times, such as 2024-5-6
=======================  =====================================================================================

A walk costs a few microseconds per value. Lines that Arrow takes as they are are never walked, except beside bad ones.
"""

import json
import re
from collections.abc import Callable, Mapping
from json.decoder import scanstring  # type: ignore[attr-defined] # used by the standard parser, in C

import pyarrow as pa

from penstock.pipeline.spark.source.explain import (
    Misfit,
    field_step,
    given_twice,
    half_a_pair,
    item_step,
    key_step,
    not_of_type,
)
from penstock.pipeline.spark.source.spellings import (
    decimal_check,
    fits_float,
    is_base64,
    is_date,
    is_moment,
    respelled_date,
    respelled_moment,
)

_NULL = "null"
_BLANKS = re.compile(r"[ \t\n\r]*")
_NAME = re.compile(r'("[^"\\\x00-\x1f]*")[ \t\n\r]*:[ \t\n\r]*')  # the usual ones, without escapes
_STRING = re.compile(r'"[^"\\\x00-\x1f]*"')
_AFTER = re.compile(r"[ \t\n\r]*([,\]}])[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<real>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_LENIENT = re.compile(r"-NaN|[+-]?(?:INF|Inf(?!inity))|\+Infinity")  # numbers, but not for Python's parser
_LENIENT_VALUE = re.compile(rf"[:\[,][ \t\r\n]*(?:{_LENIENT.pattern})[ \t\r\n]*[,\]}}]")  # or in a string
_TOKEN = re.compile(rf'"[^"\\]*(?:\\.[^"\\]*)*"|(?<![\w.+-])(?:{_LENIENT.pattern})(?![\w.+-])')
_CONSTANT = re.compile(r"(?:-?NaN|[+-]?INF|[+-]?Infinity|-?Inf)(?![A-Za-z0-9_])")
_QUOTED_CONSTANT = re.compile(r'"(NaN|[+-]?INF|[+-]?Infinity)"')
_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN = json.JSONDecoder(parse_int=str, parse_float=str)  # Python refuses whole numbers of many digits


class Line:
    """A line of JSON and the edits to it, in the order of their places."""

    __slots__ = ("_edits", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._edits: list[tuple[int, int, str]] = []

    def edit(self, start: int, stop: int, text: str) -> None:
        """Replace a part of the line behind all earlier edits."""
        self._edits.append((start, stop, text))

    @property
    def is_unchanged(self) -> bool:
        return not self._edits

    @property
    def edited(self) -> str:
        """The line with all edits."""
        parts, at = [], 0
        for start, stop, text in self._edits:
            parts += [self.text[at:start], text]
            at = stop
        return "".join([*parts, self.text[at:]])

    def blank_end(self, at: int) -> int:
        """Return the place of the next character that is not a blank."""
        match = _BLANKS.match(self.text, at)
        return match.end() if match is not None else at

    def value_end(self, at: int) -> int:
        """Return the end of any value. Raises `JSONDecodeError`."""
        try:
            return _PLAIN.raw_decode(self.text, at)[1]
        except json.JSONDecodeError as error:
            if not _LENIENT.match(self.text, error.pos):
                raise
        return _PLAIN.raw_decode(as_python_reads(self.text), at)[1]

    def string(self, at: int) -> tuple[str, int]:
        """Return the text of a string that begins with a quote at the place, and its end. Raises `JSONDecodeError`."""
        return scanstring(self.text, at + 1, True)  # type: ignore[no-any-return]

    def takes(self, character: str, at: int) -> bool:
        return self.text.startswith(character, at)

    def expect(self, character: str, at: int) -> int:
        """Return the place of the next value or name after a delimiter. Raises `JSONDecodeError`."""
        if not self.text.startswith(character, at):
            raise json.JSONDecodeError(f"Expecting {character!r} delimiter", self.text, at)
        return self.blank_end(at + 1)

    def name(self, at: int) -> tuple[str, int, int]:
        """Return a member's name, its end, and the place of its value. Raises `JSONDecodeError`."""
        match = _NAME.match(self.text, at)
        if match is not None:
            return match[1][1:-1], match.end(1), match.end()
        if not self.takes('"', at):
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", self.text, at)
        name, stop = self.string(at)
        return name, stop, self.expect(":", self.blank_end(stop))

    def after(self, at: int, end: str) -> int | None:
        """Return the place after a comma; None at the end of an object or array. Raises `JSONDecodeError`."""
        match = _AFTER.match(self.text, at)
        if match is not None and match[1] == end:
            return None
        if match is None or match[1] != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", self.text, self.blank_end(at))
        return match.end()

    def misfit(self, at: int, kind: pa.DataType) -> Misfit:
        """Return the fault of the value at the place. Raises `JSONDecodeError`."""
        return not_of_type(self.text[at : self.value_end(at)], kind)


Walk = Callable[[Line, int], int]  # takes the place of a value that is not null; returns its end


def walk(line: Line, whole: Walk) -> None:
    """Walk all of a line. Raises `Misfit`, `JSONDecodeError` or `RecursionError`."""
    at = line.blank_end(whole(line, line.blank_end(0)))
    if at < len(line.text):
        raise json.JSONDecodeError("Extra data", line.text, at)


def syntax_error(line: Line) -> json.JSONDecodeError | None:
    """Return the error of a line that is not JSON, however much of it fits a schema."""
    try:
        walk(line, Line.value_end)
    except json.JSONDecodeError as error:
        return error
    except RecursionError:
        pass
    return None


class Fields:
    """The declared fields of one object, with a walk for each."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._walks: Mapping[str, Walk] = {field.name: walk_of(field.type) for field in kind}

    def __call__(self, line: Line, at: int) -> int:
        if not line.takes("{", at):
            return _empty_array(line, at, self._kind, instead="{}")
        at = line.blank_end(at + 1)
        if line.takes("}", at):
            return at + 1
        seen: set[str] = set()
        member: int | None = at
        while member is not None:
            name, stop, at = line.name(member)
            if name in self._walks:
                if name in seen:
                    raise given_twice().within(field_step(name))
                seen.add(name)
                at = self._declared(name, line, at)
            else:
                at = _undeclared(line, member, stop, at)
            member = line.after(at, "}")
        return line.blank_end(at) + 1

    def _declared(self, name: str, line: Line, at: int) -> int:
        try:
            return _value(self._walks[name], line, at)
        except Misfit as misfit:
            misfit.within(field_step(name))
            raise


def walk_of(kind: pa.DataType) -> Walk:
    """Return the walk over a value of a type."""
    types = pa.types
    if types.is_string(kind):
        return _text
    if types.is_struct(kind):
        return Fields(kind)
    if types.is_list(kind):
        return _Items(kind)
    if types.is_map(kind):
        return _Entries(kind)
    if types.is_integer(kind):
        return _Integer(kind)
    if types.is_floating(kind):
        return _Float(kind)
    if types.is_decimal(kind):
        return _Decimal(kind)
    if types.is_boolean(kind):
        return _Boolean(kind)
    if types.is_timestamp(kind):
        return _Checked(kind, is_moment, respelled_moment)
    return _Checked(kind, is_date, respelled_date) if types.is_date(kind) else _Checked(kind, is_base64)


class _Items:
    """An array of values of one type."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._walk = walk_of(kind.value_type)

    def __call__(self, line: Line, at: int) -> int:
        if not line.takes("[", at):
            raise line.misfit(at, self._kind)
        at = line.blank_end(at + 1)
        if line.takes("]", at):
            return at + 1
        item: int | None = at
        index = 0
        while item is not None:
            try:
                at = _value(self._walk, line, item)
            except Misfit as misfit:
                misfit.within(item_step(index))
                raise
            item = line.after(at, "]")
            index += 1
        return line.blank_end(at) + 1


class _Entries:
    """An object as a map: any names, with values of one type."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._walk = walk_of(kind.item_type)

    def __call__(self, line: Line, at: int) -> int:
        if not line.takes("{", at):
            return _empty_array(line, at, self._kind, instead="[]")
        line.edit(at, at + 1, "[")
        at = line.blank_end(at + 1)
        entry = None if line.takes("}", at) else at
        seen: set[str] = set()
        while entry is not None:
            key, stop, value_at = line.name(entry)
            if _SURROGATE.search(key):
                raise half_a_pair(line.text[entry:stop])
            if key in seen:
                raise given_twice().within(key_step(key))
            seen.add(key)
            line.edit(entry, entry, '{"key":')
            line.edit(stop, value_at, ',"value":')
            try:
                at = _value(self._walk, line, value_at)
            except Misfit as misfit:
                misfit.within(key_step(key))
                raise
            line.edit(at, at, "}")
            entry = line.after(at, "}")
        at = line.blank_end(at)
        line.edit(at, at + 1, "]")
        return at + 1


class _Integer:
    """A number without fraction and exponent."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._least, self._most = -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1

    def __call__(self, line: Line, at: int) -> int:
        match = _NUMBER.match(line.text, at)
        if match is None or match["real"] or match.end() - at > 20 or not self._least <= int(match[0]) <= self._most:
            raise line.misfit(at, self._kind)
        return match.end()


class _Float:
    """A number within the type's range, or a constant such as NaN, which may be quoted."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind

    def __call__(self, line: Line, at: int) -> int:
        match = _NUMBER.match(line.text, at)
        if match is not None:
            if not fits_float(float(match[0]), self._kind.bit_width):
                raise line.misfit(at, self._kind)
            return match.end()
        constant = _CONSTANT.match(line.text, at) or _QUOTED_CONSTANT.match(line.text, at)
        if constant is None:
            raise line.misfit(at, self._kind)
        text = constant[0].strip('"').removeprefix("+")
        spelling = text if text.endswith(("NaN", "Inf")) else text.replace("INF", "Infinity")
        if spelling != constant[0]:
            line.edit(at, constant.end(), spelling)
        return constant.end()


class _Decimal:
    """A number, or one in a string, that the type holds exactly."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._fits = decimal_check(kind.precision, kind.scale)

    def __call__(self, line: Line, at: int) -> int:
        if line.takes('"', at):
            text, stop = line.string(at)
        else:
            match = _NUMBER.match(line.text, at)
            if match is None:
                raise line.misfit(at, self._kind)
            text, stop = match[0], match.end()
        if not self._fits(text):
            raise line.misfit(at, self._kind)
        return stop


class _Boolean:
    """true or false."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind

    def __call__(self, line: Line, at: int) -> int:
        for text in ("true", "false"):
            if line.takes(text, at):
                return at + len(text)
        raise line.misfit(at, self._kind)


class _Checked:
    """A string that a check accepts, or that has a spelling that it accepts."""

    def __init__(
        self, kind: pa.DataType, check: Callable[[str], bool], respelled: Callable[[str], str | None] | None = None
    ) -> None:
        self._kind = kind
        self._check = check
        self._respelled = respelled

    def __call__(self, line: Line, at: int) -> int:
        if line.takes('"', at):
            text, stop = line.string(at)
            if self._check(text):
                return stop
            spelling = self._respelled(text) if self._respelled is not None else None
            if spelling is not None:
                line.edit(at, stop, f'"{spelling}"')
                return stop
        raise line.misfit(at, self._kind)


def _text(line: Line, at: int) -> int:
    """Take a string as it is, and any other value as its source text."""
    match = _STRING.match(line.text, at)
    if match is not None:
        return match.end()
    if line.takes('"', at):
        text, stop = line.string(at)
        if _SURROGATE.search(text):
            raise half_a_pair(line.text[at:stop])
        return stop
    stop = line.value_end(at)
    line.edit(at, stop, json.dumps(line.text[at:stop], ensure_ascii=False))
    return stop


def as_python_reads(text: str) -> str:
    """Return text that Python's parser accepts, with each value at its place: numbers stand for constants such as -Inf.

    Only text with something like such a constant is searched, because the search takes as long as the parser.
    """
    return _TOKEN.sub(_as_python_spells, text) if _LENIENT_VALUE.search(text) else text


def _as_python_spells(token: re.Match[str]) -> str:
    """Return a string as it is, and any other token as a number of the same length."""
    return token[0] if token[0].startswith('"') else "1" * len(token[0])


def _value(walk: Walk, line: Line, at: int) -> int:
    return at + len(_NULL) if line.takes(_NULL, at) else walk(line, at)


def _undeclared(line: Line, start: int, stop: int, value_at: int) -> int:
    """Replace a member, with a name from ``start`` to ``stop``, by one that Arrow skips; return its end."""
    end = line.value_end(value_at)
    line.edit(start, stop, '""')  # no column has this name
    line.edit(value_at, end, _NULL)
    return end


def _empty_array(line: Line, at: int, kind: pa.DataType, *, instead: str) -> int:
    """Take [] for an empty object, as PHP writes it. Raises `Misfit` for any other value."""
    if line.takes("[", at):
        stop = line.blank_end(at + 1)
        if line.takes("]", stop):
            line.edit(at, stop + 1, instead)
            return stop + 1
    raise line.misfit(at, kind)
