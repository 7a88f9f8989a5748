"""The formats of the table in test_cells.py: how each writes rows, and how another library reads its files.

A row has ``id`` (a whole number), ``name`` (a text), ``price`` (a decimal) and maybe ``more`` (a whole number). Instead
of a number it may have one of `NO_NUMBERS`. Files of text and binary files hold the same rows as lines of JSON.
"""

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from xml.dom import minidom

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from penstock import SourceObject
from penstock.pipeline.spark.source.report import FailureKind

Row = Mapping[str, Any]
Placed = list[tuple[int, dict[str, Any]]]  # rows with their place in the file

NO_NUMBERS = ("x", "seven")
_DDL = "id BIGINT, name STRING, price DECIMAL(9,2)"
_PRICE = pa.decimal128(9, 2)
_BLOCK_BYTES = 2_000  # of Avro; several in every file
_GROUP_ROWS = 100  # of Parquet
_AVRO_POSITION_BITS = 23


@dataclass(frozen=True)
class BadLine:
    """The last line of a damaged file is a bad line, and the others are rows. ``detail`` is a pattern."""

    reason: str
    detail: str


@dataclass(frozen=True)
class Fails:
    """The file fails and gives no row. ``reason`` is a pattern for what follows its name."""

    reason: str
    kind: FailureKind = FailureKind.CORRUPT  # at its first attempt, since another one would read the same bytes


@dataclass(frozen=True)
class Unnoticed:
    """The file is read as it is: nothing tells the damage."""


Outcome = BadLine | Fails | Unnoticed


@dataclass(frozen=True, kw_only=True)
class CellFormat:
    """A format of the table: how to write it, the oracle that reads it, and what is expected of the product."""

    write: Callable[[Sequence[Row]], bytes]
    read: Callable[[bytes], Placed]  # with values in the types of the columns
    format: str  # as the product calls it
    ddl: str = _DDL
    reader: str = ""
    compressed: Fails | None = None  # an object that is compressed as a whole; None: it is decompressed
    is_cut: bool = True  # a large object is read in several pieces
    cut_off: Outcome  # a file that ends within its last record
    overwritten: Outcome  # a file whose last bytes are 0xFF
    last_record: Callable[[bytes], int]  # returns where the last record begins; of Avro, the last block
    ends_before_it: Outcome = Unnoticed()  # a file that ends there
    has_fields: bool = True  # False: the columns are the format's own
    rescued: str = '{"more":7}'  # the field ``more`` of a row


def rows_of(count: int, *, first: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Return rows with ascending ids, each with the further fields. Names need quotes and escapes in most formats."""
    return [
        {"id": number, "name": f'"{number}"\n, é', "price": Decimal(number) / 4} | more
        for number in range(first, first + count)
    ]


# -- lines and documents ---------------------------------------------------------------------------------------------


def _as_json(row: Row, *, indent: int | None = None) -> str:
    return json.dumps(row, default=float, ensure_ascii=False, indent=indent)


def _write_jsonl(rows: Sequence[Row]) -> bytes:
    return "".join(f"{_as_json(row)}\n" for row in rows).encode()


def _write_array(rows: Sequence[Row]) -> bytes:
    return ("[" + ",\n".join(map(_as_json, rows)) + "]\n").encode()


def _write_objects(rows: Sequence[Row]) -> bytes:
    return "".join(f"{_as_json(row, indent=2)}\n" for row in rows).encode()


def _write_csv(rows: Sequence[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, _names(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    for line in content.split(b"\n"):
        if at < len(content):
            yield at, line
        at += len(line) + 1


def _read_jsonl(content: bytes) -> Placed:
    return [(at, json.loads(line, parse_float=Decimal)) for at, line in _lines(content) if line.strip()]


def _read_array(content: bytes) -> Placed:
    return list(enumerate(json.loads(content, parse_float=Decimal)))


def _read_objects(content: bytes) -> Placed:
    decoder = json.JSONDecoder(parse_float=Decimal)
    text, found, at = content.decode().strip(), [], 0
    while at < len(text):
        value, end = decoder.raw_decode(text, at)
        found.append(value)
        at = end + 1  # behind the line break
    return list(enumerate(found))


def _read_csv(content: bytes) -> Placed:
    records = csv.DictReader(io.StringIO(content.decode(), newline=""))
    places = [at for at, _ in _lines(content)]
    assert records.fieldnames
    found = []
    first = records.line_num  # of the record, from 0
    for record in records:
        found.append((places[first], _typed(record)))
        first = records.line_num
    return found


def _read_text(content: bytes) -> Placed:
    return [(at, {"value": line.decode()}) for at, line in _lines(content)]


def _read_binary(content: bytes) -> Placed:
    return [(0, {"length": len(content), "content": content})]


def _typed(row: Row) -> dict[str, Any]:
    """Return a row of texts with numbers in the columns of numbers, as far as they are some."""
    types = {"id": int, "price": Decimal, "more": int}
    return {name: value if value in NO_NUMBERS else types.get(name, str)(value) for name, value in row.items()}


# -- formats with columns of their own --------------------------------------------------------------------------------


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row)) or ["id", "name", "price"]


def _table(rows: Sequence[Row]) -> pa.Table:
    """Return the rows with a type for each column; prices are texts if one is."""
    columns: dict[str, pa.Array] = {}
    for name in _names(rows):
        values = [row.get(name) for row in rows]
        if name != "price":
            kind = pa.string() if any(isinstance(value, str) for value in values) else pa.int64()
        elif any(isinstance(value, str) for value in values):
            kind, values = pa.string(), list(map(str, values))
        else:
            kind = _PRICE
        columns[name] = pa.array(values, kind)
    return pa.table(columns)


def _write_parquet(rows: Sequence[Row]) -> bytes:
    data = io.BytesIO()
    pq.write_table(_table(rows), data, row_group_size=_GROUP_ROWS)
    return data.getvalue()


def _write_orc(rows: Sequence[Row]) -> bytes:
    data = io.BytesIO()
    orc.write_table(_table(rows), data, stripe_size=1)  # Arrow takes at least 1,024 rows for a stripe
    return data.getvalue()


def _write_avro(rows: Sequence[Row]) -> bytes:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    table = _table(rows)
    kinds = {pa.int64(): "long", pa.string(): "string", _PRICE: decimal}
    fields = [{"name": field.name, "type": kinds[field.type]} for field in table.schema]
    data = io.BytesIO()
    fastavro.writer(
        data,
        {"type": "record", "name": "R", "fields": fields},
        table.to_pylist(),
        codec="deflate",
        sync_interval=_BLOCK_BYTES,
    )
    return data.getvalue()


def _read_parquet(content: bytes) -> Placed:
    return list(enumerate(map(_typed, pq.read_table(io.BytesIO(content)).to_pylist())))


def _read_orc(content: bytes) -> Placed:
    return list(enumerate(map(_typed, orc.ORCFile(io.BytesIO(content)).read().to_pylist())))


def _read_avro(content: bytes) -> Placed:
    blocks: Any = fastavro.block_reader(io.BytesIO(content))
    return [
        ((block.offset << _AVRO_POSITION_BITS) + number, _typed(row))
        for block in blocks
        for number, row in enumerate(block)
    ]


# -- a function of the user's ----------------------------------------------------------------------------------------


def _write_xml(rows: Sequence[Row]) -> bytes:
    root = ET.Element("rows")
    for row in rows:
        ET.SubElement(root, "row", {name: str(value) for name, value in row.items()})
    return ET.tostring(root)


def _read_xml(content: bytes) -> Placed:
    found = minidom.parseString(content).getElementsByTagName("row")
    return [(number, _typed(dict(element.attributes.items()))) for number, element in enumerate(found)]


def read_xml(obj: SourceObject) -> Iterator[pa.RecordBatch]:
    """Yield a batch for every hundred rows of a document. The reader of the format of the tests' own."""
    with obj.open() as file:
        rows: list[dict[str, Any]] = []
        for _, element in ET.iterparse(file):
            if element.tag == "row":
                whole = {name: int(text) for name, text in element.attrib.items() if text.isdigit() and name != "price"}
                rows.append({**element.attrib, **whole})
            if len(rows) == 100 or element.tag == "rows":
                yield pa.RecordBatch.from_pylist(rows)
                rows = []


def _last_line(content: bytes) -> int:
    return content.rindex(b"\n", 0, -1) + 1


def _last_record(content: bytes) -> int:
    return [match.start() + 1 for match in re.finditer(rb'\n[0-9]+,"', content)][-1]


def _last_block(content: bytes) -> int:
    return _read_avro(content)[-1][0] >> _AVRO_POSITION_BITS


def _middle(content: bytes) -> int:
    return len(content) // 2


def _last(beginning: bytes) -> Callable[[bytes], int]:
    return lambda content: content.rindex(beginning)


def _fails(format_name: str, reason: str) -> Fails:
    return Fails(f"cannot be read as {format_name}: {reason}")


def _raised(error: str) -> Fails:
    place = "tests.conformance.formats.cell_formats:read_xml at cell_formats.py:[0-9]+"
    return Fails(f"cannot be read by {place}: ParseError: {error}", FailureKind.UNREADABLE)


def _compressed(format_name: str) -> Fails:
    return Fails(
        rf"is compressed with (gzip|bzip2|zstd) as a whole, and {format_name} is not read so: decompress it "
        rf"\({format_name} compresses its own data\)"
    )


FORMATS = {
    "jsonl": CellFormat(
        format="jsonl",
        write=_write_jsonl,
        read=_read_jsonl,
        last_record=_last_line,
        cut_off=BadLine("malformed", "Unterminated string starting at at character [0-9]+"),
        overwritten=BadLine("invalid UTF-8", "at byte [0-9]+"),
    ),
    "json array": CellFormat(
        format="json",
        write=_write_array,
        read=_read_array,
        is_cut=False,
        last_record=_last(b'{"id"'),
        cut_off=Fails("is not JSON: .* at line 20, character [0-9]+"),
        overwritten=Fails("is not UTF-8, at byte [0-9]+"),
        ends_before_it=Fails("is not JSON: .* at line 1000, character 1"),
    ),
    "json objects": CellFormat(
        format="json",
        write=_write_objects,
        read=_read_objects,
        is_cut=False,
        last_record=_last(b"{\n"),
        cut_off=Fails("is not JSON: .* at line 99, character [0-9]+"),
        overwritten=Fails("is not UTF-8, at byte [0-9]+"),
    ),
    "csv": CellFormat(
        format="csv",
        write=_write_csv,
        read=_read_csv,
        last_record=_last_record,
        cut_off=BadLine("malformed", "a quote that is not closed before the end of the object"),
        overwritten=BadLine("invalid UTF-8", "at byte [0-9]+"),
        rescued='{"more":"7"}',
    ),
    "text": CellFormat(
        format="text",
        write=_write_jsonl,
        read=_read_text,
        ddl="",
        last_record=_last_line,
        cut_off=Unnoticed(),
        overwritten=BadLine("invalid UTF-8", "at byte [0-9]+"),
        has_fields=False,
    ),
    "parquet": CellFormat(
        format="parquet",
        write=_write_parquet,
        read=_read_parquet,
        compressed=_compressed("parquet"),
        last_record=_middle,
        cut_off=_fails("parquet", ".*footer.*"),
        overwritten=_fails("parquet", ".*footer.*"),
        ends_before_it=_fails("parquet", ".*footer.*"),
    ),
    "avro": CellFormat(
        format="avro",
        write=_write_avro,
        read=_read_avro,
        compressed=_compressed("avro"),
        last_record=_last_block,
        cut_off=_fails("avro", "it ends within the block at offset [0-9]+"),
        overwritten=_fails("avro", "the block at offset [0-9]+ does not end with the object's marker"),
    ),
    "orc": CellFormat(
        format="orc",
        write=_write_orc,
        read=_read_orc,
        compressed=_compressed("orc"),
        last_record=_middle,
        cut_off=_fails("orc", "Failed to parse the (footer|postscript) .*"),
        overwritten=_fails("orc", "Failed to parse the (footer|postscript) .*"),
        ends_before_it=_fails("orc", ".*"),
    ),
    "binary": CellFormat(
        format="binary",
        write=_write_jsonl,
        read=_read_binary,
        ddl="",
        compressed=None,
        is_cut=False,
        last_record=_last_line,
        cut_off=Unnoticed(),
        overwritten=Unnoticed(),
        has_fields=False,
    ),
    "reader": CellFormat(
        format="reader",
        reader="tests.conformance.formats.cell_formats:read_xml",
        write=_write_xml,
        read=_read_xml,
        compressed=_raised(".*"),
        is_cut=False,
        last_record=_last(b"<row "),
        cut_off=_raised(".*"),
        overwritten=_raised("not well-formed.*"),
        ends_before_it=_raised("no element found.*"),
    ),
}
