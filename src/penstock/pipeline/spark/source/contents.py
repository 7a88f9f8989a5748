"""Turn an open object into `LineChunk`s: runs of whole lines with their offset in the object.

A chunk is released only once it is verified as far as promised. A plain object or piece that fits a block is read and
verified first, and so is a compressed object that inflates to no more than the limit. Larger ones stream and are
verified at their end.

An object that begins with a byte order mark of UTF-16 is read as UTF-8, whole with its first piece. Offsets in it are
those of its text in UTF-8.
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from penstock.errors import ObjectCorrupt, ObjectUnreadable
from penstock.events.objects import QuarantineReason
from penstock.objects.store import ObjectReader
from penstock.pipeline.spark.source.inflate import CODECS, codec_begun, codec_of, inflate
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import Piece

BOM = b"\xef\xbb\xbf"
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_UTF32 = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
_SEARCH_BYTES = 64 << 10  # per read while searching for a newline
_BEGINNING_BYTES = 16  # tells what an object is
_ZIP_SUFFIX = b".zip"
_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")  # an archive; an empty archive


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """Several lines that form one record but no row. ``raw`` has all its bytes without the last line ending."""

    offset: int
    raw: bytes
    reason: QuarantineReason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotes:
    """The state of quotes behind the lines that begin in a piece. The driver evaluates it (see csv_records.py)."""

    ends_open: bool  # a record that begins in the piece continues after its last line
    ends_open_if_open: bool  # the same, if the piece begins inside quotes
    # in that case: where the first line after the closing quote begins; None if the piece does not close them
    closes_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChunk:
    """Whole lines of one object, each with its newline (added to the object's last line if missing).

    ``offset`` is the position of ``lines`` in the (inflated) object. A byte order mark at the object's start is left
    out; then ``offset`` is 3 and ``marked`` is set, but the first line still counts as beginning at 0. ``header`` is
    the line with the object's column names, if it has one (see csv_records.py). ``plain``: every CSV line opens and
    closes its quotes regularly and needs no second check. ``joined``: one CSV record of several lines, see
    `csv_records.join`. ``original``: the lines as the object has them, if escapes were removed from ``lines``.
    """

    lines: bytes
    offset: int
    marked: bool = False
    header: bytes = b""
    plain: bool = False
    joined: bool = False
    original: bytes | None = None


def read_lines(reader: ObjectReader, piece: Piece, options: ReadOptions) -> Iterator[LineChunk]:
    """Yield the lines that begin in the piece, in order. Raises the store's `ObjectError`, and `ObjectUnreadable`."""
    uri = reader.ref.uri
    codec = codec_of(reader.ref)
    if reader.ref.key_bytes.lower().endswith(_ZIP_SUFFIX):
        raise _zipped(uri)
    if codec is not None:
        chunks = _corrupt_if_verified(
            reader,
            inflate(
                reader.read, codec, piece_bytes=options.block_bytes, total_bytes_max=options.inflated_bytes_max, uri=uri
            ),
        )
        held_bytes_max, start = options.inflated_bytes_verified_max, 0
    else:
        stop = piece.stop
        if (piece.start, stop) != (0, reader.ref.size_bytes) and is_utf16(reader):
            if piece.start or not stop:
                return iter(())
            stop = reader.ref.size_bytes
        start = first_line(reader, piece)
        chunks = _piece_chunks(reader, start, stop, options.block_bytes)
        held_bytes_max = options.block_bytes
        if stop - start > held_bytes_max:  # it will stream, so its first chunk does not wait for the second
            held_bytes_max = 0
        if start == 0:
            chunks = _undisguised(chunks, uri)
    verified = _verified(reader, chunks, held_bytes_max)
    if start == 0:
        verified = _as_utf8(verified, uri)
    return _whole_lines(verified, start, options.line_bytes_max, uri)


def is_utf16(reader: ObjectReader) -> bool:
    """Return True if a plain object begins with a byte order mark of UTF-16."""
    return reader.pread(0, len(UTF16_MARKS[0])) in UTF16_MARKS


def whole(reader: ObjectReader, options: ReadOptions, *, inflated: bool = True) -> bytes:
    """Return the verified bytes of an object, inflated if its name says so. Raises as `read_lines` does."""
    ref, size_bytes_max = reader.ref, options.whole_bytes_max
    codec = codec_of(ref) if inflated else None
    if ref.size_bytes > size_bytes_max:
        raise ObjectUnreadable(f"{ref.uri} has {ref.size_bytes} bytes, more than the {size_bytes_max} read at once")
    if codec is None:
        data = reader.pread(0, ref.size_bytes)
    else:
        chunks = inflate(
            reader.read, codec, piece_bytes=options.block_bytes, total_bytes_max=size_bytes_max, uri=ref.uri
        )
        data = b"".join(_corrupt_if_verified(reader, chunks))
    reader.verify()
    if codec is None and inflated:
        _check_undisguised(data, ref.uri)
    return data


def beginning(reader: ObjectReader, size_bytes: int) -> bytes:
    """Return the first bytes of an object, inflated if its name says so. Raises as `read_lines` does."""
    codec = codec_of(reader.ref)
    if codec is None:
        return reader.pread(0, size_bytes)
    chunks = inflate(reader.read, codec, piece_bytes=size_bytes, total_bytes_max=1 << 62, uri=reader.ref.uri)
    return next(chunks, b"")


def read_on(reader: ObjectReader, offset: int, options: ReadOptions) -> Iterator[LineChunk]:
    """Yield the lines of a plain object from a line start on, each chunk verified. Raises as `read_lines` does."""
    chunks = _piece_chunks(reader, offset, reader.ref.size_bytes, options.block_bytes)
    for part in _whole_lines(chunks, offset, options.line_bytes_max, reader.ref.uri):
        reader.verify()
        yield part


def damaged(reader: ObjectReader, format_name: str, reason: str) -> ObjectCorrupt:
    """Return the error for an object that is not of its format, which is one that is not inflated.

    The error names an object that is compressed as a whole. Raises the store's `ObjectError`.
    """
    uri = reader.ref.uri
    codec = codec_begun(reader.pread(0, _BEGINNING_BYTES))
    reader.verify()
    if codec is None:
        return ObjectCorrupt(f"{uri} cannot be read as {format_name}: {reason}")
    return ObjectCorrupt(
        f"{uri} is compressed with {codec.name} as a whole, and {format_name} is not read so: decompress it "
        f"({format_name} compresses its own data)"
    )


def first_line(reader: ObjectReader, piece: Piece) -> int:
    """Return the start of the first line that begins in the piece; the piece's end if none does."""
    if piece.start == 0:
        return 0
    at = piece.start - 1  # a newline there makes the piece's first byte the start of a line
    while at < piece.stop - 1:
        data = reader.pread(at, min(_SEARCH_BYTES, piece.stop - 1 - at))
        found = data.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(data)
        if not data:
            break
    return piece.stop


def _piece_chunks(reader: ObjectReader, start: int, stop: int, block_bytes: int) -> Iterator[bytes]:
    """Yield the bytes from ``start`` to the end of the last line that begins before ``stop``."""
    at = start
    data = b"\n"
    while at < stop:
        data = reader.pread(at, min(block_bytes, stop - at))
        if not data:
            return
        yield data
        at += len(data)
    while not data.endswith(b"\n"):
        data = reader.pread(at, _SEARCH_BYTES)
        if not data:
            return
        data = data[: data.find(b"\n") + 1] or data
        yield data
        at += len(data)


def _undisguised(chunks: Iterator[bytes], uri: str) -> Iterator[bytes]:
    """Yield the chunks of an object named as plain lines. Raises `ObjectUnreadable` as `_check_undisguised` does."""
    for number, chunk in enumerate(chunks):
        if number == 0:
            _check_undisguised(chunk, uri)
        yield chunk


def _check_undisguised(beginning: bytes, uri: str) -> None:
    """Raise `ObjectUnreadable` if an object named as plain text begins like an archive or a compressed object."""
    if beginning.startswith(_ZIP_MAGICS):
        raise _zipped(uri)
    codec = codec_begun(beginning)
    if codec is not None:
        suffix = codec.suffixes[0].decode()
        raise ObjectUnreadable(f"{uri} is {codec.name} and not named so: give it a name that ends in {suffix}")


def _as_utf8(chunks: Iterator[bytes], uri: str) -> Iterator[bytes]:
    """Yield the chunks of a whole object, as UTF-8 if it begins with a byte order mark of UTF-16."""
    beginning = b""
    for chunk in chunks:
        beginning += chunk
        if len(beginning) >= len(_UTF32[0]):
            break
    if beginning.startswith(_UTF32):
        raise ObjectUnreadable(f"{uri} is UTF-32, which is not read: convert it to UTF-8")
    if not beginning.startswith(UTF16_MARKS):
        if beginning:
            yield beginning
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder("utf-16")()
    at = 0
    try:
        for chunk in chain((beginning,), chunks):
            yield decoder.decode(chunk).encode()
            at += len(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise ObjectUnreadable(
            f"{uri} is not UTF-16 as its first bytes say, after byte {at}: {error.reason}"
        ) from error


def _corrupt_if_verified(reader: ObjectReader, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks. Before `ObjectCorrupt` is raised, verify that the bytes read are of this version."""
    try:
        yield from chunks
    except ObjectCorrupt:
        reader.verify()
        raise


def _verified(reader: ObjectReader, chunks: Iterator[bytes], held_bytes_max: int) -> Iterator[bytes]:
    """Yield the chunks, held until the object is verified or they exceed ``held_bytes_max`` and must stream."""
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size > held_bytes_max:
            break
    else:
        reader.verify()
    held.reverse()
    while held:
        yield held.pop()
    if size > held_bytes_max:
        yield from chunks
        reader.verify()


def _whole_lines(chunks: Iterator[bytes], offset: int, line_bytes_max: int, uri: str) -> Iterator[LineChunk]:
    rest: list[bytes] = []  # the start of a line whose end is still to come
    rest_bytes = 0
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        if rest_bytes + (cut and chunk.find(b"\n", 0, cut)) > line_bytes_max:
            raise _too_long(uri, offset, line_bytes_max)
        if cut:
            whole = chunk if cut == len(chunk) else memoryview(chunk)[:cut]  # a view: only the join copies the lines
            lines = b"".join((*rest, whole))
            yield _part(lines, offset)
            offset += len(lines)
            rest, rest_bytes = [], 0
        if cut < len(chunk):
            rest.append(chunk[cut:] if cut else chunk)
            rest_bytes += len(rest[-1])
        if rest_bytes > line_bytes_max:
            raise _too_long(uri, offset, line_bytes_max)
    last = b"".join((*rest, b"\n"))
    if rest and (offset, last) != (0, BOM + b"\n"):
        yield _part(last, offset)


def _part(lines: bytes, offset: int) -> LineChunk:
    if offset == 0 and lines.startswith(BOM):
        return LineChunk(lines=lines[len(BOM) :], offset=len(BOM), marked=True)
    return LineChunk(lines=lines, offset=offset)


def _too_long(uri: str, offset: int, line_bytes_max: int) -> ObjectUnreadable:
    return ObjectUnreadable(f"{uri} has a line of more than {line_bytes_max} bytes at offset {offset}")


def _zipped(uri: str) -> ObjectUnreadable:
    names = ", ".join(suffix.decode() for codec in CODECS for suffix in codec.suffixes)
    return ObjectUnreadable(f"{uri} is a zip archive, which is not read: unpack it, or compress each file ({names})")
