"""Decode blocks of lines to typed rows by Arrow's JSON reader, behind guards.

Arrow's reader is fast and does not think in lines (measured with pyarrow 26: a block that begins with the line ``null``
ends the process; two objects on one line and one object across two lines keep the row count and shift every offset;
invalid UTF-8 passes). So a block is looked at before it is parsed, and taken whole only when

- every line that is not blank begins with ``{`` and ends with ``}``, a carriage return aside. An object can then not
  cross a newline: what would join the halves (``}`` newline ``{``) is JSON nowhere;
- it is UTF-8;
- Arrow gives exactly one row a line that is not blank. No line gives less than one, so none gave two;
- no number overflowed its type.

Otherwise the lines that stand out are judged alone, painted over with blanks where they are bad, and the rest is parsed
in runs that are narrowed down around what Arrow refuses. One bad line costs about one more pass over its block.
Whoever judges, every value that leaves was made by Arrow; a line's fate does not depend on its neighbours.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.pipeline.source.lines import BLANKS, Classifier, Reason

Positions = npt.NDArray[np.int64]

_NEWLINE, _RETURN, _OPEN, _CLOSE = b"\n\r{}"
_JUDGED_ALONE_MAX = 512  # lines: below that, asking Python about each costs less than another pass
_WINDOW_BYTES = 1 << 14  # decoded at once where lines are bad: a decoder makes room for all it is given
_NARROWING = 8  # parts into which a refused run is cut


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line that gave no row. ``start`` is its position in the block, ``raw`` its bytes without the line's end."""

    start: int
    raw: bytes
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What a block gave: row i of ``rows`` is the line that begins at ``starts[i]``."""

    rows: pa.Table
    starts: Positions
    bad: tuple[BadLine, ...]


class BlockDecoder:
    """Decodes blocks under one schema. Holds no state between blocks."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._reading = pa.schema([pa.field(field.name, _reading_type(field.type)) for field in schema])
        self._options = pj.ParseOptions(
            explicit_schema=self._reading, unexpected_field_behavior="ignore", newlines_in_values=False
        )
        self._checked = [index for index, field in enumerate(schema) if _may_overflow(field.type)]
        self._classifier = Classifier(schema)

    def decode(self, block: bytes) -> Decoded:
        """Decode lines that each end with a newline, the last one too."""
        lines = _Lines.of(block)
        if lines.shaped.all() and is_utf8(block):
            table = self._parse(pa.py_buffer(block), len(lines.starts), verified=False)
            if isinstance(table, pa.Table):
                return Decoded(rows=table, starts=lines.starts, bad=())
        return _Repair(self, block, lines).decode()

    def reason(self, line: bytes) -> tuple[Reason, str] | None:
        """Why a line is refused, without Arrow; None where it seems good."""
        return self._classifier.reason(line)

    def _parse(self, block: pa.Buffer, rows: int, *, verified: bool) -> pa.Table | Exception:
        """The typed rows of guarded lines, or why they are not exactly ``rows`` of them.

        ``verified``: the classifier saw every line, so an infinite number is one that is written so.
        """
        if rows == 0:
            return self._schema.empty_table()
        try:
            table = pj.read_json(
                pa.BufferReader(block),
                read_options=pj.ReadOptions(use_threads=False, block_size=block.size + 1),
                parse_options=self._options,
            )
            if table.num_rows != rows:
                return ValueError("not one object")
            self._refuse_overflow(table, verified=verified)
            return self._cast(table)
        except pa.ArrowException as refused:
            return refused

    def _refuse_overflow(self, table: pa.Table, *, verified: bool) -> None:
        for index in self._checked:
            column = table.column(index)
            if pa.types.is_floating(column.type):
                leaves = [] if verified else [column]
            else:
                column.validate(full=True)  # Arrow's reader lets 1e8 into a decimal(10,2): measured
                leaves = [] if verified else list(_floats(column))
            if any(pc.any(pc.is_inf(leaf)).as_py() for leaf in leaves):
                raise pa.ArrowInvalid("Failed to convert JSON: a number too large for its type")

    def _cast(self, table: pa.Table) -> pa.Table:
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(table.columns, self._schema, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self._schema)


def is_utf8(block: bytes) -> bool:
    """Whether the block is UTF-8; for ASCII at memory speed."""
    if block.isascii():
        return True
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """Where the lines are, and which of them look like one object."""

    starts: Positions
    ends: Positions  # of the newlines
    shaped: npt.NDArray[np.bool_]

    @staticmethod
    def of(block: bytes) -> "_Lines":
        data = np.frombuffer(block, dtype=np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        starts = np.empty_like(ends)
        starts[:1] = 0
        starts[1:] = ends[:-1] + 1
        last = data[ends - 1]  # an empty line looks at its neighbour's byte, but does not begin with `{` either
        returns = last == _RETURN
        if returns.any():
            last = np.where(returns, data[ends - 2], last)
        return _Lines(starts=starts, ends=ends, shaped=(data[starts] == _OPEN) & (last == _CLOSE))


class _Repair:
    """One block that cannot be taken whole."""

    def __init__(self, decoder: BlockDecoder, block: bytes, lines: _Lines) -> None:
        self._decoder = decoder
        self._block = block
        self._lines = lines
        self._painted = bytearray(block)  # bad lines are overwritten by blanks
        self._kept = np.ones(len(lines.starts), dtype=np.bool_)
        self._bad: dict[int, BadLine] = {}

    def decode(self) -> Decoded:
        self._refuse_invalid_utf8()
        for index in np.flatnonzero(~self._lines.shaped & self._kept).tolist():
            self._judge(index)
        tables = [table for table in self._runs(0, len(self._kept)) if table.num_rows]
        return Decoded(
            rows=pa.concat_tables(tables) if tables else self._decoder._schema.empty_table(),
            starts=self._lines.starts[self._kept],
            bad=tuple(self._bad[index] for index in sorted(self._bad)),
        )

    def _raw(self, index: int) -> bytes:
        return self._block[int(self._lines.starts[index]) : int(self._lines.ends[index])]

    def _judge(self, index: int) -> None:
        """Look at one line alone, the blank ones too, and refuse it with a reason where it is bad."""
        raw = self._raw(index)
        if not raw.strip(BLANKS):
            self._kept[index] = False
        elif (verdict := self._decoder.reason(raw)) is not None:
            self._refuse(index, *verdict)

    def _refuse(self, index: int, reason: Reason, detail: str) -> None:
        start, end = int(self._lines.starts[index]), int(self._lines.ends[index])
        self._bad[index] = BadLine(start=start, raw=self._raw(index).removesuffix(b"\r"), reason=reason, detail=detail)
        self._kept[index] = False
        self._painted[start:end] = b" " * (end - start)

    def _refuse_invalid_utf8(self) -> None:
        """Decode window by window, each of whole lines; behind a bad line the window begins anew."""
        if is_utf8(self._block):
            return
        view, ends = memoryview(self._block), self._lines.ends
        at = 0
        while at < len(view):
            last = min(int(np.searchsorted(ends, at + _WINDOW_BYTES)), len(ends) - 1)
            stop = int(ends[last]) + 1
            try:
                str(view[at:stop], "utf-8")
                at = stop
            except UnicodeDecodeError as error:
                index = int(np.searchsorted(ends, at + error.start))
                self._refuse(index, Reason.INVALID_UTF8, f"at byte {at + error.start - self._lines.starts[index]}")
                at = int(ends[index]) + 1

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
            self._refuse(low + int(np.flatnonzero(self._kept[low:high])[0]), *_reason_of(parsed))
        else:
            yield from self._narrowed(low, high, 2, judged=True)

    def _narrowed(self, low: int, high: int, parts: int, *, judged: bool) -> Iterator[pa.Table]:
        step = -(-(high - low) // parts)
        for start in range(low, high, step):
            yield from self._runs(start, min(start + step, high), judged=judged)

    def _parse(self, low: int, high: int, rows: int, *, judged: bool) -> pa.Table | Exception:
        start, end = int(self._lines.starts[low]), int(self._lines.ends[high - 1]) + 1
        # A copy: the lines are painted over later, and Arrow's columns may look into what they were read from.
        return self._decoder._parse(pa.py_buffer(bytes(self._painted[start:end])), rows, verified=judged)


def _reason_of(refused: Exception) -> tuple[Reason, str]:
    """Arrow's words about a single line. A declared field of another kind of value is told by "changed from"."""
    text = str(refused).splitlines()[0]
    if text.startswith("JSON parse error") and "changed from" not in text:
        return Reason.MALFORMED, text.removeprefix("JSON parse error: ").removesuffix(" in row 0")
    if isinstance(refused, pa.ArrowException):
        return Reason.WRONG_TYPE, text.removeprefix("JSON parse error: ").removesuffix(" in row 0")
    return Reason.MALFORMED, text


def _reading_type(kind: pa.DataType) -> pa.DataType:
    """The type to parse as: dates are parsed as strings and cast, Arrow's reader takes them for numbers (measured)."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_reading_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_reading_type(field.type)) for field in kind])
    return kind


def _may_overflow(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_may_overflow(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _floats(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """The floating leaves inside a nested column."""
    arrays = list(column.chunks)
    while arrays:
        array = arrays.pop()
        if pa.types.is_floating(array.type):
            yield array
        elif pa.types.is_list(array.type):
            arrays.append(array.flatten())
        elif pa.types.is_struct(array.type):
            arrays.extend(array.flatten())
