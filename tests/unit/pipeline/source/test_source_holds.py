"""The search for two bytes in a block finds them at every place, and nothing else."""

import pytest

from penstock.pipeline.spark.source.blocks import holds

LONG = 1 << 18  # 16-bit words of two windows


@pytest.mark.parametrize("before", [0, 1, 2, 3, LONG - 2, LONG - 1, LONG, LONG + 1])
@pytest.mark.parametrize("after", [0, 1, LONG])
def test_two_bytes_are_found_wherever_they_are(before: int, after: int) -> None:
    block = b"0" * before + b"0x" + b"x" * after
    assert holds(block, b"0x")
    assert not holds(block, b"x0")
    assert not holds(block, b"0X")


@pytest.mark.parametrize("text", [b"x", b"0x", b"0xf"])
def test_a_block_as_short_as_the_text_or_shorter(text: bytes) -> None:
    assert holds(text, text)
    assert not holds(text[:-1], text)
    assert not holds(b"", text)


def test_other_lengths_are_searched_too() -> None:
    assert holds(b"a,NA\n", b",NA")
    assert not holds(b"a,N\n", b",NA")
    assert holds(b"a,N\n", b"\n")
