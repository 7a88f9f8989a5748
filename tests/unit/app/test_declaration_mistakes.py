"""Mistakes in declarations: refused at once, with a message that names the likely intention."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock import App, DeltaSink, Handlers, ObjectSource, Queue
from penstock.errors import UsageError


def function(body: object) -> None:
    """Serve as a handler."""


def untyped(value: Any) -> Any:
    """Return the argument without its type, for calls that a type checker would refuse."""
    return value


async def async_key(body: object) -> str:
    return "key"


def declared(**options: Any) -> Callable[[Any], Any]:
    return lambda app: app.handler("q", **options)(function)


def declared_for_objects(**options: Any) -> Callable[[Any], Any]:
    return lambda app: app.object_handler("q", source="in", **options)(function)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda app: app.handler(function), '@app.handler above function has no queue.*write @app.handler."QUEUE".'),
        (lambda app: app.object_handler(function, source="in"), "@app.object_handler above function has no queue"),
        (lambda app: app.handler(7)(function), "@app.handler needs a Queue or the name of one, not 7"),
        (lambda app: app.pipeline(function, source=None, sink=None), "app.pipeline is not a decorator"),
        (declared(idempotency="id"), "The handler function has idempotency='id'; give a function"),
        (declared(idempotency=async_key), "async function for idempotency; give a plain one"),
        (declared(cleanup="tidy"), "The handler function has cleanup='tidy'; give a function that takes the body"),
        (declared_for_objects(cleanup="tidy"), "The object handler function has cleanup='tidy'; give a function"),
        (declared(max_attemps=3), r"@app.handler has no option max_attemps; did you mean max_attempts\?$"),
        (declared(max_retries=3), r"@app.handler has no option max_retries; did you mean max_attempts\?$"),
        (declared(zzz=3), "@app.handler has no option zzz; its options: queue, name, max_attempts"),
        (declared_for_objects(time_out=3), r"@app.object_handler has no option time_out; did you mean timeout\?$"),
        (lambda app: app.pipeline("p", sorce=1, sink=2), r"app.pipeline has no option sorce; did you mean source\?$"),
        (
            lambda app: untyped(ObjectSource)("in", queue="q", shema="id long"),
            r"ObjectSource has no option shema; .* schema",
        ),
        (
            lambda app: untyped(DeltaSink)("t", partition=["a"]),
            r"DeltaSink has no option partition; .* partition_by",
        ),
        (lambda app: untyped(Queue)("q", modl=dict), r"Queue has no option modl; did you mean model\?$"),
        (
            lambda app: untyped(Queue[dict[str, Any]])("q", shema=2),
            r"Queue has no option shema; did you mean schema\?$",
        ),
        (lambda app: untyped(App)(brocker="memory://"), r"App has no option brocker; did you mean broker\?$"),
        (
            lambda app: untyped(App)(concurrency=5),
            r"App has no option concurrency; worker\.concurrency is a setting: App",
        ),
    ],
)
@pytest.mark.parametrize("kind", [App, Handlers])
def test_a_mistake_is_refused_at_the_declaration(kind: type, mistake: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mistake(kind())
    assert kind().services == ()


def test_the_check_of_options_keeps_the_signatures() -> None:
    import inspect

    assert "max_attempts" in inspect.signature(Handlers.handler).parameters
    assert "broker" in inspect.signature(App).parameters
    assert list(inspect.signature(Queue).parameters)[:2] == ["name", "model"]
