"""Objects of every format, written and read back by libraries other than Penstock.

Each object has ten rows, every third one also a bad row if its format can have one, and every fourth one is gzipped if
its format may be.
"""

import csv
import gzip
import io
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow import orc
from tests.chaos.oracle import COLUMNS, Place, Truth, Values, check_done, files_in_log, uri_of
from tests.chaos.runs import SCHEMA, Case, Content, JsonLines
from tests.chaos.s3_case import S3Case
from tests.spark import readers

ROWS = 10
BAD_AT = ROWS // 2
IN_SEVERAL_TASKS = 70  # objects: the plan makes a task of about 64 small ones
TEXTS = ("plain", 'a "quoted" word', "two\nlines", "comma, semicolon; bar|", "é 🐍")
NOT_UTF8 = b"\xff\xfe no text"
AVRO_BITS = 23  # of a position, for the row in its block, as documented
READERS = Path(readers.__file__)
APP = """
import readers

from penstock import App, DeltaSink, ObjectSource

app = App.from_config(
    broker="sqlite:///{state}/queue.db", ledger="sqlite:///{state}/ledger.db", data_dir="{state}",
    spark_py_files=[readers.__file__],
)
source = ObjectSource("{source}", queue="pairs", schema="id bigint, half double", reader=readers.read_pairs)
app.pipeline("pairs", source=source, sink=DeltaSink("{table}"))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of an object. ``raw`` is how quarantine shows it if it is bad."""

    position: int
    values: Values
    raw: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A `tests.chaos.runs.Content` of one format. ``rows`` gets the URI and the content of an object."""

    name: str
    encode: Callable[[int], bytes]
    rows: Callable[[str, bytes], Iterator[Row]]
    schema: str = SCHEMA
    columns: Collection[str] = tuple(COLUMNS)
    position: str = "_row"
    is_inflated: bool = False

    def write(self, folder: Path, numbers: range) -> list[Path]:
        return [self._write(folder, number) for number in numbers]

    def truth(self, folder: Path, *, at: str | None = None) -> Truth:
        good: dict[Place, Values] = {}
        bad: dict[Place, bytes] = {}
        for path in sorted(folder.iterdir()):
            uri, content = uri_of(path, folder, at=at), path.read_bytes()
            for row in self.rows(uri, gzip.decompress(content) if path.suffix == ".gz" else content):
                if row.raw is None:
                    good[uri, row.position] = row.values
                else:
                    bad[uri, row.position] = row.raw
        return Truth(good=good, bad=bad, unreadable=(), columns=self.columns, position=self.position)

    def command(self, arguments: Sequence[str]) -> Sequence[str]:
        return "ingest", *arguments, "--format", self.name, "--schema", self.schema, "--json"

    def _write(self, folder: Path, number: int) -> Path:
        is_gzipped = self.is_inflated and number % 4 == 0
        path = folder / f"object-{number:04}.{self.name}{'.gz' if is_gzipped else ''}"
        content = self.encode(number)
        path.write_bytes(gzip.compress(content, mtime=0) if is_gzipped else content)
        return path


class Pairs(Format):
    """Objects that a user's function reads, in an app that `write_app` makes."""

    def command(self, arguments: Sequence[str]) -> Sequence[str]:
        return "run", "pairs_app:app", "pairs", "--available-now", "--source", arguments[0], "--json"


def write_app(case: Case) -> None:
    """Write the app that reads `Pairs`, with its state where that of an ingest is."""
    source, table, *_ = case.arguments
    (case.folder / "pairs_app.py").write_text(APP.format(source=source, table=table, state=case.table / "_penstock"))
    shutil.copy(READERS, case.folder)


def check_as_users_read(truth: Truth, table: Path) -> None:
    """Check rows and quarantine as deltalake reads them: each is there once."""
    rows = DeltaTable(table).to_pyarrow_table(columns=["_object", truth.position, *truth.columns]).to_pylist()
    found = {(row.pop("_object"), row.pop(truth.position)): row for row in rows}
    assert (len(rows), found) == (len(truth.good), truth.good)
    if truth.bad:
        lines = DeltaTable(f"{table}_quarantine").to_pyarrow_table(columns=["object", "offset", "raw"]).to_pylist()
        assert len(lines) == len(truth.bad)
        assert {(line["object"], line["offset"]): line["raw"] for line in lines} == truth.bad


def check_read_once_from_s3(case: S3Case) -> None:
    """Ingest objects in S3 into a table in S3, and check both tables and the ledger."""
    with closing(case):
        write_app(case)
        case.add_objects(range(IN_SEVERAL_TASKS))
        case.ingest()
        whole, table = case.truth(), case.mirror()
        check_done(whole, table)
        check_as_users_read(whole, table)
        assert len(files_in_log(table)) > 1, "one task has read all objects"


# --- the rows of an object


def has_bad_row(number: int) -> bool:
    return number % 3 == 0


def rows_of(number: int) -> list[dict[str, Any]]:
    return [
        {"id": number * 1_000 + place, "v": None if place == 3 else place / 2, "s": TEXTS[place % len(TEXTS)]}
        for place in range(ROWS)
    ]


def table_of(number: int) -> pa.Table:
    """Return the rows. If one is bad, ids are doubles, and one of them is no whole number."""
    rows = rows_of(number)
    if has_bad_row(number):
        rows[BAD_AT]["id"] += 0.5
    kind = pa.float64() if has_bad_row(number) else pa.int64()
    return pa.Table.from_pylist(rows, pa.schema([("id", kind), ("v", pa.float64()), ("s", pa.string())]))


def fitted(position: int, values: Mapping[str, Any]) -> Row:
    """Return a row of typed values, whose id may be no whole number."""
    if values["id"] % 1:
        return Row(position=position, values=values, raw=as_json(values))
    return Row(position=position, values={**values, "id": int(values["id"])})


def as_json(values: object) -> bytes:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode()


# --- JSON documents


def encode_documents(number: int) -> bytes:
    """Return an array with line breaks, or objects one after the other."""
    rows: list[object] = [*rows_of(number)]
    if has_bad_row(number):
        rows[BAD_AT:BAD_AT] = [{"id": "text", "v": 1.5}, 7]
    if number % 2:
        return "\n\n".join(json.dumps(row, indent=2) for row in rows).encode()
    return json.dumps(rows, indent=1).encode()


def documents(_: str, content: bytes) -> Iterator[Row]:
    text, decoder, at, position = content.decode(), json.JSONDecoder(), 0, 0
    while at < len(text):
        if text[at] in "[], \n":
            at += 1
            continue
        value, stop = decoder.raw_decode(text, at)
        if isinstance(value, dict) and isinstance(value["id"], int):
            yield Row(position=position, values=value)
        else:
            yield Row(position=position, values={}, raw=text[at:stop].replace("\n", " ").encode())
        at, position = stop, position + 1


# --- CSV


def encode_csv(number: int) -> bytes:
    rows = [list(row.values()) for row in rows_of(number)]
    if has_bad_row(number):
        rows[BAD_AT:BAD_AT] = [["text", 1.5, "two\nlines"], [1, 2]]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([list(COLUMNS), *rows])
    return text.getvalue().encode()


def records(_: str, content: bytes) -> Iterator[Row]:
    lines = content.splitlines(keepends=True)
    reader, start = csv.reader(line.decode() for line in lines), 0
    for number, fields in enumerate(reader):
        stop = sum(map(len, lines[: reader.line_num]))
        raw = content[start:stop].removesuffix(b"\n")
        if number and len(fields) == len(COLUMNS) and fields[0].isdigit():
            values = {"id": int(fields[0]), "v": float(fields[1]) if fields[1] else None, "s": fields[2]}
            yield Row(position=start, values=values)
        elif number:
            yield Row(position=start, values={}, raw=raw)
        start = stop


# --- text


def encode_text(number: int) -> bytes:
    lines = [str(row["s"]).replace("\n", " ").encode() for row in rows_of(number)]
    if has_bad_row(number):
        lines.insert(BAD_AT, NOT_UTF8)
    return b"\n".join(lines) + b"\n"


def text_lines(_: str, content: bytes) -> Iterator[Row]:
    start = 0
    for line in content.splitlines():
        try:
            yield Row(position=start, values={"value": line.decode()})
        except UnicodeDecodeError:
            yield Row(position=start, values={}, raw=line)
        start += len(line) + 1


# --- Parquet, ORC and Avro


def encode_parquet(number: int) -> bytes:
    data = io.BytesIO()
    pq.write_table(table_of(number), data, row_group_size=4)
    return data.getvalue()


def encode_orc(number: int) -> bytes:
    data = io.BytesIO()
    orc.write_table(table_of(number), data)
    return data.getvalue()


def table_rows(read: Callable[[io.BytesIO], pa.Table]) -> Callable[[str, bytes], Iterator[Row]]:
    def rows(_: str, content: bytes) -> Iterator[Row]:
        return map(fitted, range(ROWS), read(io.BytesIO(content)).to_pylist())

    return rows


def encode_avro(number: int) -> bytes:
    fields = [
        {"name": "id", "type": "double" if has_bad_row(number) else "long"},
        {"name": "v", "type": ["null", "double"]},
        {"name": "s", "type": "string"},
    ]
    data, schema = io.BytesIO(), {"type": "record", "name": "R", "fields": fields}
    fastavro.writer(data, schema, table_of(number).to_pylist(), codec="deflate", sync_interval=64)
    return data.getvalue()


def avro_records(_: str, content: bytes) -> Iterator[Row]:
    for block in fastavro.block_reader(io.BytesIO(content)):
        for place, record in enumerate(block):
            assert isinstance(record, dict)
            yield fitted((block.offset << AVRO_BITS) + place, record)


# --- whole objects, and those that a user's function reads


def encode_binary(number: int) -> bytes:
    return bytes(range(256)) * number


def whole_object(uri: str, content: bytes) -> Iterator[Row]:
    yield Row(position=0, values={"path": uri, "length": len(content), "content": content})


def encode_pairs(number: int) -> bytes:
    text = readers.written(range(number * 1_000, number * 1_000 + ROWS))
    return f"{text};many=0.5".encode() if has_bad_row(number) else text.encode()


def pairs(_: str, content: bytes) -> Iterator[Row]:
    for position, pair in enumerate(content.decode().split(";")):
        name, _, half = pair.partition("=")
        if name.isdigit():
            yield Row(position=position, values={"id": int(name), "half": float(half)})
        else:
            yield Row(position=position, values={}, raw=as_json({"id": name, "half": float(half)}))


FORMATS: Mapping[str, Content] = {
    "jsonl": JsonLines(),
    "json": Format(name="json", encode=encode_documents, rows=documents, is_inflated=True),
    "csv": Format(name="csv", encode=encode_csv, rows=records, position="_offset", is_inflated=True),
    "text": Format(
        name="text",
        encode=encode_text,
        rows=text_lines,
        schema="value string",
        columns=("value",),
        position="_offset",
        is_inflated=True,
    ),
    "parquet": Format(name="parquet", encode=encode_parquet, rows=table_rows(pq.read_table)),
    "avro": Format(name="avro", encode=encode_avro, rows=avro_records),
    "orc": Format(name="orc", encode=encode_orc, rows=table_rows(orc.read_table)),
    "binary": Format(
        name="binary",
        encode=encode_binary,
        rows=whole_object,
        schema="path string, length bigint, content binary",
        columns=("path", "length", "content"),
    ),
    "a function": Pairs(name="pairs", encode=encode_pairs, rows=pairs, columns=("id", "half")),
}
