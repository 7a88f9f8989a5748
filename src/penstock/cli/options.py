"""Options that several verbs share: the fields of a dataclass, which a verb takes as one parameter.

Durations as command-line options take them. `penstock.handlers.durations` has the spellings.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from penstock.errors import UsageError

R = TypeVar("R")


def grouped_options(verb: Callable[..., R]) -> Callable[..., R]:
    """Show Typer the fields of each parameter that is a dataclass as options of their own, in its place.

    The fields are annotated as Typer's parameters are, and each has a default.
    """
    hints = get_type_hints(verb, include_extras=True)
    own = list(inspect.signature(verb).parameters.values())
    groups = {each.name: hints[each.name] for each in own if is_dataclass(hints[each.name])}
    shown = [one for each in own for one in (_options(groups[each.name]) if each.name in groups else [each])]

    def called(**given: Any) -> R:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return verb(**made, **given)

    called.__name__, called.__doc__, called.__module__ = verb.__name__, verb.__doc__, verb.__module__
    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined] # what `inspect` asks for
    called.__annotations__ = {each.name: each.annotation for each in shown}
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
