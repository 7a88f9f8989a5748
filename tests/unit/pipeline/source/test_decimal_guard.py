"""Detection of lines whose number Arrow may misread, anywhere in a block."""

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.spark.source.blocks import DecimalGuard, Lines

PARTS = st.sampled_from(
    [b"0", b"1", b"23", b"99999999", b"e", b"E", b"-", b".", b"x", b" ", b"1e5", b"1E-3", b"\\u0031"]
)
LINE = st.lists(PARTS, max_size=8).map(b"".join)
EXPONENT = re.compile(rb"(?<=[0-9.])[eE][-+]?[0-9]+(?![0-9A-Za-z-])")
ESCAPED = re.compile(rb"\\u0031")


def trusted(kind: pa.DataType, *lines: bytes) -> list[bool]:
    block = b"".join(line + b"\n" for line in lines)
    shaped = np.ones(len(lines), dtype=np.bool_)
    DecimalGuard([kind]).distrust(block, Lines.of(block), shaped)
    return [bool(flag) for flag in shaped]


@pytest.mark.parametrize("line", [b"1e-39", b"1E5", b'{"n":1e-39}', b"1.e7", b"0,1e-39"])
def test_an_exponent_is_found_in_the_only_line_and_in_the_last(line: bytes) -> None:
    assert trusted(pa.decimal128(38, 0), line) == [False]
    assert trusted(pa.decimal128(38, 0), b"0", line) == [True, False]
    assert trusted(pa.decimal128(38, 0), line, b"0") == [False, True]


@pytest.mark.parametrize("before", range(8))
def test_a_run_of_digits_is_found_at_any_alignment(before: int) -> None:
    line = b" " * before + b"9" * 20
    assert trusted(pa.decimal128(38, 0), line) == [False]
    assert trusted(pa.decimal128(38, 0), line[:-1]) == [True]


def test_a_number_with_more_integer_digits_than_its_type_is_distrusted() -> None:
    lines = b"0." + b"7" * 38, b"-0.5", b"1.5", b"0.%s" % (b"7" * 39), b"00", b"01", b"-3"
    assert trusted(pa.decimal128(38, 38), *lines) == [True, True, False, False, True, False, False]


def test_a_number_across_two_windows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.spark.source.blocks._GUARDED_BYTES", 7)
    for number in (b"9" * 20, b"1e-39", b"0." + b"1" * 20):
        for before in range(14):
            assert trusted(pa.decimal128(38, 0), b"x" * before, b"y" + number, b"") == [True, False, True]


@given(scale=st.sampled_from([0, 9, 25, 31, 33, 36, 38]), lines=st.lists(LINE, min_size=1, max_size=5))
def test_the_guard_finds_the_same_lines_as_a_plain_search(scale: int, lines: list[bytes]) -> None:
    behind = max(19, scale)
    run = re.compile(rb"(?<![0-9.])0*[1-9][0-9]{%d}|[0-9]{%d}" % (38 - behind, behind + 1))
    expected = [not (EXPONENT.search(line) or run.search(line) or ESCAPED.search(line)) for line in lines]
    assert trusted(pa.decimal128(38, scale), *lines) == expected


def test_other_types_are_not_checked() -> None:
    assert trusted(pa.string(), b"1e-39", b"9" * 40) == [True, True]
