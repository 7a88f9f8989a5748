"""Check declarations: unknown options, the signature of a user's function, and the value that it returned."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from types import UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeGuard, TypeVar, Union, get_args, get_origin, is_typeddict

from pydantic import BaseModel

from penstock.errors import UsageError
from penstock.messaging.call import CallContext

Given = ParamSpec("Given")
Result = TypeVar("Result")
Class = TypeVar("Class", bound=type)

OnStop = Literal["finish", "release"]

_ELSEWHERE = {  # names in other libraries and former versions -> our names
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
    "retry_cap": "max_retry_wait",
    "max_objects": "max_batch_objects",
    "max_bytes": "max_batch_bytes",
}


def checks_options(
    subject: str, *, hint: Callable[[str], str | None] = lambda _: None
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Decorate a function to raise `UsageError` with "did you mean ...?" for an unknown option.

    ``subject`` names the function in the error. ``hint`` returns advice on an option that belongs elsewhere, or None.
    """

    def decorate(function: Callable[Given, Result]) -> Callable[Given, Result]:
        known = [name for name in inspect.signature(function).parameters if name != "self"]

        @functools.wraps(function)
        def checked(*given: Given.args, **options: Given.kwargs) -> Result:
            for name in options:
                if name not in known:
                    raise UsageError(f"{subject} has no option {name}; {hint(name) or _meant(name, known)}")
            return function(*given, **options)

        return checked

    return decorate


def checks_class_options(subject: str) -> Callable[[Class], Class]:
    """Decorate a class so that its constructor raises as with `checks_options`."""

    def decorate(decorated: Class) -> Class:
        constructor: Any = decorated.__init__  # type: ignore[misc] # of this very class
        decorated.__init__ = checks_options(subject)(constructor)  # type: ignore[misc] # as above
        return decorated

    return decorate


def close_to(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant; None if none is close enough."""
    names = list(known)
    elsewhere = _ELSEWHERE.get(name)
    if elsewhere in names:
        return elsewhere
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def takes_context(function: Callable[..., Any], name: str, *, first: str) -> bool:
    """Return True if the function takes the context as a second argument, after ``first``.

    Raises `UsageError`, with ``name`` in its text, if the function takes neither one nor two arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    for wants, arguments in ((True, (None, None)), (False, (None,))):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return wants
    raise UsageError(f"{name} has to take ({first}) or ({first}, context), and it takes {signature}.")


def check_annotations(
    function: Callable[..., Any],
    name: str,
    *,
    model: object,
    example: str,
    context: str = "Context",
    given: str = "the message is one object",
) -> None:
    """Raise `UsageError` if annotations show that the function expects other arguments than a body and a context.

    Only plain contradictions count: unions, generics, abstract types and names that cannot be resolved are accepted as
    the body. ``model`` None: any body. ``example`` is the parameter that the error proposes, ``context`` the class of
    the optional second one, and ``given`` says what the function is called with.
    """
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:  # a builtin, or an annotation that only type checkers can resolve
        return
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wanted = [one.annotation for one in signature.parameters.values() if one.kind in positional]
    if (wanted and _excludes(model, wanted[0])) or any(_is_no_context(one) for one in wanted[1:2]):
        raise UsageError(
            f"{name}{_location_of(function)} takes {signature}, and {given}: take `{example}`, and optionally "
            f"`ctx: {context}`."
        )


_UNKNOWN = (inspect.Parameter.empty, Any)  # both are classes


def _is_no_context(annotation: object) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_no_context(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return all(_is_no_context(one) for one in get_args(annotation) if one is not type(None))
    kind = get_origin(annotation) or annotation
    if kind in _UNKNOWN or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return False
    return is_typeddict(kind) or not (issubclass(kind, CallContext) or issubclass(CallContext, kind))


def _excludes(model: object, annotation: object) -> bool:
    """Return True if no body of the model is an instance of the annotation."""
    if not (_is_plain(model) and _is_plain(annotation)):
        return False
    try:
        return not (issubclass(model, annotation) or issubclass(annotation, model))
    except TypeError:  # a class without subclass checks
        return False


def _is_plain(kind: object) -> TypeGuard[type]:
    """Return True for a class whose name says what its values are."""
    if kind in _UNKNOWN or not isinstance(kind, type) or get_origin(kind) is not None or is_typeddict(kind):
        return False
    if issubclass(kind, BaseModel):
        return True
    # pydantic may turn these into another class, and type checkers accept an int as a float.
    if hasattr(kind, "__get_pydantic_core_schema__") or kind in (float, complex):
        return False
    return not (getattr(kind, "_is_protocol", False) or issubclass(kind, Mapping))


def _location_of(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f" at {PurePath(code.co_filename).name}:{code.co_firstlineno}"


def run_to_its_end(result: Any) -> Any:
    """Return the function's result. Raise TypeError if it is a coroutine, awaitable or generator.

    Such work has not run, so acking the message would lose it.
    """
    if result is None or not (inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return result
    if inspect.iscoroutine(result):
        result.close()  # prevents Python's "never awaited" warning
    raise TypeError(
        f"it returned a {type(result).__name__}, which is never run: declare the function with async def, use await "
        "inside it, and do not use yield"
    )


def check_on_stop(on_stop: str, name: str) -> None:
    """Raise `UsageError` for an unknown value of ``on_stop``."""
    if on_stop not in ("finish", "release"):
        raise UsageError(f"{name} has on_stop={on_stop!r}; it is 'finish' or 'release'.")


def _meant(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = close_to(name, names)
    return f"did you mean {close}?" if close else f"its options: {', '.join(names)}."
