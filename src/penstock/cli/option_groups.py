"""Options that several verbs share: the fields of a dataclass, which a verb takes as one parameter."""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

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
