"""Durations, as a command line has them."""

import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

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


def seconds_option(option: str, *, least: float, help: str) -> Any:
    """An option of Typer that takes a duration, in a verb a number of seconds."""
    return typer.Option(option, metavar="DURATION", parser=_seconds(option, least), help=help)


def _seconds(option: str, least: float) -> Callable[[str | float], float]:
    def parsed(given: str | float) -> float:
        try:
            seconds = float(given)  # also one that no budget takes, which says why
        except ValueError:
            seconds = duration(option, str(given), zero=not least)
        if seconds < least:
            raise UsageError(f"{option} is {seconds:g} s; give at least {least:g} s.")
        return seconds

    return parsed


StopTimeout = Annotated[
    float | None, seconds_option("--stop-timeout", least=10, help="From SIGTERM to the platform's SIGKILL, as in 2m.")
]
