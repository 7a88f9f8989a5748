"""Durations and sizes as people write them, turned into seconds and bytes once."""

from datetime import timedelta

from penstock.errors import UsageError

Duration = float | int | str | timedelta  # seconds, "5 min", "1h30m", timedelta
Size = int | str  # bytes, "8 GiB"


def seconds_of(name: str, given: Duration) -> float:
    """Seconds, more than 0. Raises `UsageError` naming what was given."""
    if isinstance(given, timedelta):
        seconds: float | None = given.total_seconds()
    elif isinstance(given, str):
        seconds = _parsed(given)
    else:
        seconds = float(given)
    if seconds is None or not 0 < seconds < float("inf"):
        raise UsageError(
            f"{name}={given!r} is no duration above 0: write seconds, a timedelta, or text such as '30 s' or '5 min'."
        )
    return seconds


def bytes_of(name: str, given: Size) -> int:
    """Bytes, at least 1. Raises `UsageError` naming what was given."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        size = int(TypeAdapter(ByteSize).validate_python(given))
    except ValidationError as error:
        raise UsageError(f"{name}={given!r} is no size: write bytes, or text such as '512 MB' or '8 GiB'.") from error
    if size < 1:
        raise UsageError(f"{name}={given!r} has to be at least one byte.")
    return size


def _parsed(text: str) -> float | None:
    import pytimeparse2

    found = pytimeparse2.parse(text)
    return float(found) if isinstance(found, int | float) else None
