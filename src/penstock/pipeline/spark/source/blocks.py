"""Decode blocks of lines: shared guards and the repair of a block with bad lines. Formats implement `LineFormat`.

Arrow's readers are fast but not line-based. So a decoder checks a block before Arrow parses it and parses it whole only
if its guards hold. Otherwise each suspicious line is checked alone and painted over if it is bad, and the rest is
parsed in runs that are narrowed down around the lines that Arrow refuses. One bad line costs about one more pass over
its block. Whichever path a line takes, Arrow makes its values, and its outcome does not depend on its neighbours.

Dates and times are read as strings and cast here, because Arrow's readers interpret them differently. A time may have a
zone or none (then it is UTC), mixed in one column, and up to nine digits of a second, of which a timestamp keeps six,
as in Spark. Arrow's casts want one spelling for the whole column and refuse the extra digits.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.events.objects import QuarantineReason
from penstock.pipeline.spark.source.ddl import TIMESTAMP, TIMESTAMP_NTZ
from penstock.pipeline.spark.source.spellings import from_base64

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NEWLINE, RETURN = b"\n\r"
_JUDGED_ALONE_MAX = 512  # lines; below that, checking each in Python costs less than another pass
_WINDOW_BYTES = 1 << 14  # decoded at once when lines are bad: str() allocates for all the bytes it is given
_DIGITS_MAX = 38  # every number of that many digits fits into 128 bits
_DIGITS_TRUSTED = 19  # after the point, even if the type keeps fewer
_GUARDED_BYTES = 1 << 17  # checked at once, so that intermediate arrays fit into the processor's cache
NOWHERE = np.empty(0, dtype=np.int64)
_PAIR = 2  # bytes
_WORD, _ALL_OF_A_WORD = 4, 0x01010101  # bytes in a word; a word whose four flags are all set
_ESCAPED = re.compile(rb"\\u00(?:3[0-9]|2[bBdDeE]|[46]5)")  # JSON may escape any character of a number like this
_EXPONENT_END = re.compile(rb"[eE][-+]?[0-9]+(?![0-9A-Za-z-])")
_NARROWING = 8  # parts into which a refused run is cut

_FINE = r"(\.[0-9]{6})[0-9]{1,3}($|[Z+-])"
_ZONED = r"[T ].*(Z|[+-][0-9:]+)$"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line, or a row of a unit, that gave no row.

    ``start`` is its position as in `Decoded`, ``raw`` its bytes without the line ending, or the row as JSON.
    """

    start: int
    raw: bytes
    reason: QuarantineReason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRows:
    """A field of the objects that no column takes."""

    rows: Positions  # those that have it, ascending, by their place in the decoded rows
    bad: Positions = field(default_factory=lambda: NOWHERE)  # the same of the bad lines
    kind: pa.DataType | None = None  # of a column for its values; None: none can take them, or it was not asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Rows and bad lines of one block, or of one unit of an object.

    Row i of ``rows`` is the line that begins at ``starts[i]`` in the block, or the row of that number in the object.
    """

    rows: pa.Table
    starts: Positions
    bad: tuple[BadLine, ...]
    unknown: Mapping[str, UnknownRows] = field(default_factory=dict)  # by name; a field of a struct is a.b
    # by column: the rows whose value is of another type, and kept in `_rescued`
    misfits: Mapping[str, Positions] = field(default_factory=dict)

    def moved(self, move: Callable[[Positions], Positions]) -> "Decoded":
        """Return the same with other positions."""
        bad = move(np.array([line.start for line in self.bad], dtype=np.int64)).tolist()
        return replace(
            self,
            starts=move(self.starts),
            bad=tuple(replace(line, start=start) for line, start in zip(self.bad, bad, strict=True)),
        )


class Refused(Exception):
    """A line that gives no row."""

    def __init__(self, reason: QuarantineReason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class Decoder(Protocol):
    """A decoder of blocks of one format into typed rows under one schema. No block's rows depend on another block."""

    def decode(self, block: bytes, *, plain: bool = False) -> Decoded:
        """Decode lines that each end with a newline, including the last. ``plain``: see `contents.LineChunk`."""
        ...


class LineFormat(Protocol):
    """The format-specific part of decoding lines."""

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the rows."""
        ...

    @property
    def filler(self) -> bytes:
        """Return the one byte for painting over a line; `parse` skips a line filled with it."""
        ...

    def text(self, block: bytes) -> bytes:
        """Return the block as the text that has to be UTF-8, of the same length."""
        ...

    def is_blank(self, line: bytes) -> bool:
        """Return True if the line is neither a row nor bad."""
        ...

    def mended(self, line: bytes) -> bytes:
        """Return a non-blank UTF-8 line in the spelling that `parse` reads: the same object if that is its own.

        Raises `Refused` if the line is bad. One that only seems good may be refused by `parse`.
        """
        ...

    def parse(self, block: bytes, rows: int, *, verified: bool) -> pa.Table | Exception:
        """Return the typed rows of guarded lines, or the error if they are not exactly ``rows`` rows.

        ``verified``: `mended` returned every line, so an infinite number is one that is written so.
        """
        ...

    def explain(self, refused: Exception) -> tuple[QuarantineReason, str]:
        """Return the reason for a single line that seemed good but that `parse` refused with this error."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Positions of the lines of a block."""

    starts: Positions
    ends: Positions  # positions of the newlines

    @staticmethod
    def of(block: bytes) -> "Lines":
        """Find the lines; each ends with a newline, including the last."""
        ends = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == NEWLINE)
        starts = np.empty_like(ends)
        starts[:1] = 0
        starts[1:] = ends[:-1] + 1
        return Lines(starts=starts, ends=ends)

    def bad(self, block: bytes, index: int, reason: QuarantineReason, detail: str) -> BadLine:
        """Return the line at ``index`` as a bad one."""
        start = int(self.starts[index])
        raw = block[start : int(self.ends[index])].removesuffix(b"\r")
        return BadLine(start=start, raw=raw, reason=reason, detail=detail)


class DecimalGuard:
    """A search for lines with a number that Arrow may turn into a wrong decimal, so that they are checked alone.

    Measured with pyarrow 26: a decimal(38,0) reads 1e-39 as 0, and a decimal(38,38) reads 11 as another number because
    its 128 bits overflow. Both need an exponent, or many digits before or after the point. A run of digits after the
    point is trusted up to 19 or the largest scale, one before it up to the remainder of 38.
    """

    def __init__(self, kinds: Iterable[pa.DataType]) -> None:
        scales = [scale for kind in kinds for scale in _scales(kind)]
        behind = max(_DIGITS_TRUSTED, *scales) if scales else 0
        before = _DIGITS_MAX - behind
        # shortest runs that are not trusted
        self._before, self._behind = (before + 1, behind + 1) if scales else (0, 0)
        self._many = re.compile(rb"(?<![0-9.])0*[1-9][0-9]{%d}|[0-9]{%d}" % (before, behind + 1))

    def distrust(self, block: bytes, lines: Lines, shaped: Flags) -> None:
        """Clear the flags of these lines in ``shaped``."""
        if not self._behind:
            return
        if b"\\u00" in block:
            for found in _ESCAPED.finditer(block):
                shaped[np.searchsorted(lines.ends, found.start())] = False
        data = np.frombuffer(block, dtype=np.uint8)
        for start in range(0, len(data), _GUARDED_BYTES):
            window = data[start : start + _GUARDED_BYTES + _DIGITS_MAX + 1]  # a run may begin at the window's end
            numeric = window - ord(".") < 12  # one of ./0123456789; unsigned, so smaller values wrap around
            for at in (_exponents(window, numeric) + start).tolist():
                if _EXPONENT_END.match(block, at):
                    shaped[np.searchsorted(lines.ends, at)] = False
            runs = _runs(numeric, self._behind)
            if len(runs):
                runs = _runs(window - ord("0") < 10, self._behind)
            if self._before < self._behind:
                runs = np.concatenate([runs, _begun(window, numeric, self._before)])
            for index in np.unique(np.searchsorted(lines.ends, runs + start)).tolist() if len(runs) else ():
                if self._many.search(block, int(lines.starts[index]), int(lines.ends[index])):
                    shaped[index] = False


def is_utf8(block: bytes) -> bool:
    """Return True if the block is UTF-8; runs at memory speed for ASCII."""
    if block.isascii():
        return True
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def holds(block: bytes, text: bytes) -> bool:
    """Return True if the block contains the text, which is not empty.

    For two bytes it compares words, ten times as fast as ``in`` if the first byte is frequent (measured).
    """
    if len(text) != _PAIR or len(block) < _PAIR:
        return text in block
    wanted = np.frombuffer(text, dtype=np.uint16)
    for first in range(_PAIR):
        pairs = np.frombuffer(block, dtype=np.uint16, count=(len(block) - first) // _PAIR, offset=first)
        for start in range(0, len(pairs), _GUARDED_BYTES):
            if (pairs[start : start + _GUARDED_BYTES] == wanted).any():
                return True
    return False


def invalid_utf8(block: bytes, lines: Lines) -> Iterator[tuple[int, str]]:
    """Yield the index of each line that is not UTF-8, with the position in it.

    Decodes windows of whole lines; after a bad line a new window begins.
    """
    if is_utf8(block):
        return
    view, ends = memoryview(block), lines.ends
    at = 0
    while at < len(view):
        last = min(int(np.searchsorted(ends, at + _WINDOW_BYTES)), len(ends) - 1)
        stop = int(ends[last]) + 1
        try:
            str(view[at:stop], "utf-8")
            at = stop
        except UnicodeDecodeError as error:
            index = int(np.searchsorted(ends, at + error.start))
            yield index, f"at byte {at + error.start - lines.starts[index]}"
            at = int(ends[index]) + 1


def repair(form: LineFormat, block: bytes, lines: Lines, shaped: Flags) -> Decoded:
    """Decode a block that cannot be parsed whole. Lines that are not ``shaped`` are checked alone."""
    return _Repair(form, block, lines).decode(shaped)


def holds_moments(kind: pa.DataType) -> bool:
    """Return True if the type contains a timestamp."""
    if pa.types.is_nested(kind):
        return any(holds_moments(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_timestamp(kind))


def text_type(kind: pa.DataType, *, moments: bool) -> pa.DataType:
    """Return the type to read JSON with: strings in place of bytes, dates and, with ``moments``, timestamps.

    In place of a map it has a list of structs of ``key`` and ``value``.
    """
    if pa.types.is_date(kind) or pa.types.is_binary(kind) or (moments and pa.types.is_timestamp(kind)):
        return pa.string()
    if pa.types.is_map(kind):
        value = text_type(kind.item_type, moments=moments)
        return pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", value)])))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(text_type(kind.value_type, moments=moments)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(text_type(field.type, moments=moments)) for field in kind])
    return kind


def cast_texts(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast an array of `text_type` to the type itself. Raises `ArrowInvalid` for text that does not fit."""
    if array.type == kind:
        return array
    if pa.types.is_timestamp(kind):
        return to_moments(array, kind)
    if pa.types.is_binary(kind):
        return _from_base64(array)
    if not pa.types.is_nested(kind):
        return array.cast(kind)
    if pa.types.is_list(kind):
        values = cast_texts(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())
    if pa.types.is_map(kind):
        keys, items = (array.values.field(index) for index in (0, 1))
        items = cast_texts(items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=array.is_null())
    columns = [cast_texts(array.field(index), kind.field(index).type) for index in range(kind.num_fields)]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=array.is_null())


def _from_base64(texts: pa.Array) -> pa.Array:
    """Decode bytes. Raises `ArrowInvalid` if a text is not base64."""
    try:
        found = [None if text is None else from_base64(text) for text in texts.to_pylist()]
    except ValueError as error:
        raise pa.ArrowInvalid(f"not base64: {error}") from error
    return pa.array(found, pa.binary())


def to_moments(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast strings to timestamps. Raises `ArrowInvalid` if one of them is not a time."""
    # most others have the same spelling, and a cast that refuses many values is slow
    first = pc.first(texts).as_py() or ""
    try:
        return texts.cast(TIMESTAMP if re.search(_ZONED, first) else TIMESTAMP_NTZ).cast(kind)
    except pa.ArrowInvalid:
        pass
    texts = pc.replace_substring_regex(texts, pattern=_FINE, replacement=r"\1\2")
    zoned = pc.match_substring_regex(texts, pattern=_ZONED)
    nothing = pa.scalar(None, pa.string())
    local = pc.if_else(zoned, nothing, texts).cast(TIMESTAMP_NTZ).cast(kind)
    return pc.coalesce(local, pc.if_else(zoned, texts, nothing).cast(TIMESTAMP).cast(kind))


def _exponents(window: npt.NDArray[np.uint8], numeric: Flags) -> Positions:
    """Return the position of each e or E that follows a digit or a point."""
    found = (window[1:] | 0x20) == ord("e")
    found &= numeric[:-1]
    return np.flatnonzero(found) + 1 if found.any() else NOWHERE


def _runs(some: Flags, digits: int) -> Positions:
    """Return at least one position inside every run of ``digits`` flags; positions in shorter runs may be included."""
    count = (digits - _WORD + 1) // _WORD  # aligned words that such a run covers at least
    words = some[: len(some) // _WORD * _WORD].view(np.uint32) == _ALL_OF_A_WORD
    size = len(words) - count + 1
    if size <= 0:
        return NOWHERE
    together = words[:size].copy()
    for shift in range(1, count):
        together &= words[shift : size + shift]
    return np.flatnonzero(together) * _WORD if together.any() else NOWHERE


def _begun(window: npt.NDArray[np.uint8], numeric: Flags, digits: int) -> Positions:
    """Return where runs of ``digits`` digits begin with no digit or point before them, except the zero of ``0.``."""
    is_digit = window - ord("0") < 10
    begun = is_digit.copy()
    begun[1:] &= ~numeric[:-1]  # at a window's start this may be the middle of a number: a false alarm
    zero = window == ord("0")
    begun[:-1] &= ~zero[:-1] | is_digit[1:]
    for shift in range(1, digits):
        begun[:-shift] &= is_digit[shift:]
        begun[-shift:] = False
    return np.flatnonzero(begun) if begun.any() else NOWHERE


def _scales(kind: pa.DataType) -> Iterator[int]:
    """Yield the scales of the decimals in a type."""
    if pa.types.is_nested(kind):
        for index in range(kind.num_fields):
            yield from _scales(kind.field(index).type)
    elif pa.types.is_decimal(kind):
        yield kind.scale


class _Repair:
    """The repair of one block. Used by one thread."""

    def __init__(self, form: LineFormat, block: bytes, lines: Lines) -> None:
        self._form = form
        self._block = block
        self._lines = lines
        self._painted = bytearray(block)  # bad and blank lines are overwritten
        self._kept = lines.starts < lines.ends  # an empty line is blank in every format that uses repair
        self._mended: dict[int, bytes] = {}  # by line: what is parsed in place of it
        self._bad: dict[int, BadLine] = {}

    def decode(self, shaped: Flags) -> Decoded:
        for index, detail in invalid_utf8(self._form.text(self._block), self._lines):
            self._refuse(index, QuarantineReason.INVALID_UTF8, detail)
        for index in np.flatnonzero(~shaped & self._kept).tolist():
            self._judge(index)
        tables = [table for table in self._runs(0, len(self._kept)) if table.num_rows]
        return Decoded(
            rows=pa.concat_tables(tables) if tables else self._form.schema.empty_table(),
            starts=self._lines.starts[self._kept],
            bad=tuple(self._bad[index] for index in sorted(self._bad)),
        )

    def _judge(self, index: int) -> None:
        """Check one line alone: paint over a blank one, refuse a bad one."""
        raw = self._block[int(self._lines.starts[index]) : int(self._lines.ends[index])]
        if self._form.is_blank(raw):
            self._paint(index)
            return
        try:
            mended = self._form.mended(raw)
        except Refused as refused:
            self._refuse(index, refused.reason, refused.detail)
            return
        if mended is not raw:
            self._mended[index] = mended

    def _refuse(self, index: int, reason: QuarantineReason, detail: str) -> None:
        self._bad[index] = self._lines.bad(self._block, index, reason, detail)
        self._mended.pop(index, None)
        self._paint(index)

    def _paint(self, index: int) -> None:
        start, end = int(self._lines.starts[index]), int(self._lines.ends[index])
        self._kept[index] = False
        self._painted[start:end] = self._form.filler * (end - start)

    def _runs(self, low: int, high: int, *, judged: bool = False) -> Iterator[pa.Table]:
        """Yield the rows of lines ``low`` to ``high`` in order; narrow down to the lines that Arrow refuses."""
        rows = int(np.count_nonzero(self._kept[low:high]))
        if rows == 0:
            return
        parsed = self._parse(low, high, rows, judged=judged)
        if isinstance(parsed, pa.Table):
            yield parsed
        elif high - low > _JUDGED_ALONE_MAX:
            yield from self._narrowed(low, high, _NARROWING, judged=False)
        elif not judged:
            for index in (np.flatnonzero(self._kept[low:high]) + low).tolist():
                if index not in self._mended:
                    self._judge(index)
            yield from self._runs(low, high, judged=True)
        elif rows == 1:
            index = low + int(np.flatnonzero(self._kept[low:high])[0])
            self._refuse(index, *self._form.explain(parsed))
        else:
            yield from self._narrowed(low, high, 2, judged=True)

    def _narrowed(self, low: int, high: int, parts: int, *, judged: bool) -> Iterator[pa.Table]:
        step = -(-(high - low) // parts)
        for start in range(low, high, step):
            yield from self._runs(start, min(start + step, high), judged=judged)

    def _parse(self, low: int, high: int, rows: int, *, judged: bool) -> pa.Table | Exception:
        return self._form.parse(self._text(low, high), rows, verified=judged)

    def _text(self, low: int, high: int) -> bytes:
        """Return a copy: lines are painted over later, and columns may refer to the bytes that Arrow read them from."""
        at, end = int(self._lines.starts[low]), int(self._lines.ends[high - 1]) + 1
        if not self._mended:
            return bytes(self._painted[at:end])
        parts: list[bytes | bytearray] = []
        for index in filter(self._mended.__contains__, range(low, high)):
            parts += [self._painted[at : int(self._lines.starts[index])], self._mended[index]]
            at = int(self._lines.ends[index])
        return b"".join([*parts, self._painted[at:end]])
