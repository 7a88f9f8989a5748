"""What is asked of a user's function before it is taken, and of what it returned, whatever it is called with."""

import inspect
from collections.abc import Callable
from typing import Any, Literal

from penstock.errors import UsageError

OnStop = Literal["finish", "give_back"]


def takes_context(function: Callable[..., Any], name: str, *, first: str) -> bool:
    """Whether the function takes the context beside its ``first`` argument.

    Raises `UsageError`, naming it as ``name``, where it takes neither one argument nor two.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin that does not tell
        return False
    for answer, arguments in ((True, (None, None)), (False, (None,))):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return answer
    raise UsageError(f"{name} takes other arguments than ({first}) or ({first}, context): it takes {signature}.")


def run_to_its_end(result: Any) -> Any:
    """What the function returned. Raises TypeError for work that it only made and did not do: to ack that would lose
    the message."""
    if result is None or not (inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return result
    if inspect.iscoroutine(result):
        result.close()  # or Python warns that nobody awaited it
    raise TypeError(
        f"it returned a {type(result).__name__}, which nobody runs: declare the function with async def and await in "
        "it, and without yield"
    )


def check_on_stop(on_stop: str, name: str) -> None:
    """Raise `UsageError` for what a stop cannot mean."""
    if on_stop not in ("finish", "give_back"):
        raise UsageError(f"{name} has on_stop={on_stop!r}; it is 'finish' or 'give_back'.")
