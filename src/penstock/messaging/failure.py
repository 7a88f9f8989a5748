"""Describe exceptions as text that may be stored and shown, and compute the same fingerprint for equal failures.

The text never contains the values of variables. A fingerprint consists of handler, exception type, and the place in
the user's code: file and function of the innermost frame that belongs neither to Penstock nor to the standard
library. It has only the last two parts of the file's path, because the folders above differ between machines, and no
line number, because that moves with every edit. For a failure in a child process only the text of the traceback is
available.
"""

import re
import sysconfig
import traceback as tracebacks
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from penstock.errors import TransformError, UserError

TRACEBACK_CHARS_MAX = 32_000
_PENSTOCK = str(Path(__file__).parents[1])
_LIBRARIES = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_INSTALLED = ("site-packages", "dist-packages")  # may lie below the standard library, but are not part of it
_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ +File "([^"\n]+)", line (\d+)', re.MULTILINE)
_LIBRARY = re.compile(  # the standard library, PySpark, and packages shipped to executors as archives
    r"[/\\](?:lib(?:64)?[/\\]python3\.\d+|python[/\\](?:lib[/\\])?pyspark(?:\.zip)?|(?:py4j|penstock)[^/\\]*\.zip)[/\\]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDetails:
    """An exception as text."""

    error_type: str
    error: str
    traceback: str

    @property
    def summary(self) -> str:
        """Return the type and message."""
        return f"{self.error_type}: {self.error}" if self.error else self.error_type


def failure_of(raised: BaseException) -> FailureDetails:
    """Describe an exception. An exception from another process has its description in the attribute ``failure``.

    Never raises, whatever the exception's own methods do.
    """
    described = vars(raised).get("failure")
    if isinstance(described, FailureDetails):
        return described
    try:
        error = str(raised)
    except Exception:
        error = "(it has no readable text)"
    try:
        # Local variables may hold secrets.
        text = "".join(tracebacks.TracebackException.from_exception(raised, capture_locals=False).format())
    except Exception:
        text = f"{type(raised).__name__}: {error}\n"
    return FailureDetails(error_type=type(raised).__name__, error=error, traceback=text[-TRACEBACK_CHARS_MAX:])


def end_of(raised: BaseException) -> FailureDetails:
    """Describe the exception that ended a worker.

    The traceback of a `UserError` is left out, because a place in Penstock's code does not help. A `TransformError`
    keeps it, because it leads into the user's code.
    """
    failure = failure_of(raised)
    if isinstance(raised, UserError) and not isinstance(raised, TransformError):
        return replace(failure, traceback="")
    return failure


def location_of(raised: BaseException) -> str | None:
    """Return the place in the user's code where the exception was raised, as ``shop.py:12``.

    This is the innermost frame outside Penstock, the standard library and installed packages; None if there is none.
    """
    frames = [frame for frame, _ in tracebacks.walk_tb(raised.__traceback__)]
    lines = [number for _, number in tracebacks.walk_tb(raised.__traceback__)]
    for frame, line in zip(reversed(frames), reversed(lines), strict=True):
        file = frame.f_code.co_filename
        if not is_library(file) and not any(part in file for part in _INSTALLED):
            return f"{PurePath(file).name}:{line}"
    return None


def location_in(traceback: str) -> str | None:
    """Return the place of the innermost frame in the user's code of a formatted traceback, as ``shop.py:12``.

    The traceback may come from another host, so libraries are also recognised by the usual names of their folders.
    """
    for file, line in reversed(_FRAME.findall(traceback)):
        if _is_users(file):
            return f"{PurePath(file).name}:{line}"
    return None


def from_users_code(traceback: str) -> str:
    """Return a formatted traceback without the frames that called the user's code, in each of its parts.

    A part without a frame of the user's code is unchanged.
    """
    return _HEADER.join(_from_users_frame(part) for part in traceback.split(_HEADER))


def _from_users_frame(part: str) -> str:
    first = next((frame for frame in _FRAME.finditer(part) if _is_users(frame[1])), None)
    if first is None:
        return part
    return ("\n" if part.startswith("\n") else "") + part[first.start() :]  # without the header if that was trimmed


def _is_users(file: str) -> bool:
    return not (is_library(file) or any(part in file for part in _INSTALLED) or _LIBRARY.search(file))


def is_library(file: str) -> bool:
    """Return True if the file belongs to Penstock or the standard library.

    Code without a file, such as methods that dataclasses generate, counts as library code.
    """
    if file.startswith(("<", _PENSTOCK)):
        return True
    return file.startswith(_LIBRARIES) and not any(part in file for part in _INSTALLED)


_FRAME_LINE = re.compile(r'^ +File "(.+?)", line \d+, in (.+)$', re.MULTILINE)


def fingerprint(handler: str, error_type: str, exception: BaseException | None, traceback: str | None) -> str:
    """Return ``handler|type|file:function``; the last part is empty if the place is unknown."""
    return f"{handler}|{error_type}|{_location(_frames(exception, traceback))}"


def _frames(exception: BaseException | None, traceback: str | None) -> list[tuple[str, str]]:
    """Return file and function of each frame, innermost last."""
    if exception is not None and exception.__traceback__ is not None:
        codes = (frame.f_code for frame, _ in tracebacks.walk_tb(exception.__traceback__))
        return [(code.co_filename, code.co_name) for code in codes]
    # Causes are printed first; the last traceback in the text is the exception's own.
    return _FRAME_LINE.findall((traceback or "").rpartition("Traceback (most recent call last):")[2])


def _location(frames: Iterable[tuple[str, str]]) -> str:
    innermost_first = list(frames)[::-1]
    users = (frame for frame in innermost_first if not is_library(frame[0]))
    found = next(users, innermost_first[0] if innermost_first else None)
    if found is None:
        return ""
    file, function = found
    return f"{'/'.join(PurePath(file).parts[-2:])}:{function}"
