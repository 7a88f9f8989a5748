"""One name for failures that are the same: handler, type, and the place in the user's code.

The place is file and function of the innermost frame that is neither Penstock's nor the standard library's. Of the
file two parts are kept, as the folders above differ from machine to machine; no line number, as it moves with every
edit. The failure of a child process is known by the text of its traceback only.
"""

import re
import traceback as tracebacks
from collections.abc import Iterable
from pathlib import PurePath

from penstock.messaging.failure import is_library

_FRAME = re.compile(r'^ +File "(.+?)", line \d+, in (.+)$', re.MULTILINE)


def fingerprint(handler: str, error_type: str, exception: BaseException | None, traceback: str | None) -> str:
    """``handler|type|file:function``; the last part is empty where nothing tells the place."""
    return f"{handler}|{error_type}|{_place(_frames(exception, traceback))}"


def _frames(exception: BaseException | None, traceback: str | None) -> list[tuple[str, str]]:
    """File and function, the innermost last."""
    if exception is not None and exception.__traceback__ is not None:
        codes = (frame.f_code for frame, _ in tracebacks.walk_tb(exception.__traceback__))
        return [(code.co_filename, code.co_name) for code in codes]
    # Causes come first in the text; the last traceback in it is the exception's own.
    return _FRAME.findall((traceback or "").rpartition("Traceback (most recent call last):")[2])


def _place(frames: Iterable[tuple[str, str]]) -> str:
    innermost_first = list(frames)[::-1]
    users = (frame for frame in innermost_first if not is_library(frame[0]))
    found = next(users, innermost_first[0] if innermost_first else None)
    if found is None:
        return ""
    file, function = found
    return f"{'/'.join(PurePath(file).parts[-2:])}:{function}"
