"""Durations as command-line options take them. `penstock.handlers.durations` has the spellings."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from penstock.errors import UsageError


def duration(option: str, text: str, *, zero: bool = False) -> float:
    """Return the seconds of an option: more than 0, or with ``zero`` also 0. Raises `UsageError` naming the option."""
    from penstock.handlers.durations import seconds_of

    try:
        return seconds_of(option, text, zero=zero)
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
