"""Checks of a user's function."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.messaging.declarations import takes_context


def with_context(body: Any, ctx: Any) -> None: ...


def with_context_perhaps(body: Any, ctx: Any = None) -> None: ...


def without_context(body: Any, *, retries: int = 3) -> None: ...


async def asynchronous(body: Any, ctx: Any) -> None: ...


def nothing() -> None: ...


def three(body: Any, ctx: Any, more: Any) -> None: ...


def forced(body: Any, *, more: Any) -> None: ...


def three_and_others(body: Any, ctx: Any, more: Any, *others: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (with_context, True),
        (with_context_perhaps, True),
        (without_context, False),
        (asynchronous, True),
        (print, True),
        ([].append, False),
    ],
)
def test_a_function_may_take_or_omit_the_context(function: Callable[..., Any], expected: bool) -> None:
    assert takes_context(function, "h", first="body") is expected


@pytest.mark.parametrize("function", [nothing, three, forced, three_and_others])
def test_functions_with_other_arguments_are_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=r"h has to take \(body\) or \(body, context\), and it takes \("):
        takes_context(function, "h", first="body")
