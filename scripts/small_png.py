"""Write images as PNG files with a palette of at most 256 colours: screenshots of pages lose nothing that people see.

NumPy only. The palette has the most frequent colours; each other colour becomes the nearest one of them.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

COLOURS_MAX = 256
AT_ONCE = 4_096  # colours compared with the palette in one step

Pixels = NDArray[np.uint8]  # height, width, RGB


def small_png(pixels: Pixels) -> bytes:
    """Return the PNG file of an image (height x width x RGB)."""
    height, width, _ = pixels.shape
    flat = pixels.reshape(-1, 3).astype(np.uint32)
    colours, places, counts = np.unique(
        (flat[:, 0] << 16) | (flat[:, 1] << 8) | flat[:, 2], return_inverse=True, return_counts=True
    )
    palette = np.sort(colours[np.argsort(counts)[::-1][:COLOURS_MAX]])
    rows = _nearest(colours, palette)[places].reshape(height, width)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", _channels(palette).astype(np.uint8).tobytes()),
            _chunk(b"IDAT", zlib.compress(lines, 9)),
            _chunk(b"IEND", b""),
        )
    )


def _nearest(colours: NDArray[np.uint32], palette: NDArray[np.uint32]) -> Pixels:
    """Return for each colour the place of the nearest one in the palette."""
    known = _channels(palette)
    found = [
        ((_channels(colours[first : first + AT_ONCE])[:, None] - known[None]) ** 2).sum(axis=2).argmin(axis=1)
        for first in range(0, len(colours), AT_ONCE)
    ]
    return np.concatenate(found).astype(np.uint8)


def _channels(colours: NDArray[np.uint32]) -> NDArray[np.int32]:
    return np.stack([(colours >> shift) & 0xFF for shift in (16, 8, 0)], axis=1).astype(np.int32)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
