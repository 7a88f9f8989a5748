"""Mistakes in declarations: refused at once, with a message that names the likely intention."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypedDict

import pytest
from pydantic import BaseModel, EmailStr

from penstock import (
    App,
    BatchContext,
    Context,
    DeltaSink,
    Handlers,
    IncomingObject,
    Item,
    ObjectContext,
    ObjectSource,
    Queue,
)
from penstock.app.pipelines.declaration import OWN_SCHEMA
from penstock.errors import UsageError
from penstock.pipeline.spark.source.formats import FORMATS


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


class Receipt(BaseModel):
    order_id: str
    cents: int


class Refund(Receipt): ...


class Row(TypedDict):
    order_id: str


class HasCents(Protocol):
    cents: int


class Stopwatch(Protocol):
    def checkpoint(self) -> None: ...


@dataclass
class Order:
    number: int


def of_celery(order_id: str, cents: int) -> None: ...
def with_an_option(receipt: Receipt, dry_run: bool = False) -> None: ...
def with_a_row(receipt: Receipt, row: Row) -> None: ...
def with_a_list(receipt: Receipt, more: list[int] | None = None) -> None: ...
def with_annotated_integer(receipt: Receipt, more: Annotated[int, "why"]) -> None: ...
def of_an_integer(order: int) -> None: ...
def of_another_class(order: Order) -> None: ...
def in_strings(order: "int") -> None: ...


@pytest.mark.parametrize(
    "mistaken",
    [
        of_celery,
        with_an_option,
        with_a_row,
        with_a_list,
        with_annotated_integer,
        of_an_integer,
        of_another_class,
        in_strings,
    ],
)
def test_a_function_of_other_arguments_is_refused_at_its_declaration(mistaken: Callable[..., Any]) -> None:
    app = App()
    line = mistaken.__code__.co_firstlineno
    with pytest.raises(
        UsageError,
        match=rf"The handler {mistaken.__name__} at test_declaration_mistakes\.py:{line} takes \(.*the message is one "
        r"object: take `body: Receipt`, and optionally `ctx: Context`",
    ):
        app.handler(Queue("receipts", Receipt))(mistaken)
    assert app.services == ()


def test_the_cleanup_and_a_batch_are_checked_alike() -> None:
    app, queue = App(), Queue("receipts", Receipt)

    def batch(items: list[Item[Receipt]], ctx: int) -> None: ...

    with pytest.raises(
        UsageError, match=r"The handler fits, in its cleanup, at .*:\d+ takes .order_id: str, cents: int"
    ):
        app.handler(queue, cleanup=of_celery, name="fits")(lambda receipt: None)
    with pytest.raises(UsageError, match=r"take `items: list\[Item\]`, and optionally `ctx: Context`"):
        app.handler(queue, batch=10)(batch)


def typed(receipt: Receipt, ctx: Context) -> None: ...
def narrower(receipt: Refund) -> None: ...
def wider(receipt: BaseModel, ctx: object) -> None: ...
def anything(receipt: Any, ctx: Any) -> None: ...
def untyped_arguments(receipt, ctx=None): ...  # type: ignore[no-untyped-def]
def in_a_string(receipt: "Receipt", ctx: "Context | None" = None) -> None: ...
def unresolvable(receipt: "Missing", ctx: "AlsoMissing") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def of_either(receipt: Receipt | int) -> None: ...
def by_protocol(receipt: HasCents, ctx: Stopwatch) -> None: ...
def of_a_mapping(receipt: Mapping[str, Any]) -> None: ...
def of_a_row(receipt: Row) -> None: ...
def of_a_dict(receipt: dict[str, Any], ctx: BatchContext) -> None: ...
def with_more_by_keyword(receipt: Receipt, *, dry_run: bool = False) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        typed,
        narrower,
        wider,
        anything,
        untyped_arguments,
        in_a_string,
        unresolvable,
        of_either,
        by_protocol,
        of_a_mapping,
        of_a_row,
        of_a_dict,
        with_more_by_keyword,
        print,
    ],
)
def test_a_function_that_may_take_the_message_is_declared(function: Callable[..., Any]) -> None:
    app = App()
    app.handler(Queue("receipts", Receipt))(function)
    assert [one.queue_name for one in app.services] == ["receipts"]


@pytest.mark.parametrize(("model", "taken"), [(int, float), (Row, Receipt), (EmailStr, str), (dict[str, int], int)])
def test_models_that_do_not_name_the_class_of_their_values_fit_all_annotations(model: Any, taken: Any) -> None:
    def function(body: Any) -> None: ...

    function.__annotations__["body"] = taken
    app = App()
    app.handler(Queue("q", model))(function)
    assert [one.queue_name for one in app.services] == ["q"]


def of_a_path(path: str) -> None: ...
def of_a_body(receipt: Receipt, ctx: ObjectContext) -> None: ...
def with_a_folder(obj: IncomingObject, folder: str = "out") -> None: ...


@pytest.mark.parametrize("mistaken", [of_a_path, of_a_body, with_a_folder, in_strings])
def test_an_object_handler_of_other_arguments_is_refused_at_its_declaration(mistaken: Callable[..., Any]) -> None:
    app = App()
    line = mistaken.__code__.co_firstlineno
    with pytest.raises(
        UsageError,
        match=rf"The object handler {mistaken.__name__} at test_declaration_mistakes\.py:{line} takes \(.*it is called "
        r"with one object: take `obj: IncomingObject`, and optionally `ctx: ObjectContext`\.$",
    ):
        app.object_handler("q", source="in")(mistaken)
    assert app.services == ()


def test_the_cleanup_of_an_object_handler_is_checked_alike() -> None:
    with pytest.raises(UsageError, match=r"The object handler untyped_arguments, in its cleanup, at .*:\d+ takes"):
        App().object_handler("q", source="in", cleanup=of_a_path)(untyped_arguments)


class HasBytes(Protocol):
    def read(self) -> bytes: ...


def typed_object(obj: IncomingObject, ctx: ObjectContext) -> None: ...
async def of_async(obj: IncomingObject) -> None: ...
def of_any_object(obj: object, ctx: Context) -> None: ...
def of_bytes(obj: HasBytes, ctx: Stopwatch) -> None: ...
def of_an_object_or_a_path(obj: IncomingObject | str) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        typed_object,
        of_async,
        of_any_object,
        of_bytes,
        of_an_object_or_a_path,
        anything,
        untyped_arguments,
        unresolvable,
        print,
    ],
)
def test_a_function_that_may_take_the_object_is_declared(function: Callable[..., Any]) -> None:
    app = App()
    app.object_handler("q", source="in", cleanup=function)(function)
    assert [one.queue_name for one in app.services] == ["q"]


def test_the_formats_that_need_no_schema_are_those_that_have_their_own() -> None:
    assert set(OWN_SCHEMA) == {name for name, kind in FORMATS.items() if kind.has_own_schema}
