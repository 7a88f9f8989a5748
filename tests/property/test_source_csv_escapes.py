"""CSV with escapes against a parser that goes character by character, however objects are cut."""

import gzip
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.property.source_run import Case, any_pieces, halves, read, whole

from penstock.pipeline.spark.source.csv_dialect import detect
from penstock.pipeline.spark.source.csv_escapes import rewritten_line
from penstock.pipeline.spark.source.csv_lines import split
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions

ESCAPED = CsvOptions(header=False, escape="\\")
OTHER = CsvOptions(header=False, escape="^", quote="'", delimiter=";")
MARKS = ['"', '"', ",", "\n", "\\", "\\", '\\"', "\\\\", '""', ',"', '",', "\r\n", "a", "é"]


def lines_of(content: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    for line in content.split(b"\n"):
        if at < len(content):
            yield at, line
        at += len(line) + 1


def fields_of(text: str, csv: CsvOptions) -> list[str] | None:
    """Return the fields of a record, None if it is malformed; raise EOFError within quotes."""
    fields: list[str] = []
    at = 0
    while True:
        if text[at : at + 1] == csv.quote:
            value, at = "", at + 1
            while True:
                if at >= len(text):
                    raise EOFError
                pair = text[at : at + 2]
                if pair in (csv.escape + csv.quote, csv.escape * 2, csv.quote * 2):
                    value, at = value + pair[1], at + 2
                elif text[at] == csv.quote:
                    break
                else:
                    value, at = value + text[at], at + 1
            fields.append(value)
            at += 1
            if at < len(text) and text[at] != csv.delimiter:
                return None
        else:
            end = text.find(csv.delimiter, at)
            end = len(text) if end < 0 else end
            fields.append(text[at:end])
            if "\r" in fields[-1]:
                return None
            at = end
        if at >= len(text):
            return fields
        at += 1


def ends_open(line: str, csv: CsvOptions) -> bool:
    """Return True if a record goes on behind its line; a misplaced quote is text as in the product."""
    at = 0
    while True:
        if line[at : at + 1] == csv.quote:
            at += 1
            while True:
                if at >= len(line):
                    return True
                if line[at : at + 2] in (csv.escape + csv.quote, csv.escape * 2, csv.quote * 2):
                    at += 2
                elif line[at] == csv.quote:
                    break
                else:
                    at += 1
            at += 1
        at = line.find(csv.delimiter, at) + 1
        if not at:
            return False


def records(content: bytes, csv: CsvOptions) -> dict[int, tuple[bytes, list[str] | None]]:
    found: dict[int, tuple[bytes, list[str] | None]] = {}
    lines = list(lines_of(content))
    number = 0
    while number < len(lines):
        start, raw = lines[number]
        while ends_open(raw.decode(), csv) and number + 1 < len(lines):
            number += 1
            raw += b"\n" + lines[number][1]
        number += 1
        raw = raw.removesuffix(b"\r")
        if raw.strip(b" \t"):
            try:
                found[start] = raw, fields_of(raw.decode(), csv)
            except EOFError:
                found[start] = raw, None
    return found


def check(contents: Sequence[bytes], case: Case, csv: CsvOptions, columns: int) -> None:
    found = read(case)
    assert found.failures == {}
    for ref, content in zip(found.plan.objects, contents, strict=True):
        expected = records(content, csv)
        rows = {at: [value or "" for value in row.values()] for uri, at, row in found.rows if uri == ref.uri}
        bad = {at: raw for uri, at, raw, _ in found.bad if uri == ref.uri}
        good = {at: fields for at, (_, fields) in expected.items() if fields is not None and len(fields) == columns}
        assert rows == good
        assert bad == {at: raw for at, (raw, _) in expected.items() if at not in good}


@st.composite
def files(draw: st.DrawFn, csv: CsvOptions) -> bytes:
    own = {'"': csv.quote, "\\": csv.escape, ",": csv.delimiter}
    pieces = ["".join(own.get(character, character) for character in mark) for mark in MARKS]
    return "".join(draw(st.lists(st.sampled_from(pieces), max_size=40))).encode()


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("csv", [ESCAPED, OTHER], ids=["backslash", "caret"])
@settings(max_examples=150, deadline=None)
@given(data=st.data(), block_bytes=st.sampled_from([1, 5, 16, 4096]), compressed=st.sampled_from([False] * 5 + [True]))
def test_every_record_is_read_for_any_cuts(
    csv: CsvOptions, columns: int, data: st.DataObject, block_bytes: int, compressed: bool
) -> None:
    contents = data.draw(st.lists(files(csv), min_size=1, max_size=3))
    stored = [gzip.compress(content) if compressed else content for content in contents]
    ddl = ", ".join(f"c{number} string" for number in range(columns))
    case = Case(
        contents=stored,
        partitions=whole(stored) if compressed else data.draw(any_pieces(stored)),
        options=ReadOptions(schema_ddl=ddl, format="csv", csv=csv, block_bytes=block_bytes),
        suffix=".gz" if compressed else "",
    )
    check(contents, case, csv, columns)


CONTENT = b'1,"a \\"b\\" c"\n2,"\\\\"\n3,"x\\\\\\"\n4,y"\n5,"\\n"\n6,\\"z\n7,"q\\"x"y\n8,"C:\\\\d\\\\e"\n'


@pytest.mark.parametrize("cut", range(len(CONTENT) + 1))
def test_an_edge_case_at_every_cut(cut: int) -> None:
    options = ReadOptions(schema_ddl="a string, b string", format="csv", csv=ESCAPED, block_bytes=16)
    check([CONTENT], Case(contents=[CONTENT], partitions=halves(CONTENT, cut), options=options), ESCAPED, 2)


@given(st.lists(st.text('ab\\",\né '), min_size=2, max_size=4))
@example(["\\", '"'])
def test_values_that_spark_writes_are_read(values: list[str]) -> None:
    def written(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    line = ",".join(map(written, values))
    found = split(rewritten_line(line.encode(), ESCAPED).decode(), ESCAPED)
    assert [field.text for field in found] == values


@pytest.mark.parametrize(
    ("sample", "escape"),
    [
        ('id,t\n1,"a \\"b\\", c"\n2,d\n', "\\"),
        ('t\n"a \\"b\\" c"\nd\n', "\\"),
        ('id;t\n1;"\\"x\\"; y"\n2;"z"\n', "\\"),
        ('title\nid,t\n1,"\\"x\\", y"\n2,"z"\n3,\n', "\\"),
        ('id,t\n1,"C:\\"\n2,"D:\\"\n', ""),
        ('id,t\n1,"a ""b"" c"\n', ""),
        ('id,t\n1,a \\" b\n2,c\n', ""),
        ('id,t\n1,"a \\"b\\" ""c"\n"x', "\\"),
    ],
)
def test_an_escape_is_detected_if_the_sample_cannot_be_read_otherwise(sample: str, escape: str) -> None:
    assert detect(sample, CsvOptions(), delimiter_given=False).csv.escape == escape
