"""The header of an object of CSV: the first line that is not blank names the columns of all that follow.

A piece of a split object that does not begin at the object's first byte reads the header apart. Names are compared
without regard to case and to blanks around them. A column that the header does not name is NULL, a name that is no
column is not looked at; but a header that names no column at all, or one of them twice, makes the object unreadable:
its rows would be made up.
"""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from penstock.errors import ObjectUnreadable
from penstock.objects.store import ObjectReader
from penstock.pipeline.source.contents import BOM, Part, read_lines, read_on
from penstock.pipeline.source.csv_lines import Layout, Misquoted, is_blank, split
from penstock.pipeline.source.inflate import codec_of
from penstock.pipeline.source.options import CsvOptions, ReadOptions
from penstock.pipeline.source.plan import Piece
from penstock.pipeline.source.records import Records

_HEADER_BYTES_MAX = 1 << 20  # with the blank lines before it
_FIRST_READ_BYTES = 16 << 10
_NAMES_TOLD = 5


def read_parts(reader: ObjectReader, piece: Piece, options: ReadOptions) -> Iterator[Part]:
    """The lines of `read_lines`, where there is a header without it, and each part with it.

    An object that has a header and no line more gives a part without lines. Records of CSV that go on over several
    lines come as bad ones.
    """
    if options.format != "csv":
        return read_lines(reader, piece, options)
    parts = _with_header(reader, piece, options) if options.csv.header else read_lines(reader, piece, options)
    if not options.csv.quote:
        return parts
    compressed = codec_of(reader.ref) is not None
    records = Records(
        options.csv,
        from_start=piece.start == 0 or compressed,
        record_bytes_max=options.line_bytes_max,
        uri=reader.ref.uri,
    )
    return records.cut(parts, lambda offset: iter(()) if compressed else read_on(reader, offset, options))


def _with_header(reader: ObjectReader, piece: Piece, options: ReadOptions) -> Iterator[Part]:
    if piece.start == 0 or codec_of(reader.ref) is not None:
        return _behind_header(read_lines(reader, piece, options), options.csv, reader.ref.uri)
    header, end = _header_apart(reader, options.csv)
    rest = Piece(object=piece.object, start=min(max(piece.start, end), piece.stop), stop=piece.stop)
    return (replace(part, header=header) for part in read_lines(reader, rest, options))


def layout_of(header: bytes, schema: pa.Schema, csv: CsvOptions, uri: str) -> Layout:
    """Which field is which column; without a header they come as declared. Raises `ObjectUnreadable`."""
    if not csv.header:
        return Layout(fields=len(schema), places=tuple(range(len(schema))))
    names = header_names(header, csv, uri)
    folded = [name.lower() for name in names]
    wanted = [field.name.strip().lower() for field in schema]
    for name in wanted:
        if folded.count(name) > 1:
            raise ObjectUnreadable(f"{uri} has a header that names the column {name!r} twice")
    places = tuple(folded.index(name) if name in folded else None for name in wanted)
    if places.count(None) == len(places):
        told = ", ".join(repr(name) for name in names[:_NAMES_TOLD])
        raise ObjectUnreadable(
            f"{uri} has a header that names no column of the schema, it begins {told[:200]}: look at the delimiter, "
            "and whether there is a header"
        )
    return Layout(fields=len(names), places=places)


def header_names(header: bytes, csv: CsvOptions, uri: str) -> list[str]:
    """The names as written, without the blanks around them. Raises `ObjectUnreadable`."""
    try:
        return [field.text.strip() for field in split(header.decode(), csv)]
    except UnicodeDecodeError as error:
        raise ObjectUnreadable(f"{uri} has a header that is not UTF-8, at byte {error.start}") from error
    except Misquoted as error:
        raise ObjectUnreadable(f"{uri} has a header with {error}") from error


def _behind_header(parts: Iterator[Part], csv: CsvOptions, uri: str) -> Iterator[Part]:
    before = 0  # bytes of blank lines
    for part in parts:
        span = _header_span(part.lines, csv)
        if (before + span[1] if span else before) > _HEADER_BYTES_MAX:
            raise _no_header(uri)
        if span is None:
            before += len(part.lines)
            continue
        start, end = span
        header = part.lines[start:end].removesuffix(b"\n").removesuffix(b"\r")
        yield Part(lines=part.lines[end:], offset=part.offset + end, header=header)
        yield from (replace(later, header=header) for later in parts)


def _header_apart(reader: ObjectReader, csv: CsvOptions) -> tuple[bytes, int]:
    """The header of a plain object, and where the line behind it begins."""
    data = reader.pread(0, _FIRST_READ_BYTES)
    mark = len(BOM) if data.startswith(BOM) else 0
    while (span := _header_span(data[mark:], csv)) is None:
        if len(data) > _HEADER_BYTES_MAX:
            raise _no_header(reader.ref.uri)
        more = reader.pread(len(data), len(data))
        if not more:
            return b"", len(data)  # blank lines, or a header and no line more
        data += more
    start, end = span
    return data[mark + start : mark + end].removesuffix(b"\n").removesuffix(b"\r"), mark + end


def _header_span(lines: bytes, csv: CsvOptions) -> tuple[int, int] | None:
    """Where the first whole line is that is not blank."""
    start = 0
    while (newline := lines.find(b"\n", start)) >= 0:
        if not is_blank(lines[start:newline], csv):
            return start, newline + 1
        start = newline + 1
    return None


def _no_header(uri: str) -> ObjectUnreadable:
    return ObjectUnreadable(f"{uri} has no header within its first {_HEADER_BYTES_MAX} bytes")
