"""Inflate the blocks of Avro objects, each up to a limit."""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

import pyarrow as pa

from penstock.pipeline.spark.source.avro_values import Damage
from penstock.pipeline.spark.source.inflate import Corrupt, ZstdFrame

_CRC_BYTES = 4
_ADLER_BYTES = 4
_XZ_MEMORY_BYTES_MAX = 256 << 20  # more than what the highest level of xz needs
_PIECE_BYTES = 1 << 20
_MORE = "other bytes follow its end"


class TooLarge(Exception):
    """A block inflates to more than the limit."""


Inflate = Callable[[bytes, int], bytes]  # takes the stored bytes and the limit; raises `Damage` and `TooLarge`


class _Stream(Protocol):
    """A decompressor of the standard library."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _plain(data: bytes, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise TooLarge
    return data


def _deflated(data: bytes, bytes_max: int) -> bytes:
    """Inflate a block. Avro's own library for Python, and fastavro, leave a part of zlib's checksum behind it."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    found = _inflated(stream, data, bytes_max)
    rest = stream.unused_data
    if rest and (len(rest) > _ADLER_BYTES or rest != zlib.adler32(found).to_bytes(_ADLER_BYTES, "big")[: len(rest)]):
        raise Damage("wrong checksum")
    return found


def _bzip2(data: bytes, bytes_max: int) -> bytes:
    return _ended(bz2.BZ2Decompressor(), data, bytes_max)


def _xz(data: bytes, bytes_max: int) -> bytes:
    return _ended(lzma.LZMADecompressor(memlimit=_XZ_MEMORY_BYTES_MAX), data, bytes_max)


def _ended(stream: _Stream, data: bytes, bytes_max: int) -> bytes:
    found = _inflated(stream, data, bytes_max)
    if stream.unused_data:
        raise Damage(_MORE)
    return found


def _inflated(stream: _Stream, data: bytes, bytes_max: int) -> bytes:
    try:
        found = stream.decompress(data, bytes_max + 1)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise Damage(str(error)) from error
    if len(found) > bytes_max:
        raise TooLarge
    if not stream.eof:
        raise Damage("it is cut off")
    return found


def _zstandard(data: bytes, bytes_max: int) -> bytes:
    frame = ZstdFrame()
    found = io.BytesIO()
    try:
        found.write(frame.inflate(data, _PIECE_BYTES))
        while not frame.ended:
            if found.tell() > bytes_max:
                raise TooLarge
            if frame.hungry:
                raise Damage("it is cut off")
            found.write(frame.inflate(b"", _PIECE_BYTES))
    except Corrupt as error:
        raise Damage(str(error)) from error
    if found.tell() > bytes_max:
        raise TooLarge
    if frame.behind:
        raise Damage(_MORE)
    return found.getvalue()


def _snappy(data: bytes, bytes_max: int) -> bytes:
    """Inflate a block of snappy, which begins with its size and is followed by a checksum of the inflated bytes."""
    stored, checksum = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    size_bytes = _snappy_size(stored)
    if size_bytes > bytes_max:
        raise TooLarge
    try:
        found: bytes = pa.decompress(stored, size_bytes, "snappy", asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise Damage("corrupt input") from error
    if zlib.crc32(found) != int.from_bytes(checksum, "big"):
        raise Damage("wrong checksum")
    return found


def _snappy_size(stored: bytes) -> int:
    size = 0
    for place, byte in enumerate(stored[:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return size
    raise Damage("it has no size")


CODECS: Mapping[str, Inflate] = {
    "null": _plain,
    "deflate": _deflated,
    "snappy": _snappy,
    "bzip2": _bzip2,
    "xz": _xz,
    "zstandard": _zstandard,
}
