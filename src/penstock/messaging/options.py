"""Options that nobody knows: refused with a sentence that names the one that was meant."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from penstock.errors import UsageError

Given = ParamSpec("Given")
Result = TypeVar("Result")
Class = TypeVar("Class", bound=type)

_ELSEWHERE = {  # what other libraries call it
    "max_retries": "max_attempts",
    "retries": "max_attempts",
    "time_limit": "timeout",
    "key": "idempotency",
    "idempotency_key": "idempotency",
    "schedule": "cron",
    "crontab": "cron",
    "interval": "every",
    "batch_size": "batch",
    "prefetch": "concurrency",
    "path": "folder",
    "columns": "schema",
    "partitions": "partition_by",
}


def checks_options(
    what: str, *, hint: Callable[[str], str | None] = lambda _: None
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Decorate a function, so that an option that it does not have raises `UsageError` with "did you mean ...?".

    ``what`` names it in the sentence. ``hint`` returns more words for an option that is known elsewhere, or None.
    """

    def decorate(function: Callable[Given, Result]) -> Callable[Given, Result]:
        known = [name for name in inspect.signature(function).parameters if name != "self"]

        @functools.wraps(function)
        def checked(*given: Given.args, **options: Given.kwargs) -> Result:
            for name in options:
                if name not in known:
                    raise UsageError(f"{what} has no option {name}; {hint(name) or _meant(name, known)}")
            return function(*given, **options)

        return checked

    return decorate


def checks_class_options(what: str) -> Callable[[Class], Class]:
    """As `checks_options`, for the constructor of a class."""

    def decorate(made: Class) -> Class:
        constructor: Any = made.__init__  # type: ignore[misc] # of this very class
        made.__init__ = checks_options(what)(constructor)  # type: ignore[misc] # as above
        return made

    return decorate


def close_to(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was meant, if one is close enough."""
    names = list(known)
    elsewhere = _ELSEWHERE.get(name)
    if elsewhere in names:
        return elsewhere
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def _meant(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = close_to(name, names)
    return f"did you mean {close}?" if close else f"its options: {', '.join(names)}."
