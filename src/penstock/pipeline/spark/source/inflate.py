"""Bounded inflation: pieces of at most a given size, every checksum verified, nothing left over at the end.

A compressed object is one member or several, one behind the other: gzip's members (RFC 1952), bzip2's streams,
Zstandard's frames (RFC 8878), each with its own end and checksum (Zstandard's is optional). Zeros behind the last one
are padding, as tape and block devices leave it. Anything else behind it, a wrong checksum or an early end is an error:
what came out before it is then not the object.

A codec is a `CompressionCodec` here; what differs between them is how one member is inflated.

Zstandard, by the ``zstandard`` package: one frame, inflated in bounded steps, with a bounded window.

The package hands out all that its input inflates to at once, so it is fed a few bytes at a time: a block is at most
128 KiB (RFC 8878, 3.1.1.2) and takes four bytes at least, so what one feeding gives has a bound.
"""

import bz2
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from penstock.errors import ConfigurationError, ObjectUnreadable
from penstock.objects.reference import ObjectRef

MAGICS = (b"\x28\xb5\x2f\xfd", *(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60)))  # skippable frames
WINDOW_BYTES_MAX = 128 << 20  # what the zstd program takes without being told otherwise
_FED_BYTES = 256  # gives 8 MiB at most; feeding more at once is hardly quicker (720 MB/s against 830 with 512)


class Corrupt(Exception):
    """The compressed bytes are not what they should be."""


class ZstdFrame:
    """One frame. See `penstock.pipeline.spark.source.inflate.Inflater`."""

    def __init__(self) -> None:
        self._frame: Any = _package().ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).decompressobj()
        self._data = memoryview(b"")  # given, and not fed yet
        self._ready = b""  # inflated, and not handed out yet

    @property
    def hungry(self) -> bool:
        return not self._data and not self._ready and not self._frame.eof

    @property
    def ended(self) -> bool:
        return bool(self._frame.eof) and not self._ready

    @property
    def behind(self) -> bytes:
        return bytes(self._frame.unused_data) + bytes(self._data)

    def inflate(self, data: bytes, bytes_max: int) -> bytes:
        if data:
            self._data = memoryview(data)
        if not self._ready:
            self._ready = self._fed(bytes_max)
        piece, self._ready = self._ready[:bytes_max], self._ready[bytes_max:]
        return piece

    def _fed(self, bytes_max: int) -> bytes:
        gathered: list[bytes] = []
        size = 0
        while self._data and size < bytes_max and not self._frame.eof:
            try:
                gathered.append(self._frame.decompress(self._data[:_FED_BYTES]))
            except _package().ZstdError as error:
                raise Corrupt(str(error)) from error
            self._data = self._data[_FED_BYTES:]
            size += len(gathered[-1])
        return b"".join(gathered)


@cache
def _package() -> Any:
    """The package, looked for when the first frame comes: few objects need it, and executors should start quickly."""
    try:
        import zstandard
    except ImportError as error:
        raise ConfigurationError(
            "Objects compressed with zstd need the package zstandard, which is not installed: pip install "
            "'penstock[pipeline]' on the driver and the executors."
        ) from error
    return zstandard


_READ_BYTES = 1 << 20
_MAGIC_BYTES_MAX = 4
_GZIP = 16 + zlib.MAX_WBITS  # zlib's way to say: with gzip's header and trailer


class Inflater(Protocol):
    """One member, on its way out. Keeps what it was given and has not used yet."""

    @property
    def hungry(self) -> bool:
        """Whether it needs more bytes to give more."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the member's end was reached, and all of it given out."""
        ...

    @property
    def behind(self) -> bytes:
        """Once it has ended: the bytes it was given that are not the member's."""
        ...

    def inflate(self, data: bytes, bytes_max: int) -> bytes:
        """At most that many bytes, perhaps none; ``data`` only where it is hungry. Raises `Corrupt`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionCodec:
    """A way to compress. It goes by the object's name, as Hadoop has it: what is named otherwise is lines."""

    name: str
    suffixes: tuple[bytes, ...]
    magics: tuple[bytes, ...]  # how a member begins
    begin: Callable[[], Inflater]

    def begins(self, data: bytes) -> bool:
        """Whether a member begins like that, or may, where data is that short."""
        return any(data.startswith(magic[: len(data)]) for magic in self.magics)


class _Gzip:
    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP)

    @property
    def hungry(self) -> bool:
        return not self._member.unconsumed_tail

    @property
    def ended(self) -> bool:
        return self._member.eof

    @property
    def behind(self) -> bytes:
        return self._member.unused_data

    def inflate(self, data: bytes, bytes_max: int) -> bytes:
        try:
            return self._member.decompress(data or self._member.unconsumed_tail, bytes_max)
        except zlib.error as error:
            raise Corrupt(str(error)) from error


class _Bz2:
    def __init__(self) -> None:
        self._stream = bz2.BZ2Decompressor()

    @property
    def hungry(self) -> bool:
        return self._stream.needs_input

    @property
    def ended(self) -> bool:
        return self._stream.eof

    @property
    def behind(self) -> bytes:
        return self._stream.unused_data

    def inflate(self, data: bytes, bytes_max: int) -> bytes:
        try:
            return self._stream.decompress(data, bytes_max)
        except (OSError, ValueError) as error:
            raise Corrupt(str(error)) from error


CODECS = (
    CompressionCodec(name="gzip", suffixes=(b".gz",), magics=(b"\x1f\x8b",), begin=_Gzip),
    CompressionCodec(name="bzip2", suffixes=(b".bz2",), magics=(b"BZh",), begin=_Bz2),
    CompressionCodec(name="zstd", suffixes=(b".zst", b".zstd"), magics=MAGICS, begin=ZstdFrame),
)


def codec_of(ref: ObjectRef) -> CompressionCodec | None:
    """How the object is compressed, by its name; None for plain lines."""
    name = ref.key_bytes.lower()
    return next((codec for codec in CODECS if name.endswith(codec.suffixes)), None)


def inflate(
    read: Callable[[int], bytes], codec: CompressionCodec, *, piece_bytes: int, total_bytes_max: int, uri: str
) -> Iterator[bytes]:
    """The inflated bytes in pieces of at most ``piece_bytes``; when it ends, all checksums were right.

    ``read(n)`` gives at most n compressed bytes, b"" at the end. An object of 0 bytes inflates to nothing.
    Raises `ObjectUnreadable` for what is not of the codec, is cut off, is corrupt, has bytes behind its end, or
    inflates to more than ``total_bytes_max``. Memory: a piece, a read and the codec's window, whatever the ratio.
    """
    return _Inflation(read, codec, piece_bytes, total_bytes_max, uri).pieces()


class _Inflation:
    """One object on its way out."""

    def __init__(
        self, read: Callable[[int], bytes], codec: CompressionCodec, piece_bytes: int, total_bytes_max: int, uri: str
    ) -> None:
        self._read = read
        self._codec = codec
        self._piece_bytes = piece_bytes
        self._total_bytes_max = total_bytes_max
        self._uri = uri
        self._total = 0
        self._members = 0

    def pieces(self) -> Iterator[bytes]:
        data = self._read(_READ_BYTES)
        while data:
            data = self._next_member((yield from self._member(data)))

    def _member(self, data: bytes) -> Generator[bytes, None, bytes]:
        """The pieces of one member; returns what was read beyond its end."""
        if not self._codec.begins(data):
            raise ObjectUnreadable(self._stranger())
        member = self._codec.begin()
        self._members += 1
        while not member.ended:
            at_end = False
            if member.hungry and not data:
                data = self._read(_READ_BYTES)
                at_end = not data
            try:
                piece = member.inflate(data, self._piece_bytes)
            except Corrupt as error:
                raise ObjectUnreadable(
                    f"{self._uri} is a corrupt {self._codec.name} after {self._total} inflated bytes: {error}"
                ) from error
            data = b""
            if at_end and not piece and not member.ended:
                raise ObjectUnreadable(
                    f"{self._uri} is a truncated {self._codec.name}: it ends after {self._total} inflated bytes"
                )
            self._count(piece)
            if piece:
                yield piece
        return member.behind

    def _count(self, piece: bytes) -> None:
        self._total += len(piece)
        if self._total > self._total_bytes_max:
            raise ObjectUnreadable(
                f"{self._uri} inflates to more than {self._total_bytes_max} bytes, the limit for one object"
            )

    def _next_member(self, data: bytes) -> bytes:
        """The bytes from the next member on, enough to know it by; padding is skipped."""
        while not (stripped := data.lstrip(b"\0")):
            data = self._read(_READ_BYTES)
            if not data:
                return b""
        if len(stripped) < _MAGIC_BYTES_MAX:
            stripped += self._read(_READ_BYTES)
        return stripped

    def _stranger(self) -> str:
        if self._members == 0:
            return f"{self._uri} is named like a {self._codec.name} and is none"
        return (
            f"{self._uri} has bytes behind the end of its {self._codec.name} data, after {self._total} inflated bytes"
        )
