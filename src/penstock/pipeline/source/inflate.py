"""Bounded inflation of gzip: pieces of at most a given size, every checksum verified, nothing left over at the end.

A gzip object is one member or several, each with its own checksum and length (RFC 1952); zeros behind the last one are
padding, as tape and block devices leave it. Anything else behind it, a wrong checksum or an early end is an error: what
came out before it is then not the object.
"""

import zlib
from collections.abc import Callable, Iterator

from penstock.errors import ObjectUnreadable

_READ_BYTES = 1 << 20
_GZIP = 16 + zlib.MAX_WBITS  # zlib's way to say: with gzip's header and trailer


def inflate_gzip(read: Callable[[int], bytes], *, piece_bytes: int, total_bytes_max: int, uri: str) -> Iterator[bytes]:
    """The inflated bytes in pieces of at most ``piece_bytes``; when it ends, all checksums were right.

    ``read(n)`` gives at most n compressed bytes, b"" at the end. An object of 0 bytes inflates to nothing.
    Raises `ObjectUnreadable` for what is no gzip, is cut off, is corrupt, has bytes behind its end, or inflates to more
    than ``total_bytes_max``. Memory: one piece and one read, whatever the ratio.
    """
    total = 0
    members = 0
    data = read(_READ_BYTES)
    while data:
        member = zlib.decompressobj(_GZIP)
        members += 1
        ended = False
        while not ended:
            data = data or read(_READ_BYTES)
            try:
                piece = member.decompress(data, piece_bytes)  # zlib may hold back output when all input is taken
            except zlib.error as error:
                raise ObjectUnreadable(_corrupt(uri, members, total, error)) from error
            ended = member.eof
            if not (data or piece or ended):
                raise ObjectUnreadable(f"{uri} is a truncated gzip: it ends after {total} inflated bytes")
            data = member.unused_data if ended else member.unconsumed_tail
            total += len(piece)
            if total > total_bytes_max:
                raise ObjectUnreadable(f"{uri} inflates to more than {total_bytes_max} bytes, the limit for one object")
            if piece:
                yield piece
        data = _next_member(data, read)


def _next_member(data: bytes, read: Callable[[int], bytes]) -> bytes:
    """The bytes from the next member on; padding is skipped."""
    while not (stripped := data.lstrip(b"\0")):
        data = read(_READ_BYTES)
        if not data:
            return b""
    return stripped


def _corrupt(uri: str, members: int, total: int, error: zlib.error) -> str:
    if "incorrect header check" in str(error):
        if members == 1:
            return f"{uri} is named like a gzip and is none"
        return f"{uri} has bytes behind the end of its gzip data, after {total} inflated bytes"
    return f"{uri} is a corrupt gzip after {total} inflated bytes: {error}"
