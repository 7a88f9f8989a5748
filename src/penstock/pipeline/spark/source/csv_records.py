"""CSV records of several lines, and headers.

Records: a field that opens with the quote and is not closed on its line continues, as in RFC 4180 and Python's csv
module, to the line that closes it. Such a record is joined into one line, whose inner line breaks are bytes that UTF-8
does not have; the decoder turns them back (`join`, `parted`). A record that is not closed before the object ends is one
bad record with all its bytes. A record above the limit for one line makes the object unreadable, as a line above it
does.

Only the object's first byte is known to begin a record. A piece in the middle of an object assumes that it does not
begin inside quotes, and also computes how it would end if it did (`Quotes`). The driver checks the pieces of each
object in order; if an assumption was wrong, it has the object read again, cut at record boundaries (`Summary.recut`).

Headers: the first non-blank record names the columns of all lines after it. A piece that does not begin at the object's
first byte reads the header separately. Names are compared without case and surrounding blanks. A column that the header
does not name is NULL, and a name that is not a column is ignored. A header that names no column at all makes the object
unreadable: its rows would be made up.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import ObjectUnreadable
from penstock.events.objects import QuarantineReason
from penstock.objects.store import ObjectReader
from penstock.pipeline.spark.source.blocks import NEWLINE, RETURN, Flags, Lines
from penstock.pipeline.spark.source.contents import BOM, BadRecord, LineChunk, Quotes, is_utf16, read_lines, read_on
from penstock.pipeline.spark.source.csv_escapes import has_escape, is_escaped, rewritten_line, without_escapes
from penstock.pipeline.spark.source.csv_lines import Layout, Misquoted, is_blank, split
from penstock.pipeline.spark.source.inflate import codec_of
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions
from penstock.pipeline.spark.source.plan import Piece

_NEVER_CLOSED = "a quote that is not closed before the end of the object"

_HEADER_BYTES_MAX = 1 << 20  # including the blank lines before it
_FIRST_READ_BYTES = 16 << 10
_NAMES_SHOWN = 5
_BREAKS = re.compile(r"\s*[\r\n]+\s*")


# Stand for line breaks inside a joined record.
INNER_NEWLINE, INNER_RETURN = b"\xff", b"\xfe"
_JOIN = bytes.maketrans(b"\n\r", INNER_NEWLINE + INNER_RETURN)
_PART = bytes.maketrans(INNER_NEWLINE + INNER_RETURN, b"\n\r")

CsvPart = LineChunk | BadRecord | Quotes


def join(record: bytes) -> bytes:
    """Return a record of several lines as one line. The record is UTF-8 and ends with a newline."""
    ending = b"\r\n" if record.endswith(b"\r\n") else b"\n"
    return record.removesuffix(ending).translate(_JOIN) + ending


def parted(lines: bytes) -> bytes:
    """Return the lines that `join` joined, which have the same length."""
    return lines.translate(_PART)


def holds_joined(lines: bytes) -> bool:
    """Return True if some of the lines may be joined records; lines of UTF-8 are not."""
    return INNER_NEWLINE in lines or INNER_RETURN in lines


def oddly_quoted(data: npt.NDArray[np.uint8], lines: Lines, csv: CsvOptions) -> Flags:
    """Return a flag per line, set if its quotes are not regularly opened and closed; such a line may still be valid.

    On the other lines the number of quotes is even; the first, third, ... follows the line's start, a delimiter or the
    closing quote it doubles; the second, fourth, ... closes a field.
    """
    delimiter, quote = (csv.delimiter + csv.quote).encode()
    quotes = np.flatnonzero(data == quote)
    edge = np.zeros(256, dtype=np.bool_)
    edge[[delimiter, quote, NEWLINE, RETURN]] = True
    counts = np.diff(np.searchsorted(quotes, lines.ends), prepend=0)
    odd: Flags = counts % 2 == 1
    opening = (np.arange(len(quotes)) - np.repeat(np.cumsum(counts) - counts, counts)) % 2 == 0
    before = data[quotes - 1]  # for a quote that begins the block, index -1: the last newline
    irregular = ~np.where(opening, edge[before] & (before != RETURN), edge[data[quotes + 1]])
    if irregular.any():
        odd[np.searchsorted(lines.ends, quotes[irregular])] = True
    return odd


class Records:
    """The records of one piece. Used by the thread that reads it."""

    def __init__(self, csv: CsvOptions, *, from_start: bool, record_bytes_max: int, uri: str) -> None:
        """``from_start``: a record is known to begin where the piece does."""
        self._csv = csv
        self._quoting = _Quoting(csv)
        self._begun_within = None if from_start else _BegunWithin(self._quoting)
        self._record_bytes_max = record_bytes_max
        self._uri = uri
        self._open: _Open | None = None

    def cut(self, parts: Iterator[LineChunk], read_on: Callable[[int], Iterator[LineChunk]]) -> Iterator[CsvPart]:
        """Yield the chunks without records of several lines, those records joined, and `Quotes` at the end.

        ``read_on`` reads the object from an offset on, to complete a record: a piece owns the records that begin in it.
        Raises `ObjectUnreadable`.
        """
        end = 0
        for part in parts:
            if self._begun_within is not None:
                self._begun_within.add(part)
            end = part.offset + len(part.lines)
            yield from self._without_open(part)
        quotes = self._quotes()
        if self._open is not None:
            yield self._complete(self._open, read_on(end))
        yield quotes

    def _quotes(self) -> Quotes:
        ends_open = self._open is not None
        if self._begun_within is None:
            return Quotes(ends_open=ends_open, ends_open_if_open=ends_open, closes_at=None)
        return self._begun_within.quotes(ends_open=ends_open)

    def _without_open(self, part: LineChunk) -> Iterator[CsvPart]:
        at = 0
        if self._open is not None:
            at = self._go_on(self._open, part, 0)
            if at < 0:
                return
            yield self._close(self._open)
        begun = at  # start of the lines not yielded yet
        suspects = self._suspects(part.lines)
        for start in suspects:
            if start < at:
                continue
            at = part.lines.find(b"\n", start) + 1
            if not self._quoting.ends_open(part.lines, start, at, within=False):
                continue
            if begun < start:
                yield _slice(part, begun, start)
            self._open = _Open(part, start, at)
            at = begun = self._go_on(self._open, part, at)
            if at < 0:
                return
            yield self._close(self._open)
        if begun < len(part.lines) or not part.lines:
            yield replace(_slice(part, begun, len(part.lines)), plain=not suspects)

    def _suspects(self, lines: bytes) -> Sequence[int]:
        """Return the starts of the lines that may open a quote without closing it."""
        if self._csv.quote.encode() not in lines:
            return ()
        found = Lines.of(lines)
        data = np.frombuffer(lines, dtype=np.uint8)
        odd = oddly_quoted(data, found, self._csv)
        if has_escape(self._csv):
            odd[np.searchsorted(found.ends, np.flatnonzero(data == ord(self._csv.escape)))] = True
        starts: list[int] = found.starts[odd].tolist() if odd.any() else []
        return starts

    def _go_on(self, record: "_Open", part: LineChunk, at: int) -> int:
        """Add lines to the record up to the one that closes it. Return the end of that line, -1 if none closes it."""
        end = self._quoting.closing_line_end(part.lines, at)
        record.add(part.lines[at : end if end >= 0 else len(part.lines)])
        if record.size_bytes > self._record_bytes_max:
            raise ObjectUnreadable(
                f"{self._uri} has a quoted field at offset {record.offset} that does not end within "
                f"{self._record_bytes_max} bytes: its closing quote is probably missing"
            )
        return end

    def _close(self, record: "_Open") -> CsvPart:
        self._open = None
        return record.as_chunk()

    def _complete(self, record: "_Open", rest: Iterator[LineChunk]) -> CsvPart:
        for part in rest:
            if self._go_on(record, part, 0) >= 0:
                return self._close(record)
        self._open = None
        return record.refused() or record.as_bad(QuarantineReason.MALFORMED, _NEVER_CLOSED)


def read_parts(reader: ObjectReader, piece: Piece, options: ReadOptions) -> Iterator[CsvPart]:
    """Yield the lines of `read_lines` without the header line, each chunk with the header attached.

    An object with a header and no other line yields a chunk without lines.
    """
    if options.format != "csv":
        return read_lines(reader, piece, options)
    parts = _without_preamble(reader, piece, options)
    if not options.csv.quote:
        return parts
    compressed = codec_of(reader.ref) is not None
    records = Records(
        options.csv,
        from_start=piece.is_first or compressed,
        record_bytes_max=options.line_bytes_max,
        uri=reader.ref.uri,
    )
    whole = records.cut(parts, lambda offset: _rest(reader, offset, options))
    return _without_escapes(whole, options.csv) if has_escape(options.csv) else whole


def _rest(reader: ObjectReader, offset: int, options: ReadOptions) -> Iterator[LineChunk]:
    """Return the lines behind a piece; none for an object that is one piece, whose offsets are not its bytes'."""
    if codec_of(reader.ref) is not None or is_utf16(reader):
        return iter(())
    return read_on(reader, offset, options)


def _without_escapes(parts: Iterator[CsvPart], csv: CsvOptions) -> Iterator[CsvPart]:
    for part in parts:
        if isinstance(part, LineChunk):
            yield from without_escapes(part, csv)
        else:
            yield part


def layout_of(header: bytes, schema: pa.Schema, csv: CsvOptions, uri: str) -> Layout:
    """Map columns to fields; without a header, in the declared order. Raises `ObjectUnreadable`."""
    if not csv.header:
        return Layout(fields=len(schema), indexes=tuple(range(len(schema))))
    names = header_names(header, csv, uri)
    folded = [name.lower() for name in names]
    wanted = [field.name.strip().lower() for field in schema]
    indexes = tuple(folded.index(name) if name in folded else None for name in wanted)
    if indexes.count(None) == len(indexes):
        shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN])
        raise ObjectUnreadable(
            f"{uri} has a header that names no column of the schema, it begins {shown[:200]}: look at the delimiter, "
            "and whether there is a header"
        )
    return Layout(fields=len(names), indexes=indexes)


def header_names(header: bytes, csv: CsvOptions, uri: str) -> list[str]:
    """Return the columns' names, stripped, and with a blank for each line break. Raises `ObjectUnreadable`.

    A column without a name is called as Spark does, such as _c0; of equal names, the second is NAME_2 and so on.
    """
    found = _header_texts(header, csv, uri)
    names: list[str] = []
    known: set[str] = set()
    for number, name in enumerate(found):
        plain = name or f"_c{number}"
        unique = next(each for each in _numbered(plain) if each.lower() not in known)
        known.add(unique.lower())
        names.append(unique)
    return names


def unnamed_columns(header: bytes, csv: CsvOptions, uri: str) -> list[int]:
    """Return the places of columns without a name, from 0. Raises `ObjectUnreadable`."""
    return [number for number, name in enumerate(_header_texts(header, csv, uri)) if not name]


def _header_texts(header: bytes, csv: CsvOptions, uri: str) -> list[str]:
    """Return the texts of the header, stripped, and with a blank for each line break."""
    try:
        found = [_BREAKS.sub(" ", field.text.strip()) for field in split(header.decode(), csv)]
    except UnicodeDecodeError as error:
        raise ObjectUnreadable(f"{uri} has a header that is not UTF-8, at byte {error.start}") from error
    except Misquoted as error:
        raise ObjectUnreadable(f"{uri} has a header with {error}") from error
    return ["", *found] if csv.unnamed_first else found


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{number}" for number in count(2))


def _slice(part: LineChunk, start: int, end: int) -> LineChunk:
    if (start, end) == (0, len(part.lines)):
        return part
    return replace(part, lines=part.lines[start:end], offset=part.offset + start, marked=part.marked and start == 0)


class _Open:
    """A record with a quote that is not closed yet."""

    def __init__(self, part: LineChunk, start: int, end: int) -> None:
        self._offset = part.offset + start
        self._marked = part.marked and start == 0
        self._header = part.header
        self._lines = [part.lines[start:end]]
        self.size_bytes = end - start

    @property
    def offset(self) -> int:
        return 0 if self._marked else self._offset

    def add(self, lines: bytes) -> None:
        self._lines.append(lines)
        self.size_bytes += len(lines)

    def as_chunk(self) -> LineChunk | BadRecord:
        """Return the record as one line, or as a bad record if it is not UTF-8."""
        lines = join(b"".join(self._lines))
        return self.refused() or LineChunk(
            lines=lines, offset=self._offset, marked=self._marked, header=self._header, joined=True
        )

    def refused(self) -> BadRecord | None:
        """Return the record as a bad one if it is not UTF-8."""
        try:
            b"".join(self._lines).decode()
        except UnicodeDecodeError as error:
            return self.as_bad(QuarantineReason.INVALID_UTF8, f"at byte {error.start}")
        return None

    def as_bad(self, reason: QuarantineReason, detail: str) -> BadRecord:
        mark = BOM if self._marked else b""
        raw = mark + b"".join(self._lines).removesuffix(b"\n").removesuffix(b"\r")
        return BadRecord(offset=self.offset, raw=raw, reason=reason, detail=detail)


class _BegunWithin:
    """Tracks a piece under the assumption that it begins inside quotes.

    After a few lines with quotes the result is usually the same as without the assumption.
    """

    def __init__(self, quoting: "_Quoting") -> None:
        self._quoting = quoting
        self._without = False  # whether quotes are open, if the piece begins outside of quotes
        self._within = True  # whether quotes are open, if the piece begins inside of quotes
        self._closes_at: int | None = None

    def add(self, part: LineChunk) -> None:
        """Process the next lines; lines without a quote change nothing."""
        lines, at = part.lines, 0
        while self._closes_at is None or self._within != self._without:
            quote = lines.find(self._quoting.quote, at)
            if quote < 0:
                return
            start, at = lines.rfind(b"\n", 0, quote) + 1, lines.find(b"\n", quote) + 1
            self._without = self._quoting.ends_open(lines, start, at, within=self._without)
            self._within = self._quoting.ends_open(lines, start, at, within=self._within)
            if self._closes_at is None and not self._within:
                self._closes_at = part.offset + at

    def quotes(self, *, ends_open: bool) -> Quotes:
        same = self._within == self._without
        return Quotes(
            ends_open=ends_open,
            ends_open_if_open=ends_open if same else self._within,
            closes_at=self._closes_at,
        )


class _Quoting:
    """The quoting rule: a quote opens only at the start of a field, and two quotes inside quotes are one character.

    A comment opens none.
    """

    def __init__(self, csv: CsvOptions) -> None:
        self.quote = csv.quote.encode()
        self._escape = csv.escape.encode() if has_escape(csv) else b""
        self._comment = csv.comment.encode()
        self._opening = (csv.delimiter + csv.quote).encode()

    def ends_open(self, lines: bytes, start: int, end: int, *, within: bool) -> bool:
        """Return True if quotes are open at the end of the line; ``within``: they are open at its start."""
        at = start
        if not within:
            if self._comment and lines.startswith(self._comment, start):
                return False
            if lines.startswith(self.quote, start):
                at = start + 1
            elif (opening := lines.find(self._opening, start, end)) >= 0:
                at = opening + 2
            else:
                return False
        return self._line_end(lines, at, end) < 0

    def closing_line_end(self, lines: bytes, at: int) -> int:
        """Return the end of the line that closes the quotes open at ``at``; -1 if none does."""
        return self._line_end(lines, at, len(lines))

    def _line_end(self, lines: bytes, at: int, end: int) -> int:
        while (closing := self._closing(lines, at, end)) >= 0:
            newline = lines.find(b"\n", closing)
            opening = lines.find(self._opening, closing + 1, newline)
            if opening < 0:
                return newline + 1
            at = opening + 2
        return -1

    def _closing(self, lines: bytes, at: int, end: int) -> int:
        begin = at
        while (at := lines.find(self.quote, at, end)) >= 0:
            if self._escape and is_escaped(lines, at, begin, self._escape):
                at += 1
            elif not lines.startswith(self.quote, at + 1):
                return at
            else:
                at += 2
        return -1


def _without_preamble(reader: ObjectReader, piece: Piece, options: ReadOptions) -> Iterator[LineChunk]:
    """Yield the lines after the header and the skipped lines, with the header attached."""
    csv = options.csv
    if not csv.header and not csv.skip_lines:
        return read_lines(reader, piece, options)
    if piece.start == 0 or codec_of(reader.ref) is not None or is_utf16(reader):
        return _behind_preamble(read_lines(reader, piece, options), csv, reader.ref.uri)
    header, end = _preamble_apart(reader, csv)
    rest = Piece(object=piece.object, start=min(max(piece.start, end), piece.stop), stop=piece.stop)
    return (replace(part, header=header) for part in read_lines(reader, rest, options))


def _behind_preamble(parts: Iterator[LineChunk], csv: CsvOptions, uri: str) -> Iterator[LineChunk]:
    preamble = _Preamble(csv)
    before = 0  # bytes of skipped and blank lines before the header
    for part in parts:
        end = preamble.end(part.lines)
        before += len(part.lines) if end is None else end
        if before > _HEADER_BYTES_MAX:
            raise _no_header(uri)
        if end is None:
            continue
        header = preamble.header
        yield LineChunk(lines=part.lines[end:], offset=part.offset + end, header=header)
        yield from (replace(later, header=header) for later in parts)
        return
    if preamble.is_open:
        raise ObjectUnreadable(f"{uri} has a header with a quote that is not closed")


def _preamble_apart(reader: ObjectReader, csv: CsvOptions) -> tuple[bytes, int]:
    """Return the header of a plain object and the offset of the line after it."""
    data = reader.pread(0, _FIRST_READ_BYTES)
    mark = len(BOM) if data.startswith(BOM) else 0
    while True:
        preamble = _Preamble(csv)
        end = preamble.end(data[mark:])
        if end is not None:
            return preamble.header, mark + end
        if len(data) > _HEADER_BYTES_MAX:
            raise _no_header(reader.ref.uri)
        more = reader.pread(len(data), len(data))
        if not more:
            return b"", len(data)  # only blank lines, or a header without any line after it
        data += more


class _Preamble:
    """The lines before the data: skipped ones, then the header, which is the first record that is not blank."""

    def __init__(self, csv: CsvOptions) -> None:
        self._csv = csv
        self._quoting = _Quoting(csv) if csv.quote else None
        self._to_skip = csv.skip_lines
        self._begun = b""  # lines of a header whose quotes are open
        self.header = b""

    @property
    def is_open(self) -> bool:
        """True if a quote of the header is not closed so far."""
        return bool(self._begun)

    def end(self, lines: bytes) -> int | None:
        """Return where the data begins in these lines, which continue those given before; None if it does not."""
        if self._begun:
            return self._header_end(lines, 0, 0)
        start = 0
        while self._to_skip or self._csv.header:
            newline = lines.find(b"\n", start)
            if newline < 0:
                return None
            begin, start = start, newline + 1
            if self._to_skip:
                self._to_skip -= 1
            elif not is_blank(lines[begin:newline], self._csv):
                return self._header_end(lines, begin, start)
        return start

    def _header_end(self, lines: bytes, begin: int, end: int) -> int | None:
        """Return the end of the header, whose first line ends at ``end`` if it begins in these lines."""
        quoting = self._quoting
        if quoting is not None and (self._begun or quoting.ends_open(lines, begin, end, within=False)):
            end = quoting.closing_line_end(lines, end)
            if end < 0:
                self._begun += lines[begin:]
                return None
        header = (self._begun + lines[begin:end]).removesuffix(b"\n").removesuffix(b"\r")
        self._begun = b""
        self.header = rewritten_line(header, self._csv) if has_escape(self._csv) else header
        return end


def _no_header(uri: str) -> ObjectUnreadable:
    return ObjectUnreadable(f"{uri} has no header within its first {_HEADER_BYTES_MAX} bytes")
