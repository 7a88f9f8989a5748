"""Objects in UTF-16, and headers of several lines, in any pieces."""

import codecs
import gzip
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.source_run import Case, Found, any_pieces, halves, read, whole

from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions

MARKS = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
TEXT = 'id,name\r\n1,"a\r\nb"\r\n2,"é 😀"\r\nx,y\r\n3,\u0a0a\u0d0a\r\n4,"'
OPTIONS = ReadOptions(schema_ddl="id long, name string", format="csv", block_bytes=7)
# lines of JSON and text have the same way to them
FORMATS = {
    "csv": OPTIONS,
    "jsonl": ReadOptions(schema_ddl="id long, name string", format="jsonl", block_bytes=7),
    "text": ReadOptions(schema_ddl="value string", format="text", block_bytes=7),
}


def content(text: str, encoding: str) -> bytes:
    return MARKS[encoding] + text.encode(encoding)


def results(found: Found) -> tuple[Any, Any]:
    return sorted((at, list(row.values())) for _, at, row in found.rows), sorted(bad[1:] for bad in found.bad)


def plain(text: str, options: ReadOptions) -> tuple[Any, Any]:
    data = text.encode()
    return results(read(Case(contents=[data], partitions=whole([data]), options=options)))


@pytest.mark.parametrize("encoding", MARKS)
@pytest.mark.parametrize("step", range(0, 2 * len(TEXT) + 2, 3))
def test_an_object_is_read_once_wherever_it_is_cut(encoding: str, step: int) -> None:
    data = content(TEXT, encoding)
    found = read(Case(contents=[data], partitions=halves(data, step), options=OPTIONS))
    assert found.failures == {}
    assert results(found) == plain(TEXT, OPTIONS)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    text=st.lists(
        st.sampled_from(['{"id":1,"name":"é"}\n', '1,"a\n', 'b"\n', "\r\n", "id,name\n", "\ufeff", "😀", "x"])
    ),
    encoding=st.sampled_from(list(MARKS)),
    compressed=st.booleans(),
)
def test_it_has_the_rows_of_the_same_text_in_utf8(
    name: str, data: st.DataObject, text: list[str], encoding: str, compressed: bool
) -> None:
    joined = "id,name\n" + "".join(text)
    stored = content(joined, encoding)
    stored = gzip.compress(stored) if compressed else stored
    partitions = whole([stored]) if compressed else data.draw(any_pieces([stored]))
    case = Case(contents=[stored], partitions=partitions, options=FORMATS[name], suffix=".gz" if compressed else "")
    assert results(read(case)) == plain(joined, FORMATS[name])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (codecs.BOM_UTF16_LE + b"i\0d\0\n\0\x00\xd8\n\0", "not UTF-16 as its first bytes say"),
        (codecs.BOM_UTF16_LE + b"i\0d\0\n\0x", "not UTF-16 as its first bytes say"),
        (codecs.BOM_UTF32_LE + "id\n1\n".encode("utf-32-le"), "UTF-32, which is not read"),
    ],
)
def test_objects_that_are_no_utf16_fail(data: bytes, reason: str) -> None:
    found = read(Case(contents=[data], partitions=whole([data]), options=OPTIONS))
    assert reason in found.failures[0]


HEADER = b'\xef\xbb\xbf"id"," first\r\n name ",x\r\n1,a,b\r\n'


@pytest.mark.parametrize("cut", range(len(HEADER) + 1))
def test_a_name_with_a_line_break_has_a_blank_for_it(cut: int) -> None:
    options = ReadOptions(schema_ddl="id long, `first name` string", format="csv", block_bytes=5)
    found = read(Case(contents=[HEADER], partitions=halves(HEADER, cut), options=options))
    assert [(at, row) for _, at, row in found.rows] == [(HEADER.index(b"1,a"), {"id": 1, "first name": "a"})]
    assert not found.bad


def test_a_header_that_is_not_closed_fails() -> None:
    data = b'id,"name\n1,a\n'
    found = read(Case(contents=[data], partitions=whole([data]), options=OPTIONS))
    assert "a header with a quote that is not closed" in found.failures[0]


def test_skipped_lines_come_before_the_header() -> None:
    data = b'a "title\nid,"na\nme"\n1,x\n'
    options = ReadOptions(schema_ddl="id long, `na me` string", format="csv", csv=CsvOptions(skip_lines=1))
    found = read(Case(contents=[data], partitions=halves(data, 12), options=options))
    assert [row for _, _, row in found.rows] == [{"id": 1, "na me": "x"}]
