"""Durations, as a command line has them."""

import re

from penstock.errors import UsageError

_NOTHING = re.compile(r"\s*0+(\.0+)?(?P<unit>\s*[a-zA-Z]*)\s*")


def duration(option: str, text: str, *, zero: bool = False) -> float:
    """Seconds: as in code more than 0, or with ``zero`` none at all. Raises `UsageError` naming the option."""
    from penstock.handlers.durations import seconds_of

    nothing = _NOTHING.fullmatch(text) if zero else None
    try:
        if nothing is not None:
            seconds_of(option, f"1{nothing['unit']}")  # raises for a unit that is none
            return 0.0
        return seconds_of(option, text)
    except UsageError as error:
        least = "" if zero else " above 0"
        raise UsageError(
            f"{option} {text!r} is no duration{least}: write seconds, or such as 90s, 2m, 1h30m or 3d."
        ) from error


def duration_if(option: str, text: str | None) -> float | None:
    """The same of an option that may be left out."""
    return None if text is None else duration(option, text)
