"""Content kept for reading: in memory while it is small, else in a temporary file without a name."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO

from penstock.errors import TemporaryError


def spooled(chunks: Iterable[bytes], *, memory_bytes_max: int, scratch: Path | None) -> IO[bytes]:
    """A binary file that holds all the chunks, at its beginning; closing it frees it.

    Raises `TemporaryError` when the machine cannot hold them (a full disk), and what the chunks raise.
    """
    file = SpooledTemporaryFile(max_size=memory_bytes_max, dir=None if scratch is None else str(scratch))  # noqa: SIM115 - the caller closes it
    try:
        for chunk in chunks:
            try:
                file.write(chunk)
            except OSError as fault:
                raise TemporaryError(f"content cannot be kept in a temporary file: {fault}") from fault
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file
