"""The standard streams, made safe to use whatever the caller did to them: closed, full, or of an odd encoding."""

import os
import sys
from contextlib import suppress
from io import TextIOWrapper


def prepare_streams() -> None:
    """Give the process three standard streams that can say any text.

    A closed descriptor is opened on the null device: else the first database opened would get its number, and what a
    child process prints would land in it. What a stream's encoding lacks is written as an escape.
    """
    for descriptor in (0, 1, 2):
        _open_if_closed(descriptor)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - it lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - as above
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def deliver() -> OSError | None:
    """Write out what is still buffered; answers why it could not be, and then sees to it that nobody tries again."""
    failure: OSError | None = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            failure = failure or error
            _discard(stream.fileno())
    return failure


def _open_if_closed(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        os.set_inheritable(descriptor, True)


def _discard(descriptor: int) -> None:
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)
