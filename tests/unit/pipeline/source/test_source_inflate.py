"""Bounded decompression: it returns the whole content, or a reason."""

import bz2
import gzip
import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import zstandard

from penstock.errors import ObjectUnreadable
from penstock.objects.reference import ObjectRef
from penstock.pipeline.spark.source.inflate import CODECS, WINDOW_BYTES_MAX, CompressionCodec, codec_of, inflate

LINES = b"".join(b'{"id":%d}\n' % number for number in range(60))
SKIPPABLE = b"\x53\x2a\x4d\x18\x04\x00\x00\x00skip"


@dataclass(frozen=True)
class Squeezed:
    codec: CompressionCodec
    squeeze: Callable[[bytes], bytes]


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(data)


SQUEEZES: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "bzip2": bz2.compress, "zstd": zstd}
KINDS = {codec.name: Squeezed(codec, SQUEEZES[codec.name]) for codec in CODECS}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Squeezed:
    return KINDS[request.param]


def inflated(kind: Squeezed, data: bytes, *, piece_bytes: int = 64, total_bytes_max: int = 1 << 20) -> bytes:
    read = io.BytesIO(data).read
    pieces = list(inflate(read, kind.codec, piece_bytes=piece_bytes, total_bytes_max=total_bytes_max, uri="u"))
    assert all(0 < len(piece) <= piece_bytes for piece in pieces)
    return b"".join(pieces)


def test_the_codec_is_chosen_by_the_name() -> None:
    def name(key: str) -> str | None:
        codec = codec_of(ObjectRef(bucket="b", key=key, size_bytes=1, etag="e"))
        return codec.name if codec else None

    assert [name(key) for key in ("a.jsonl.gz", "a.csv.BZ2", "a.zst", "a.ZSTD", "a.gz.csv", "gz", "a.zip")] == [
        "gzip",
        "bzip2",
        "zstd",
        "zstd",
        None,
        None,
        None,
    ]


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 1 << 20])
def test_several_members_and_trailing_zeros_are_accepted(kind: Squeezed, piece_bytes: int) -> None:
    data = kind.squeeze(LINES) + kind.squeeze(b"") + kind.squeeze(b"x\n" * 500) + b"\0" * 700
    assert inflated(kind, data, piece_bytes=piece_bytes) == LINES + b"x\n" * 500


def test_reading_in_the_smallest_steps_returns_the_same(kind: Squeezed) -> None:
    data = io.BytesIO(kind.squeeze(LINES) + kind.squeeze(LINES))
    pieces = inflate(lambda size: data.read(1), kind.codec, piece_bytes=8, total_bytes_max=1 << 20, uri="u")
    assert b"".join(pieces) == LINES * 2


def test_empty_data_inflates_to_empty_data(kind: Squeezed) -> None:
    assert inflated(kind, b"") == b""


def test_a_skippable_frame_is_skipped() -> None:
    kind = KINDS["zstd"]
    assert inflated(kind, SKIPPABLE + zstd(LINES) + SKIPPABLE + zstd(b"x")) == LINES + b"x"


def test_data_cut_off_at_any_byte_is_reported_as_truncated(kind: Squeezed) -> None:
    data = kind.squeeze(LINES)
    for length in range(1, len(data)):
        with pytest.raises(ObjectUnreadable, match=f"truncated {kind.codec.name}"):
            inflated(kind, data[:length])


def test_a_second_member_cut_off_at_any_byte_is_reported_as_truncated(kind: Squeezed) -> None:
    first, second = kind.squeeze(b"a\n"), kind.squeeze(LINES)
    for length in range(1, len(second)):
        with pytest.raises(ObjectUnreadable, match=f"truncated {kind.codec.name}"):
            inflated(kind, first + second[:length])


# The checksum covers neither the time and name in gzip's header nor the window and an unused bit in zstd's.
COVERED_FROM = {"gzip": 10, "bzip2": 4, "zstd": 6}


def test_any_flipped_bit_of_the_data_or_the_trailer_is_detected(kind: Squeezed) -> None:
    data = kind.squeeze(LINES)
    for at in range(COVERED_FROM[kind.codec.name], len(data)):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        try:
            assert inflated(kind, damaged) == LINES, "damaged data that passes is unchanged"
        except ObjectUnreadable:
            continue
        assert kind.codec.name == "bzip2", "only bzip2 has unused bits in its last byte"


def test_data_after_the_end_or_in_another_format_is_refused(kind: Squeezed) -> None:
    for garbage in (b"g", b"garbage", b"\0\0garbage"):
        with pytest.raises(ObjectUnreadable, match="behind the end"):
            inflated(kind, kind.squeeze(LINES) + garbage)
    with pytest.raises(ObjectUnreadable, match="is none"):
        inflated(kind, LINES)


def gzip_bomb() -> bytes:
    squeezer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(squeezer.compress(bytes(1 << 20)) for _ in range(20)) + squeezer.flush()


def bzip2_bomb() -> bytes:
    squeezer = bz2.BZ2Compressor()
    return b"".join(squeezer.compress(bytes(1 << 20)) for _ in range(20)) + squeezer.flush()


def zstd_bomb() -> bytes:
    """A gigabyte in 32 KB: blocks of one byte repeated 128 Ki times, 4 bytes each (RFC 8878, 3.1.1.2)."""
    block = (1 << 1 | (128 << 10) << 3).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd" + b"\x00\x38" + block * 8_192


@pytest.mark.parametrize(("name", "bomb"), [("gzip", gzip_bomb()), ("bzip2", bzip2_bomb()), ("zstd", zstd_bomb())])
def test_row_28_a_decompression_bomb_stops_at_the_limit(name: str, bomb: bytes) -> None:
    with pytest.raises(ObjectUnreadable, match="more than 1048576 bytes"):
        inflated(KINDS[name], bomb, piece_bytes=4096)


def test_a_frame_with_a_large_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    squeezer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = squeezer.compress(LINES) + squeezer.flush()
    assert WINDOW_BYTES_MAX < 1 << 28
    with pytest.raises(ObjectUnreadable, match=r"corrupt zstd .* too much memory"):
        inflated(KINDS["zstd"], data)
