"""Zstandard, by the ``zstandard`` package: one frame, inflated in bounded steps, with a bounded window.

The package hands out all that its input inflates to at once, so it is fed a few bytes at a time: a block is at most
128 KiB (RFC 8878, 3.1.1.2) and takes four bytes at least, so what one feeding gives has a bound.
"""

from functools import cache
from typing import Any

from penstock.errors import ConfigurationError

MAGICS = (b"\x28\xb5\x2f\xfd", *(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60)))  # skippable frames
WINDOW_BYTES_MAX = 128 << 20  # what the zstd program takes without being told otherwise
_FED_BYTES = 256  # gives 8 MiB at most; feeding more at once is hardly quicker (720 MB/s against 830 with 512)


class Corrupt(Exception):
    """The compressed bytes are not what they should be."""


class ZstdFrame:
    """One frame. See `penstock.pipeline.source.inflate.Inflater`."""

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
