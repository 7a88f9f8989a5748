"""Standard streams that work whatever the caller did to them: closed, full, or with an unusual encoding."""

import os
import sys
from contextlib import suppress
from io import TextIOWrapper


def prepare_streams() -> None:
    """Give the process three standard streams that accept any text.

    A closed descriptor is opened on the null device: otherwise the first database file would get its number, and the
    output of a child process would be written into it. Characters that the encoding lacks are escaped.
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
    """Flush the streams; return the error if that fails.

    The rest of the output is then discarded, so that the interpreter does not try again.
    """
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
        os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
        os.set_inheritable(descriptor, True)


def _discard(descriptor: int) -> None:
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)
