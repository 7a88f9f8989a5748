"""Blocks of lines, and how one is decoded that cannot be taken whole. What a format brings to it is a `LineFormat`.

Arrow's readers are fast and do not think in lines. So a decoder looks at a block before Arrow parses it, and takes it
whole only where its guards hold. Otherwise the lines that stand out are judged alone, painted over where they are bad,
and the rest is parsed in runs that are narrowed down around what Arrow refuses. One bad line costs about one more pass
over its block. Whoever judges, every value that leaves was made by Arrow; a line's fate does not depend on its
neighbours.

Columns that Arrow's readers are given as strings, because they read them otherwise than we mean: dates and times.

A time may come with a zone or without one, then it is UTC, in one column; and with up to nine digits of a second, of
which a timestamp keeps six, as Spark does. Arrow's casts want one way for all of a column and refuse the digits.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.spark.source.ddl import TIMESTAMP, TIMESTAMP_NTZ
from penstock.pipeline.spark.source.lines import QuarantineReason

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NEWLINE, RETURN = b"\n\r"
_JUDGED_ALONE_MAX = 512  # lines: below that, asking Python about each costs less than another pass
_WINDOW_BYTES = 1 << 14  # decoded at once where lines are bad: a decoder makes room for all it is given
_DIGITS_MAX = 38  # every number of that many digits fits into 128 bits
_DIGITS_TRUSTED = 19  # after the point, also if the type keeps fewer
_GUARDED_BYTES = 1 << 17  # checked at once: intermediate arrays fit into the processor's cache
_NOWHERE = np.empty(0, dtype=np.int64)
_WORD, _ALL_OF_A_WORD = 4, 0x01010101  # bytes; of flags that are all set
_ESCAPED = re.compile(rb"\\u00(?:3[0-9]|2[bBdDeE]|[46]5)")  # JSON may write any character of a number like that
_EXPONENT_END = re.compile(rb"[eE][-+]?[0-9]+(?![0-9A-Za-z-])")
_NARROWING = 8  # parts into which a refused run is cut


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line that gave no row. ``start`` is its position in the block, ``raw`` its bytes without the line's end."""

    start: int
    raw: bytes
    reason: QuarantineReason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What a block gave: row i of ``rows`` is the line that begins at ``starts[i]``."""

    rows: pa.Table
    starts: Positions
    bad: tuple[BadLine, ...]


class Decoder(Protocol):
    """Makes typed rows of blocks of one format under one schema. Holds no state between blocks."""

    def decode(self, block: bytes, *, plain: bool = False) -> Decoded:
        """Decode lines that each end with a newline, the last one too. ``plain``: see `contents.Part`."""
        ...


class LineFormat(Protocol):
    """What one format knows of its lines."""

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        ...

    @property
    def filler(self) -> bytes:
        """One byte; a line painted over with it is nothing to `parse`."""
        ...

    def is_blank(self, line: bytes) -> bool:
        """Whether the line is neither a row nor bad."""
        ...

    def reason(self, line: bytes) -> tuple[QuarantineReason, str] | None:
        """Why a line of UTF-8 that is not blank is refused, without Arrow; None where it seems good."""
        ...

    def parse(self, block: bytes, rows: int, *, verified: bool) -> pa.Table | Exception:
        """The typed rows of guarded lines, or why they are not exactly ``rows`` of them.

        ``verified``: `reason` was asked about every line, so an infinite number is one that is written so.
        """
        ...

    def explain(self, refused: Exception) -> tuple[QuarantineReason, str]:
        """What `parse` said about a single line that seemed good."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Where the lines of a block are."""

    starts: Positions
    ends: Positions  # of the newlines

    @staticmethod
    def of(block: bytes) -> "Lines":
        """Find the lines; each ends with a newline, the last one too."""
        ends = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == NEWLINE)
        starts = np.empty_like(ends)
        starts[:1] = 0
        starts[1:] = ends[:-1] + 1
        return Lines(starts=starts, ends=ends)

    def bad(self, block: bytes, index: int, reason: QuarantineReason, detail: str) -> BadLine:
        """The line of that number as a bad one."""
        start = int(self.starts[index])
        raw = block[start : int(self.ends[index])].removesuffix(b"\r")
        return BadLine(start=start, raw=raw, reason=reason, detail=detail)


class DecimalGuard:
    """Finds the lines with a number that Arrow may turn into a wrong decimal, so that they are judged alone.

    Measured with pyarrow 26: a decimal(38,0) takes 1e-39 for 0, and a decimal(38,38) takes 11 for another number, since
    its 128 bits overflow. Both need an exponent, or many digits before or after the point. A run of digits after
    the point is trusted up to 19 or the largest scale, one before it up to what is then left of 38.
    """

    def __init__(self, kinds: Iterable[pa.DataType]) -> None:
        scales = [scale for kind in kinds for scale in _scales(kind)]
        behind = max(_DIGITS_TRUSTED, *scales) if scales else 0
        before = _DIGITS_MAX - behind
        self._before, self._behind = (before + 1, behind + 1) if scales else (0, 0)  # shortest runs not trusted
        self._many = re.compile(rb"(?<![0-9.])0*[1-9][0-9]{%d}|[0-9]{%d}" % (before, behind + 1))

    def distrust(self, block: bytes, lines: Lines, shaped: Flags) -> None:
        """Clear the flags of those lines."""
        if not self._behind:
            return
        if b"\\u00" in block:
            for found in _ESCAPED.finditer(block):
                shaped[np.searchsorted(lines.ends, found.start())] = False
        data = np.frombuffer(block, dtype=np.uint8)
        for start in range(0, len(data), _GUARDED_BYTES):
            window = data[start : start + _GUARDED_BYTES + _DIGITS_MAX + 1]  # a run may begin at the window's end
            numeric = window - ord(".") < 12  # ./0123456789; unsigned, so that what is smaller wraps around
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


def _exponents(window: npt.NDArray[np.uint8], numeric: Flags) -> Positions:
    """Return the positions of each e or E that follows a digit or a point."""
    found = (window[1:] | 0x20) == ord("e")
    found &= numeric[:-1]
    return np.flatnonzero(found) + 1 if found.any() else _NOWHERE


def _runs(some: Flags, digits: int) -> Positions:
    """Return positions that include one in every run of that many flags; shorter runs may have some, too."""
    count = (digits - _WORD + 1) // _WORD  # aligned words that such a run covers at least
    words = some[: len(some) // _WORD * _WORD].view(np.uint32) == _ALL_OF_A_WORD
    size = len(words) - count + 1
    if size <= 0:
        return _NOWHERE
    together = words[:size].copy()
    for shift in range(1, count):
        together &= words[shift : size + shift]
    return np.flatnonzero(together) * _WORD if together.any() else _NOWHERE


def _begun(window: npt.NDArray[np.uint8], numeric: Flags, digits: int) -> Positions:
    """Return where that many digits begin without a digit or point before them. The zero of ``0.`` does not count."""
    is_digit = window - ord("0") < 10
    begun = is_digit.copy()
    begun[1:] &= ~numeric[:-1]  # at a window's start this may be the middle of a number: a false alarm
    zero = window == ord("0")
    begun[:-1] &= ~zero[:-1] | is_digit[1:]
    for shift in range(1, digits):
        begun[:-shift] &= is_digit[shift:]
        begun[-shift:] = False
    return np.flatnonzero(begun) if begun.any() else _NOWHERE


def _scales(kind: pa.DataType) -> Iterator[int]:
    """The scales of the decimals in the type."""
    if pa.types.is_nested(kind):
        for index in range(kind.num_fields):
            yield from _scales(kind.field(index).type)
    elif pa.types.is_decimal(kind):
        yield kind.scale


def is_utf8(block: bytes) -> bool:
    """Whether the block is UTF-8; for ASCII at memory speed."""
    if block.isascii():
        return True
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def invalid_utf8(block: bytes, lines: Lines) -> Iterator[tuple[int, str]]:
    """The numbers of the lines that are not UTF-8, and where in them.

    Decodes window by window, each of whole lines; behind a bad line the window begins anew.
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
    """Decode a block that cannot be taken whole; lines that are not ``shaped`` are judged alone."""
    return _Repair(form, block, lines).decode(shaped)


class _Repair:
    """One block that cannot be taken whole."""

    def __init__(self, form: LineFormat, block: bytes, lines: Lines) -> None:
        self._form = form
        self._block = block
        self._lines = lines
        self._painted = bytearray(block)  # bad and blank lines are overwritten
        self._kept = lines.starts < lines.ends  # an empty line is blank in every format that comes here
        self._bad: dict[int, BadLine] = {}

    def decode(self, shaped: Flags) -> Decoded:
        for index, detail in invalid_utf8(self._block, self._lines):
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
        """Look at one line alone, the blank ones too, and refuse it with a reason where it is bad."""
        raw = self._block[int(self._lines.starts[index]) : int(self._lines.ends[index])]
        if self._form.is_blank(raw):
            self._paint(index)
        elif (verdict := self._form.reason(raw)) is not None:
            self._refuse(index, *verdict)

    def _refuse(self, index: int, reason: QuarantineReason, detail: str) -> None:
        self._bad[index] = self._lines.bad(self._block, index, reason, detail)
        self._paint(index)

    def _paint(self, index: int) -> None:
        start, end = int(self._lines.starts[index]), int(self._lines.ends[index])
        self._kept[index] = False
        self._painted[start:end] = self._form.filler * (end - start)

    def _runs(self, low: int, high: int, *, judged: bool = False) -> Iterator[pa.Table]:
        """The rows of lines ``low`` to ``high``, in order; what Arrow refuses is narrowed down and refused."""
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
        start, end = int(self._lines.starts[low]), int(self._lines.ends[high - 1]) + 1
        # A copy: the lines are painted over later, and Arrow's columns may look into what they were read from.
        return self._form.parse(bytes(self._painted[start:end]), rows, verified=judged)


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
