"""The check that texts of objects are UTF-8, which does not read ASCII text by text."""

import itertools
import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from penstock.pipeline.spark.source.fit import fit


def texts(values: Sequence[bytes]) -> pa.Array:
    """Return an array of unchecked strings, as Arrow's readers return them."""
    ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(values)))


def refused(values: pa.Array) -> list[bool]:
    fitted = fit(values, pa.string())
    return [False] * len(values) if fitted.refused is None else fitted.refused.tolist()


@pytest.mark.parametrize("values", [[b"plain", b"", b"text"], ["größer".encode(), b"x", "字".encode()], [b""], []])
def test_texts_in_utf8_fit(values: list[bytes]) -> None:
    assert refused(texts(values)) == [False] * len(values)
    assert fit(texts(values), pa.string()).values.to_pylist() == [value.decode() for value in values]


@pytest.mark.parametrize("bad", [b"\xff", b"\x80", "ü".encode()[:1], b"a" * 100 + b"\xc3"])
@pytest.mark.parametrize("place", [0, 1, 20, 39])
def test_a_text_that_is_not_utf8_is_refused_alone(bad: bytes, place: int) -> None:
    values = [b"ascii"] * 40
    values[place] = bad
    assert refused(texts(values)) == [number == place for number in range(40)]


def test_a_character_that_two_texts_share_is_in_neither() -> None:
    first, last = "é".encode()[:1], "é".encode()[1:]
    assert refused(texts([b"a", first, last, b"b"])) == [False, True, True, False]


def test_only_the_texts_of_a_slice_are_checked() -> None:
    values = texts([b"\xff", b"one", b"two", b"\xff", b"three"])
    assert refused(values.slice(1, 2)) == [False, False]
    assert refused(values.slice(2, 3)) == [False, True, False]


def test_texts_beyond_the_end_of_a_buffer_do_not_fit() -> None:
    """Arrow's reader of IPC streams trusts the number of rows."""
    stream = pa.BufferOutputStream()
    whole = pa.table({"text": ["word"] * 13})
    with pa.ipc.new_stream(stream, whole.schema) as writer:
        writer.write_table(whole)
    damaged = stream.getvalue().to_pybytes().replace(struct.pack("<q", 13), struct.pack("<q", 40))
    values = pa.ipc.open_stream(damaged).read_all().column(0).chunk(0)
    assert refused(values) == [False] * 13 + [True] * 27


@pytest.mark.parametrize("ends", [[0, 4, 2, 6], [0, 2, 99, 6], [0, -2, 4, 6]])
def test_texts_whose_offsets_are_invalid_do_not_fit(ends: list[int]) -> None:
    """Arrow checks only the first and the last offset of the arrays that a reader function makes."""
    values = pa.StringArray.from_buffers(3, pa.py_buffer(np.array(ends, np.int32)), pa.py_buffer(b"abcdef"))
    flags = refused(values)
    for number, (start, end) in enumerate(itertools.pairwise(ends)):
        assert flags[number] == (not 0 <= start <= end <= 6)
