"""Read JSON documents: an array of objects, one object, or several values one after the other. A row is one object.

An object is one unit, so a position is the row's number in it. Each value is cut out as text and decoded as a line of
JSON lines, by the same rules (jsonl_lines.py). A document that is not JSON fails as a whole: its rows before the fault
may be only half of it.
"""

import codecs
import json
from collections.abc import Generator, Iterator

import numpy as np

from penstock.errors import ObjectCorrupt, ObjectUnreadable
from penstock.objects.store import ObjectReader
from penstock.pipeline.spark.source.blocks import Decoded
from penstock.pipeline.spark.source.contents import whole
from penstock.pipeline.spark.source.ddl import parse_ddl
from penstock.pipeline.spark.source.json_values import as_python_reads
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import Piece
from penstock.pipeline.spark.source.rescue import open_jsonl

_WHITESPACE = " \t\n\r"
_ONE_LINE = str.maketrans("\n\r", "  ")  # outside of strings, where JSON allows no line break
_SCANNER = json.JSONDecoder(parse_int=str, parse_float=str)  # Python refuses whole numbers of many digits
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class JsonDocuments:
    """Reads JSON documents. Used by one thread."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._decoder = open_jsonl(parse_ddl(options.schema_ddl), options)

    def read(self, reader: ObjectReader, piece: Piece) -> Iterator[Decoded]:  # noqa: ARG002 # an object is one piece
        """Yield the values of the object, verified. Raises the store's `ObjectError`."""
        lines: list[bytes] = []
        size_bytes = first = 0
        for line in document_lines(reader, self._options):
            if lines and size_bytes + len(line) > self._options.block_bytes:
                yield self._decoded(lines, first)
                first += len(lines)
                lines, size_bytes = [], 0
            lines.append(line)
            size_bytes += len(line)
        if lines:
            yield self._decoded(lines, first)

    def _decoded(self, lines: list[bytes], first: int) -> Decoded:
        decoded = self._decoder.decode(b"".join(lines))
        begins = np.cumsum([0, *map(len, lines)])
        return decoded.moved(lambda starts: np.searchsorted(begins, starts) + first)


def document_lines(reader: ObjectReader, options: ReadOptions) -> Iterator[bytes]:
    """Yield each value of a document as one line of JSON. Raises the store's `ObjectError`."""
    uri = reader.ref.uri
    text = _decoded_text(whole(reader, options), uri)
    try:
        for start, stop in _spans(as_python_reads(text)):
            yield text[start:stop].translate(_ONE_LINE).encode("utf-8", errors="surrogatepass") + b"\n"
    except json.JSONDecodeError as error:
        raise ObjectCorrupt(
            f"{uri} is not JSON: {error.msg} at line {error.lineno}, character {error.colno}"
        ) from error
    except RecursionError as error:
        raise ObjectUnreadable(f"{uri} is JSON nested too deeply") from error


def looks_like_document(beginning: bytes) -> bool:
    """Return True if JSON that begins so is a document rather than lines of objects."""
    text = beginning.removeprefix(codecs.BOM_UTF8).lstrip()
    if not text.startswith(b"{"):
        return text.startswith((b"[", *_UTF16))
    first, newline, _ = text.partition(b"\n")
    line = first.decode("utf-8", errors="replace").rstrip()
    try:
        _SCANNER.decode(line)
    except json.JSONDecodeError as error:
        # an object that continues after its first line, or a second one on it; other faults are those of a bad line
        return bool(newline) and (error.pos >= len(line) or error.msg == "Extra data")
    except RecursionError:
        return False
    return False


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each value begins and ends: the elements of arrays, and values that are not arrays."""
    at = _blank_end(text, 0)
    while at < len(text):
        if text[at] != "[":
            _, stop = _SCANNER.raw_decode(text, at)
            yield at, stop
        else:
            stop = yield from _elements(text, at)
        at = _blank_end(text, stop)


def _elements(text: str, at: int) -> Generator[tuple[int, int], None, int]:
    """Yield where the elements of the array at ``at`` begin and end; return its end."""
    at = _blank_end(text, at + 1)
    if text.startswith("]", at):
        return at + 1
    while True:
        _, stop = _SCANNER.raw_decode(text, at)
        yield at, stop
        at = _blank_end(text, stop)
        if text.startswith("]", at):
            return at + 1
        if not text.startswith(",", at):
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _blank_end(text, at + 1)


def _blank_end(text: str, at: int) -> int:
    while at < len(text) and text[at] in _WHITESPACE:
        at += 1
    return at


def _decoded_text(data: bytes, uri: str) -> str:
    encoding, name = ("utf-16", "UTF-16") if data.startswith(_UTF16) else ("utf-8-sig", "UTF-8")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ObjectCorrupt(f"{uri} is not {name}, at byte {error.start}") from error
