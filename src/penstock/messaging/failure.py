"""What a raised exception says, as text that may be stored and shown: never with the values of variables.

One name for failures that are the same: handler, type, and the place in the user's code.

The place is file and function of the innermost frame that is neither Penstock's nor the standard library's. Of the
file two parts are kept, as the folders above differ from machine to machine; no line number, as it moves with every
edit. The failure of a child process is known by the text of its traceback only.
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
_INSTALLED = ("site-packages", "dist-packages")  # these may lie below the standard library and are none of it
_FRAME = re.compile(r'^ +File "([^"\n]+)", line (\d+)', re.MULTILINE)
_LIBRARY = re.compile(  # the standard library, PySpark and packages that were shipped to executors as archives
    r"[/\\](?:lib(?:64)?[/\\]python3\.\d+|python[/\\](?:lib[/\\])?pyspark(?:\.zip)?|(?:py4j|penstock)[^/\\]*\.zip)[/\\]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDetails:
    """An exception in words."""

    error_type: str
    error: str
    traceback: str

    @property
    def summary(self) -> str:
        """One line's worth: the type and what it says."""
        return f"{self.error_type}: {self.error}" if self.error else self.error_type


def failure_of(raised: BaseException) -> FailureDetails:
    """Describe it; one that has a ``failure`` of its own, because it comes from another process, is described by that.

    Nothing that the exception's own methods do can make this raise.
    """
    described = vars(raised).get("failure")
    if isinstance(described, FailureDetails):
        return described
    try:
        error = str(raised)
    except Exception:
        error = "(its text cannot be had)"
    try:
        # Local variables are left out: they hold secrets.
        text = "".join(tracebacks.TracebackException.from_exception(raised, capture_locals=False).format())
    except Exception:
        text = f"{type(raised).__name__}: {error}\n"
    return FailureDetails(error_type=type(raised).__name__, error=error, traceback=text[-TRACEBACK_CHARS_MAX:])


def end_of(raised: BaseException) -> FailureDetails:
    """Describe what ended a worker. A person's mistake is one sentence: where our code noticed it helps nobody.

    The traceback of a transform leads into the user's own code, and stays.
    """
    failure = failure_of(raised)
    if isinstance(raised, UserError) and not isinstance(raised, TransformError):
        return replace(failure, traceback="")
    return failure


def place_of(raised: BaseException) -> str | None:
    """Where in the user's own code it was raised, as ``shop.py:12``: the innermost frame that is neither Penstock's,
    nor the standard library's, nor an installed package's. None where there is no such frame."""
    frames = [frame for frame, _ in tracebacks.walk_tb(raised.__traceback__)]
    lines = [number for _, number in tracebacks.walk_tb(raised.__traceback__)]
    for frame, line in zip(reversed(frames), reversed(lines), strict=True):
        file = frame.f_code.co_filename
        if not is_library(file) and not any(part in file for part in _INSTALLED):
            return f"{PurePath(file).name}:{line}"
    return None


def place_in(traceback: str) -> str | None:
    """Return where in the user's own code the innermost frame of a formatted traceback is, as ``shop.py:12``.

    The traceback may come from another host: libraries are told by the usual names of their folders as well.
    """
    for file, line in reversed(_FRAME.findall(traceback)):
        if not (is_library(file) or any(part in file for part in _INSTALLED) or _LIBRARY.search(file)):
            return f"{PurePath(file).name}:{line}"
    return None


def is_library(file: str) -> bool:
    """Whether a code's file is Penstock's own or the standard library's; code without a file, which dataclasses make,
    counts as theirs."""
    if file.startswith(("<", _PENSTOCK)):
        return True
    return file.startswith(_LIBRARIES) and not any(part in file for part in _INSTALLED)


_FRAME_LINE = re.compile(r'^ +File "(.+?)", line \d+, in (.+)$', re.MULTILINE)


def fingerprint(handler: str, error_type: str, exception: BaseException | None, traceback: str | None) -> str:
    """``handler|type|file:function``; the last part is empty where nothing tells the place."""
    return f"{handler}|{error_type}|{_place(_frames(exception, traceback))}"


def _frames(exception: BaseException | None, traceback: str | None) -> list[tuple[str, str]]:
    """File and function, the innermost last."""
    if exception is not None and exception.__traceback__ is not None:
        codes = (frame.f_code for frame, _ in tracebacks.walk_tb(exception.__traceback__))
        return [(code.co_filename, code.co_name) for code in codes]
    # Causes come first in the text; the last traceback in it is the exception's own.
    return _FRAME_LINE.findall((traceback or "").rpartition("Traceback (most recent call last):")[2])


def _place(frames: Iterable[tuple[str, str]]) -> str:
    innermost_first = list(frames)[::-1]
    users = (frame for frame in innermost_first if not is_library(frame[0]))
    found = next(users, innermost_first[0] if innermost_first else None)
    if found is None:
        return ""
    file, function = found
    return f"{'/'.join(PurePath(file).parts[-2:])}:{function}"
