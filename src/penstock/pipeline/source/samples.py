"""What the first lines of some objects hold, as values whose kinds can be counted."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from penstock.errors import ObjectError
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectStore
from penstock.pipeline.source.contents import Part
from penstock.pipeline.source.csv_lines import FALSE_TEXTS, TRUE_TEXTS, Field, Misquoted, is_blank, null_texts, split
from penstock.pipeline.source.headers import header_names, read_parts
from penstock.pipeline.source.inflate import codec_of
from penstock.pipeline.source.options import CsvOptions, ReadOptions
from penstock.pipeline.source.plan import Piece

_OBJECTS_MAX = 20
_LINES_MAX = 1_000  # of one object
_BYTES_MAX = 1 << 20  # of one object
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")  # 007 is rather a name than a number
_REAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_DIGITS_MAX = 40

Sample = Mapping[str, Any]


def samples(objects: Sequence[ObjectRef], store: ObjectStore, options: ReadOptions) -> Iterator[Sample]:
    """Names and values of the first lines of some objects, spread over all that there are."""
    options = ReadOptions(format=options.format, csv=options.csv, block_bytes=_BYTES_MAX, inflated_bytes_verified_max=0)
    step = max(1, len(objects) // _OBJECTS_MAX)
    for ref in islice(objects[::step], _OBJECTS_MAX):
        try:
            parts = _first_parts(ref, store, options)
            names = header_names(parts[0].header, options.csv, ref.uri) if parts else []
        except ObjectError:
            continue  # it will fail, and be told of, when its turn comes
        lines = b"".join(part.lines for part in parts).split(b"\n")[:_LINES_MAX]
        if options.format == "csv":
            yield from _csv_samples(lines, names, options.csv)
        else:
            yield from _json_samples(lines)


def _first_parts(ref: ObjectRef, store: ObjectStore, options: ReadOptions) -> list[Part]:
    stop = ref.size_bytes if codec_of(ref) else min(ref.size_bytes, _BYTES_MAX)
    parts: list[Part] = []
    lines = size_bytes = 0
    with store.open(ref) as reader:
        for part in read_parts(reader, Piece(object=0, start=0, stop=stop), options):
            parts.append(part)
            lines += part.lines.count(b"\n")
            size_bytes += len(part.lines)
            if lines > _LINES_MAX or size_bytes >= _BYTES_MAX:
                break
    return parts


def _json_samples(lines: Sequence[bytes]) -> Iterator[Sample]:
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _csv_samples(lines: Sequence[bytes], header: Sequence[str], csv: CsvOptions) -> Iterator[Sample]:
    """A header alone names columns, too. A name it gives twice is left out: the object could not be read with it."""
    folded = [name.lower() for name in header]
    names = [name if folded.count(name.lower()) == 1 else "" for name in header]
    if csv.header:
        yield dict.fromkeys(filter(None, names))
    for line in lines:
        try:
            fields = [] if is_blank(line, csv) else split(line.decode().removesuffix("\r"), csv)
        except (Misquoted, UnicodeDecodeError):
            continue
        if not csv.header:
            names = [f"_c{number}" for number in range(len(fields))]  # as Spark names them
        if fields and len(fields) == len(names):
            yield {name: _value(field, csv) for name, field in zip(names, fields, strict=True) if name}


def _value(field: Field, csv: CsvOptions) -> Any:
    """The value that a JSON reader would have been given."""
    text = field.text.strip()
    if field.text in null_texts(csv):
        return None
    if _WHOLE.fullmatch(text):
        return int(text) if len(text) <= _DIGITS_MAX else field.text
    if _REAL.fullmatch(text):
        return float(text)
    if field.text in TRUE_TEXTS or field.text in FALSE_TEXTS:
        return field.text in TRUE_TEXTS
    return field.text
