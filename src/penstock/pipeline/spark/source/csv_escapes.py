r"""CSV with an escape character, as Spark writes it: `"a \"quoted\" word"`.

Inside quotes, the escape character makes a quote or an escape character behind it literal. Everywhere else it is a
character like any other. A doubled quote is one quote too, as without an escape.

Records are rewritten as RFC 4180 has them before they are decoded, so that one rule splits all lines into fields.
`\"` becomes `""`, which is as long; `\\` becomes `\`, and a chunk ends with such a line, so that the lines of a chunk
begin where they begin in the object. Bad lines go to quarantine as the object has them.
"""

import csv as csv_module
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from penstock.pipeline.spark.source.contents import LineChunk
from penstock.pipeline.spark.source.options import CsvOptions

BACKSLASH = "\\"
_RECORDS_MAX = 1_000
_SHARE_MIN = 0.75  # of the records that have the same number of fields
_CUT_OFF = "unexpected end of data"  # Python's message for a quote that is open at the end


def has_escape(csv: CsvOptions) -> bool:
    """Return True if the dialect has an escape character of its own."""
    return bool(csv.quote and csv.escape and csv.escape != csv.quote)


def is_escaped(lines: bytes, at: int, begin: int, escape: bytes) -> bool:
    """Return True if the byte at ``at`` is escaped within the quoted text that begins at ``begin``."""
    before = at
    while before > begin and lines.startswith(escape, before - 1):
        before -= 1
    return (at - before) % 2 == 1


def without_escapes(part: LineChunk, csv: CsvOptions) -> Iterator[LineChunk]:
    """Yield the same lines without escapes."""
    lines, escapes = part.lines, _escapes(csv.quote, csv.escape)
    if not escapes.search(lines):
        yield part
        return
    rewritten: list[bytes] = []
    begun = at = 0  # of the chunk, and of the lines that are not rewritten yet
    while (found := escapes.search(lines, at)) is not None:
        start, end = lines.rfind(b"\n", at, found.start()) + 1 or at, lines.find(b"\n", found.start()) + 1
        line = rewritten_line(lines[start:end], csv)
        rewritten += (lines[at:start], line)
        at = end
        if len(line) != end - start:
            yield _chunk(part, begun, end, b"".join(rewritten))
            rewritten, begun = [], end
    if begun < len(lines):
        yield _chunk(part, begun, len(lines), b"".join((*rewritten, lines[at:])))


def rewritten_line(line: bytes, csv: CsvOptions) -> bytes:
    """Return a record without escapes; from a misplaced quote on as it is."""
    quote, escape, delimiter = csv.quote.encode(), csv.escape.encode(), csv.delimiter.encode()
    found: list[bytes] = []
    at = 0
    while True:
        if line.startswith(quote, at):
            begin = at + 1
            end = _closing(line, begin, quote, escape)
            if end < 0:
                return b"".join((*found, line[at:]))
            inner = _escapes(csv.quote, csv.escape).sub(lambda pair: _plain(pair[0], quote), line[begin:end])
            found += (quote, inner, quote)
            at = end + 1
        end = line.find(delimiter, at)
        if end < 0 or (at and end > at and line.startswith(quote, at - 1)):
            return b"".join((*found, line[at:]))
        found.append(line[at : end + 1])
        at = end + 1


def detected_escape(text: str, csv: CsvOptions, delimiters: Sequence[str]) -> bool:
    """Return True if the sample can only be read with a backslash as escape character."""
    if not csv.quote or f"{BACKSLASH}{csv.quote}" not in text:
        return False
    without, with_it = (
        max(_fields(text, csv, delimiter, escape) for delimiter in delimiters) for escape in (None, BACKSLASH)
    )
    return with_it > without


def _fields(text: str, csv: CsvOptions, delimiter: str, escape: str | None) -> int:
    """Return the number of fields of most records; 0 if quotes are misplaced, or if records differ too much."""
    lines = io.StringIO(text, newline="")
    reader = csv_module.reader(lines, delimiter=delimiter, quotechar=csv.quote, escapechar=escape, strict=True)
    counts: Counter[int] = Counter()
    try:
        for number, record in enumerate(reader):
            counts[len(record)] += bool(record)
            if number >= _RECORDS_MAX:
                break
    except csv_module.Error as error:
        if str(error) != _CUT_OFF:
            return 0
    if not counts.total():
        return 0
    fields, number = counts.most_common(1)[0]
    return fields if number >= _SHARE_MIN * counts.total() else 0


@lru_cache
def _escapes(quote: str, escape: str) -> re.Pattern[bytes]:
    """Return the expression for an escaped quote or escape character, and for a doubled quote."""
    one, other = re.escape(quote.encode()), re.escape(escape.encode())
    return re.compile(other + b"[" + one + other + b"]")


def _plain(pair: bytes, quote: bytes) -> bytes:
    return quote * 2 if pair.endswith(quote) else pair[1:]


def _closing(line: bytes, begin: int, quote: bytes, escape: bytes) -> int:
    at = begin
    while (at := line.find(quote, at)) >= 0:
        if is_escaped(line, at, begin, escape):
            at += 1
        elif line.startswith(quote, at + 1):
            at += 2
        else:
            return at
    return -1


def _chunk(part: LineChunk, start: int, end: int, lines: bytes) -> LineChunk:
    return replace(
        part,
        lines=lines,
        offset=part.offset + start,
        marked=part.marked and start == 0,
        plain=False,
        original=part.lines[start:end],
    )
