import struct
import zlib

import numpy as np
from scripts.small_png import COLOURS_MAX, Pixels, small_png


def decoded(png: bytes) -> Pixels:
    """Read a PNG file as `small_png` writes it."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = dict[bytes, bytes](), 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + content),)
        chunks[kind], at = content, at + 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), dtype=np.uint8).reshape(height, width + 1)
    return np.frombuffer(chunks[b"PLTE"], dtype=np.uint8).reshape(-1, 3)[lines[:, 1:]]


def test_an_image_of_few_colours_is_kept_exactly() -> None:
    pixels = np.zeros((30, 40, 3), dtype=np.uint8)
    pixels[3:20, 5:30] = (255, 0, 7)
    pixels[25:, :] = (1, 2, 3)
    assert (decoded(small_png(pixels)) == pixels).all()


def test_rare_colours_become_the_nearest_frequent_one() -> None:
    grey = np.repeat(np.arange(COLOURS_MAX, dtype=np.uint8), 3).reshape(1, -1, 3)
    pixels = np.concatenate([grey, grey, np.full((1, COLOURS_MAX, 3), (100, 100, 102), dtype=np.uint8)])
    pixels[2, 1:] = (0, 0, 0)
    found = decoded(small_png(pixels))
    assert (found[:2] == pixels[:2]).all()
    assert found[2, 0].tolist() in ([100, 100, 100], [101, 101, 101])
