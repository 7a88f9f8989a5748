"""Lines of a file or a pipe, in chunks, each with its number."""

from collections.abc import Iterator, Sequence
from typing import BinaryIO

from penstock.errors import UsageError

READ_BYTES = 1024 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024  # far beyond what any queue takes
CHUNK_MAX = 1_000

Line = tuple[int, bytes]  # its number, from 1, and what it holds


def chunks_of(stream: BinaryIO) -> Iterator[Sequence[Line]]:
    """The lines that are not blank, as they come: what a slow pipe has brought is not kept waiting for more."""
    number = 0
    rest = b""
    while True:
        read: bytes = stream.read1(READ_BYTES)  # type: ignore[attr-defined]  # every buffered stream has it
        *whole, rest = (rest + read).split(b"\n")
        if not read:
            whole, rest = [rest], b""
        if len(rest) > LINE_BYTES_MAX:
            raise UsageError(f"Line {number + len(whole) + 1:,} is longer than {LINE_BYTES_MAX:,} bytes.")
        lines = [(n, line.removesuffix(b"\r")) for n, line in enumerate(whole, start=number + 1) if line.strip()]
        number += len(whole)
        for first in range(0, len(lines), CHUNK_MAX):
            yield lines[first : first + CHUNK_MAX]
        if not read:
            return


def only_one(chunks: Iterator[Sequence[Line]]) -> Iterator[Sequence[Line]]:
    """The one line there is, read to the end before it is sent."""
    lines: list[Line] = []
    for chunk in chunks:
        lines += chunk
        if len(lines) > 1:
            raise UsageError("With --deduplication-id all but the first message would be dropped; send one at a time.")
    if lines:
        yield lines
