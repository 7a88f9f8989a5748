"""Text against a plain reference, and every codec around every format."""

import bz2
import gzip
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property import test_source_csv, test_source_reading
from tests.property.source_run import Case, Expected, Reference, any_pieces, check, halves, read, whole

from penstock.pipeline.spark.source.options import ReadOptions

DDL = "value string"


def reference(data: bytes) -> Expected:
    expected = Expected()
    at = 0
    for ended in re.findall(rb"[^\n]*\n|[^\n]+", data if data != b"\xef\xbb\xbf" else b""):
        raw = ended.removesuffix(b"\n").removesuffix(b"\r")
        line = raw.removeprefix(b"\xef\xbb\xbf") if at == 0 else raw
        try:
            expected.rows.append((at, {"value": line.decode()}))
        except UnicodeDecodeError:
            expected.bad.append((at, raw, "invalid UTF-8"))
        at += len(ended)
    return expected


def check_reading(contents: Sequence[bytes], partitions: Any, block_bytes: int) -> None:
    options = ReadOptions(schema_ddl=DDL, format="text", block_bytes=block_bytes)
    check(Case(contents=contents, partitions=partitions, options=options), reference)


TRAPS = {
    "plain": b"a\nb\n",
    "empty lines": b"\n\na\n\n",
    "CRLF": b"a\r\n\r\nb\r\n",
    "carriage returns alone": b"a\rb\n\r\rc\r\r\n\r\n\r",
    "no last newline": b"a\nb",
    "blanks": b" \n\t a \n",
    "invalid UTF-8": b"a\xff\n\xc3\r\nb\n\xed\xa0\x80\n\xc3\xa9\n\xff",
    "byte order mark": b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n",
    "byte order mark on an empty line": b"\xef\xbb\xbf\na\n",
    "byte order mark on a bad line": b"\xef\xbb\xbf\xff\na\n",
    "only a byte order mark": b"\xef\xbb\xbf",
    "NUL, other line ends": b"\x00\n\x0b\x0c\x85\n\xe2\x80\xa8\xc2\x85\n",
    "empty": b"",
}


@pytest.mark.parametrize("trap", TRAPS)
def test_an_edge_case_is_read_like_the_reference_at_every_split_boundary(trap: str) -> None:
    data = TRAPS[trap]
    for cut in range(len(data) + 1):
        check_reading([data], halves(data, cut), block_bytes=(1, 7, 1 << 20)[cut % 3])


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    contents=st.lists(
        st.lists(st.sampled_from([b"a", b"\xc3\xa9", b"\xff", b"\r", b"\n", b"\n", b"\xef\xbb\xbf"]), max_size=12).map(
            b"".join
        ),
        min_size=1,
        max_size=4,
    ),
    block_bytes=st.sampled_from([1, 4, 4096]),
)
def test_any_files_in_any_pieces_are_read_like_the_reference(
    data: st.DataObject, contents: list[bytes], block_bytes: int
) -> None:
    check_reading(contents, data.draw(any_pieces(contents)), block_bytes)


# -- compressed ------------------------------------------------------------------------------------------------------

CODECS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".ZSTD": zstandard.ZstdCompressor(write_content_size=False).compress,
}
FORMATS: dict[str, tuple[ReadOptions, Reference, dict[str, bytes]]] = {
    "jsonl": (
        ReadOptions(schema_ddl=test_source_reading.DDL),
        partial(test_source_reading.reference, ddl=test_source_reading.DDL),
        test_source_reading.TRAPS,
    ),
    "csv": (
        ReadOptions(schema_ddl=test_source_csv.DDL, format="csv"),
        test_source_csv.Plain(ReadOptions().csv).reference,
        test_source_csv.TRAPS,
    ),
    "text": (ReadOptions(schema_ddl=DDL, format="text"), reference, TRAPS),
}


@pytest.mark.parametrize("suffix", CODECS)
@pytest.mark.parametrize("name", FORMATS)
def test_compressed_edge_cases_are_read_like_the_reference(name: str, suffix: str) -> None:
    options, plain, traps = FORMATS[name]
    held = list(traps.values())
    contents = [CODECS[suffix](data[: len(data) // 2]) + CODECS[suffix](data[len(data) // 2 :]) for data in held]
    case = Case(contents=contents, partitions=whole(contents), options=options, suffix=suffix)
    check(case, dict(zip(contents, map(plain, held), strict=True)).__getitem__)


@pytest.mark.parametrize("suffix", CODECS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_compressed_object_cut_at_any_byte_yields_no_row(name: str, suffix: str) -> None:
    options, _, _ = FORMATS[name]
    good = {"jsonl": b'{"id":1}\n', "csv": b"id\n1\n", "text": b"a\n"}[name]
    data = CODECS[suffix](good * 40)
    contents = [data[:length] for length in range(1, len(data))]
    found = read(Case(contents=contents, partitions=whole(contents), options=options, suffix=suffix))
    assert (found.rows, found.bad, found.counts) == ([], [], {})
    assert len(found.failures) == len(contents)
    assert all(" is a truncated " in reason for reason in found.failures.values())
