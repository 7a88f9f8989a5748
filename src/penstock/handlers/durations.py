"""Convert durations and sizes as people write them to seconds and bytes."""

import re
from datetime import timedelta

from pydantic import ByteSize, TypeAdapter, ValidationError

from penstock.errors import UsageError

Duration = float | int | str | timedelta  # seconds, "5 min", "1h30m", "PT5M", timedelta
Size = int | str  # bytes, "8 GiB"

_DAY = 86_400
_SPELLINGS = {
    365 * _DAY: "y ys yr yrs year years",
    30 * _DAY: "mo mos mth mths month months",
    7 * _DAY: "w wk wks week weeks",
    _DAY: "d dy dys day days",
    3_600: "h hr hrs hour hours",
    60: "m min mins minute minutes",
    1: "s sec secs second seconds",
    0.001: "ms msec msecs millis millisecond milliseconds",
}
UNITS = {name: seconds for seconds, names in _SPELLINGS.items() for name in names.split()}
_PART = re.compile(r"(?P<number>\d+\.?\d*|\.\d+)\s*(?P<unit>[a-z]+)\s*[,/]?\s*")
_CLOCK = re.compile(r"(?P<fields>\d+(:\d{2}){1,3}|:\d{2})(?P<fraction>\.\d+)?")  # 1:30, 1:02:03, 1:00:00:00, :30


def seconds_of(name: str, given: Duration, *, zero: bool = False) -> float:
    """Return the seconds of a duration given for the option ``name``.

    Args:
        zero: Accept 0 too.

    Raises:
        UsageError: ``given`` is not a duration, is negative, infinite, or 0 without ``zero``.
    """
    if isinstance(given, timedelta):
        seconds: float | None = given.total_seconds()
    elif isinstance(given, str):
        seconds = _seconds_in(given)
    else:
        seconds = float(given)
    if seconds is None or not 0 <= seconds < float("inf") or not (seconds or zero):
        raise UsageError(
            f"{name}={given!r} is not a duration{'' if zero else ' above 0'}: write seconds, a timedelta, or text "
            "such as '30 s' or '5 min'."
        )
    return seconds


def duration_text(seconds: float) -> str:
    """Return a duration as text that `seconds_of` reads, such as "1h30m", "0.5s" or "14d", to the microsecond."""
    whole, parts = int(seconds), []
    for unit, length in (("d", _DAY), ("h", 3_600), ("m", 60)):
        count, whole = divmod(whole, length)
        parts.append(f"{count}{unit}" if count else "")
    rest = f"{whole + seconds - int(seconds):.6f}".rstrip("0").rstrip(".")
    text = "".join(parts)
    return text if text and rest == "0" else f"{text}{rest}s"


def bytes_of(name: str, given: Size) -> int:
    """Return the bytes of a size given for the option ``name``, at least 1. Raises `UsageError` if it is not a size."""
    try:
        size = int(TypeAdapter(ByteSize).validate_python(given))
    except ValidationError as error:
        raise UsageError(
            f"{name}={given!r} is not a size: write bytes, or text such as '512 MB' or '8 GiB'."
        ) from error
    if size < 1:
        raise UsageError(f"{name}={given!r} has to be at least one byte.")
    return size


def _seconds_in(text: str) -> float | None:
    """Return the seconds that a text spells, to the microsecond; None if it is not a duration or over 10**9 days."""
    text = text.strip().removeprefix("+").strip().lower()
    try:
        seconds = float(text)
    except ValueError:
        found = _iso_seconds(text) if text.startswith("p") else _unit_seconds(text)
        if found is None:
            return None
        seconds = found
    try:
        return timedelta(seconds=seconds).total_seconds()
    except (OverflowError, ValueError):
        return None


def _iso_seconds(text: str) -> float | None:
    """Return the seconds of an ISO 8601 duration, such as PT5M: a year has 365 days and a month 30, as in `UNITS`."""
    try:
        return TypeAdapter(timedelta).validate_python(text.upper()).total_seconds()
    except ValidationError:
        return None


def _unit_seconds(text: str) -> float | None:
    """Return the seconds of "1h30m", "2 days, 5 min", "1:30" or "1 day, 2:03:04": larger units first, each once."""
    total, smallest, position = 0.0, float("inf"), 0
    while part := _PART.match(text, position):
        unit = UNITS.get(part["unit"], float("inf"))
        if unit >= smallest:
            return None
        total, smallest, position = total + float(part["number"]) * unit, unit, part.end()
    if 0 < position == len(text):
        return total
    clock = _CLOCK.fullmatch(text, position)
    fields = clock["fields"].split(":") if clock else []
    if clock is None or (position and not (smallest >= _DAY and len(fields) == 3)):
        return None
    weighted = (int(field or 0) * weight for field, weight in zip(fields[::-1], (1, 60, 3_600, _DAY), strict=False))
    return total + sum(weighted) + float(clock["fraction"] or 0)
