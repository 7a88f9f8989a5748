"""Bounded inflation: all of it, or a reason."""

import gzip
import io
import zlib

import pytest

from penstock.errors import ObjectUnreadable
from penstock.pipeline.source.inflate import inflate_gzip

LINES = b"".join(b'{"id":%d}\n' % number for number in range(60))


def inflate(data: bytes, *, piece_bytes: int = 64, total_bytes_max: int = 1 << 20) -> bytes:
    pieces = list(
        inflate_gzip(io.BytesIO(data).read, piece_bytes=piece_bytes, total_bytes_max=total_bytes_max, uri="u")
    )
    assert all(0 < len(piece) <= piece_bytes for piece in pieces)
    return b"".join(pieces)


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 1 << 20])
def test_members_follow_each_other_and_zeros_may_follow_them(piece_bytes: int) -> None:
    data = gzip.compress(LINES) + gzip.compress(b"") + gzip.compress(b"x\n" * 500) + b"\0" * 700
    assert inflate(data, piece_bytes=piece_bytes) == LINES + b"x\n" * 500


def test_nothing_inflates_to_nothing() -> None:
    assert inflate(b"") == b""


def test_cut_off_at_any_byte_it_is_truncated() -> None:
    data = gzip.compress(LINES)
    for length in range(1, len(data)):
        with pytest.raises(ObjectUnreadable, match="truncated gzip"):
            inflate(data[:length])


def test_a_second_member_cut_off_at_any_byte_is_truncated() -> None:
    first, second = gzip.compress(b"a\n"), gzip.compress(LINES)
    for length in range(1, len(second)):
        with pytest.raises(ObjectUnreadable, match="truncated gzip"):
            inflate(first + second[:length])


def test_any_flipped_bit_of_the_data_or_the_trailer_is_noticed() -> None:
    data = gzip.compress(LINES, mtime=0)
    for at in range(10, len(data)):
        with pytest.raises(ObjectUnreadable):
            inflate(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_what_follows_the_end_or_is_no_gzip_is_named() -> None:
    with pytest.raises(ObjectUnreadable, match="behind the end"):
        inflate(gzip.compress(LINES) + b"garbage")
    with pytest.raises(ObjectUnreadable, match="is none"):
        inflate(LINES)


def test_row_28_a_bomb_ends_at_the_limit() -> None:
    squeezer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(squeezer.compress(bytes(1 << 20)) for _ in range(20)) + squeezer.flush()
    with pytest.raises(ObjectUnreadable, match="more than 1048576 bytes"):
        inflate(bomb, piece_bytes=4096)
