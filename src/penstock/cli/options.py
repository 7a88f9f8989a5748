"""Options and argument types that several commands share.

A dataclass groups options: its fields become options, and the command gets one instance. `penstock.handlers.durations`
defines the spellings of durations.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from penstock.errors import UsageError
from penstock.handlers.durations import seconds_of
from penstock.objects.reference import LOCAL_BUCKET, uri_of

R = TypeVar("R")


def grouped_options(verb: Callable[..., R]) -> Callable[..., R]:
    """Show Typer the fields of each dataclass parameter as options of their own, in its place.

    Fields are annotated like Typer's parameters, and each has a default.
    """
    hints = get_type_hints(verb, include_extras=True)
    own = list(inspect.signature(verb).parameters.values())
    groups = {parameter.name: hints[parameter.name] for parameter in own if is_dataclass(hints[parameter.name])}
    shown: list[inspect.Parameter] = []
    for parameter in own:
        shown += _options(groups[parameter.name]) if parameter.name in groups else [parameter]

    def called(**given: Any) -> R:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return verb(**made, **given)

    called.__name__, called.__doc__, called.__module__ = verb.__name__, verb.__doc__, verb.__module__
    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined] # read by `inspect`
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return called


def _options(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=field.default, annotation=hints[field.name]
        )
        for field in fields(group)
    ]


def duration(option: str, text: str, *, zero: bool = False) -> float:
    """Return the seconds of an option: more than 0, or with ``zero`` also 0. Raises `UsageError` naming the option."""
    try:
        return seconds_of(option, text, zero=zero)
    except UsageError as error:
        least = "" if zero else " above 0"
        raise UsageError(
            f"{option} {text!r} is not a duration{least}: write seconds, or a text such as 90s, 2m, 1h30m or 3d."
        ) from error


def duration_if(option: str, text: str | None) -> float | None:
    """Return the seconds of an option, None if it was not given."""
    return None if text is None else duration(option, text)


def object_uri(text: str) -> str:
    """Return an object's address as ledger and log have it. A path is that of a local file."""
    return text if "://" in text else uri_of(LOCAL_BUCKET, str(Path(text).resolve()))


def seconds_option(option: str, *, least: float, help: str) -> Any:
    """Return a Typer option that takes a duration and passes seconds to the command."""
    return typer.Option(option, metavar="DURATION", parser=_seconds(option, least), help=help)


def _seconds(option: str, least: float) -> Callable[[str | float], float]:
    def parsed(given: str | float) -> float:
        try:
            seconds = float(given)  # even one that a later check refuses with its reason
        except ValueError:
            seconds = duration(option, str(given), zero=not least)
        if seconds < least:
            raise UsageError(f"{option} is {seconds:g} s; give at least {least:g} s.")
        return seconds

    return parsed


StopTimeout = Annotated[
    float | None,
    seconds_option("--stop-timeout", least=10, help="Time from SIGTERM to the platform's SIGKILL, such as 2m."),
]

Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", envvar="SPARK_MASTER", help="The Spark master, or sc://HOST:PORT; default: local[*]."
    ),
]

SparkSession = Annotated[
    str | None,
    typer.Option(
        "--spark-session",
        metavar="auto|own|current|MODULE:FUNCTION",
        help="Where the Spark session comes from; default: auto.",
    ),
]
