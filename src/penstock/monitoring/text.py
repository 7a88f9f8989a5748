"""Values as they may stand in a log: bounded, of plain types, in characters that everything downstream can take."""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice

from penstock.messaging.failure import TRACEBACK_CHARS_MAX

TEXT_CHARS_MAX = 8_000
ITEMS_MAX = 1_000
TRIMMED = "[... trimmed ...]"


def plain(value: object) -> object:
    """Text without lone surrogates, numbers that JSON knows, lists and mappings of those. None if there is no value."""
    if isinstance(value, str):
        return value if value.isascii() and len(value) <= TEXT_CHARS_MAX else _cut(value)
    if value is None or isinstance(value, int):  # a bool is one
        return value
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        pairs = islice(value.items(), ITEMS_MAX)
        found = {_cut(str(name)): plain(inner) for name, inner in pairs}
        return found | {TRIMMED: len(value) - ITEMS_MAX} if len(value) > ITEMS_MAX else found
    if isinstance(value, Iterable):
        items = list(value)
        return [plain(item) for item in items[:ITEMS_MAX]] + [TRIMMED] * (len(items) > ITEMS_MAX)
    return plain(str(value))


def block(value: object) -> str:
    """A text of many lines, as a traceback is. The end is kept, where the error is."""
    text = clean(str(value))
    return text if len(text) <= TRACEBACK_CHARS_MAX else TRIMMED + "\n" + text[-TRACEBACK_CHARS_MAX:]


def moment(epoch_seconds: float) -> str | None:
    """A time in UTC, to the microsecond; None for what is no time."""
    try:
        whole, part = divmod(epoch_seconds, 1)
        return f"{_second(int(whole))}.{int(part * 1_000_000):06d}Z"
    except (OverflowError, ValueError, OSError):
        return None


@lru_cache(maxsize=256)  # a busy second is told on thousands of lines
def _second(epoch_seconds: int) -> str:
    return datetime.fromtimestamp(epoch_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def clean(text: str) -> str:
    """Lone surrogates (file names bring them) written out: strict readers of JSON refuse the whole line for one."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _cut(text: str) -> str:
    return clean(text) if len(text) <= TEXT_CHARS_MAX else clean(text[:TEXT_CHARS_MAX]) + TRIMMED
