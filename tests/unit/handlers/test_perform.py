"""Functions called with one message: the outcome of returning, raising and retrying."""

import asyncio
from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from penstock import App, Context, Handlers, Message, Queue, Reject, Retry
from penstock.errors import UsageError
from penstock.events import MessageFailed, MessageFinished, MessageInvalid, MessageRetrying, MessageSkipped
from penstock.messaging.settlement import DeadLetter, Release
from penstock.testing import perform


class Thumbnail(BaseModel):
    key: str
    width: int = 100


THUMBNAILS = Queue("thumbnails", Thumbnail)


def test_a_plain_function_gets_the_typed_body_and_returning_acks() -> None:
    app, seen = Handlers(), []

    @app.handler(THUMBNAILS)
    def make(body: Thumbnail) -> None:
        seen.append(body)

    done = perform(app, make, Thumbnail(key="a.png"))
    assert done.acked
    assert seen == [Thumbnail(key="a.png", width=100)]
    assert [type(event) for event in done.events][-1] is MessageFinished


def test_an_async_function_gets_the_context() -> None:
    app, seen = Handlers(), []

    @app.handler(THUMBNAILS)
    async def make(body: Thumbnail, ctx: Context) -> None:
        await asyncio.sleep(0)
        seen.append((body.key, ctx.attempt, ctx.message.group, ctx.queue, ctx.handler))

    assert perform(app, make, {"key": "a"}, attempt=3, group="blue").acked
    assert seen == [("a", 3, "blue", "thumbnails", "make")]


def test_without_a_model_the_function_gets_the_message() -> None:
    app, seen = Handlers(), []

    @app.handler("raw")
    def receive(message: Message) -> None:
        seen.append(message.body)

    assert perform(app, receive, b"\xff\x00 anything").acked
    assert seen == [b"\xff\x00 anything"]


def test_reject_dead_letters_the_message_at_once() -> None:
    app = Handlers()

    @app.handler(THUMBNAILS)
    def make(body: Thumbnail) -> None:
        raise Reject("not an image")

    done = perform(app, make, Thumbnail(key="a"))
    assert done.settlement == DeadLetter(reason="not an image")
    assert [event.traceback for event in done.events if isinstance(event, MessageFailed)] == [None]


def test_the_reason_for_a_single_failed_attempt_says_once() -> None:
    app = Handlers()

    @app.handler(THUMBNAILS, max_attempts=1)
    def make(body: Thumbnail) -> None:
        raise ValueError("no")

    assert perform(app, make, Thumbnail(key="a")).reason == "failed once, with ValueError: no"


def test_retry_waits_for_its_delay() -> None:
    app = Handlers()

    @app.handler(THUMBNAILS)
    def make(body: Thumbnail) -> None:
        raise Retry("busy", delay_seconds=42.0)

    done = perform(app, make, Thumbnail(key="a"))
    assert done.settlement == Release(delay_seconds=42.0, reason="Retry: busy")
    [failed] = [event for event in done.events if isinstance(event, MessageFailed)]
    assert (failed.traceback, failed.error) == (None, "busy")


@pytest.mark.parametrize("attempt", [1, 2, 4])
def test_an_exception_waits_by_backoff_until_the_attempts_are_used_up(attempt: int) -> None:
    app = Handlers()

    @app.handler(THUMBNAILS, max_attempts=5, retry_base=2.0, max_retry_wait=5.0)
    def make(body: Thumbnail) -> None:
        raise ValueError("no such thing")

    settlement = perform(app, make, Thumbnail(key="a"), attempt=attempt).settlement
    assert isinstance(settlement, Release)
    assert 0 <= settlement.delay_seconds < min(5.0, 2.0 * 2 ** (attempt - 1))
    assert not settlement.uncounted
    last = perform(app, make, Thumbnail(key="a"), attempt=5)
    assert isinstance(last.settlement, DeadLetter)
    assert last.settlement.exception == "ValueError: no such thing"
    assert "no such thing" in (last.settlement.traceback or "")
    failed = [event for event in last.events if isinstance(event, MessageFailed)]
    assert [event.final for event in failed] == [True]


def test_a_traceback_names_no_values_of_variables() -> None:
    app = Handlers()

    @app.handler(THUMBNAILS, max_attempts=1)
    def make(body: Thumbnail) -> None:
        password = "".join(["se", "cret"])
        raise ValueError(len(password))

    settlement = perform(app, make, Thumbnail(key="a")).settlement
    assert isinstance(settlement, DeadLetter)
    assert "secret" not in (settlement.traceback or "")


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration()])
def test_every_exception_counts_as_an_attempt(raised: BaseException) -> None:
    app = Handlers()

    @app.handler(THUMBNAILS)
    def make(body: Thumbnail) -> None:
        raise raised

    assert isinstance(perform(app, make, Thumbnail(key="a")).settlement, Release)


def test_a_coroutine_that_cancels_itself_has_failed() -> None:
    app = Handlers()

    @app.handler(THUMBNAILS)
    async def make(body: Thumbnail) -> None:
        raise asyncio.CancelledError

    assert isinstance(perform(app, make, Thumbnail(key="a")).settlement, Release)


def test_an_exception_whose_text_raises_counts_as_an_attempt() -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    app = Handlers()

    @app.handler(THUMBNAILS)
    def make(body: Thumbnail) -> None:
        raise UnprintableError

    assert isinstance(perform(app, make, Thumbnail(key="a")).settlement, Release)


def test_retrying_repeats_a_call_in_the_function_and_emits_an_event_each_time() -> None:
    app, tries = Handlers(), []

    @app.handler(THUMBNAILS)
    def make(body: Thumbnail, ctx: Context) -> None:
        for attempt in ctx.retrying(ConnectionError, attempts=3, base_seconds=0.001):
            with attempt:
                tries.append(1)
                if len(tries) < 3:
                    raise ConnectionError("blip")

    done = perform(app, make, Thumbnail(key="a"))
    assert done.acked
    retries = [event for event in done.events if isinstance(event, MessageRetrying)]
    assert [(event.tries, event.error) for event in retries] == [(1, "blip"), (2, "blip")]


def test_retrying_async_repeats_a_call_and_raises_the_last_failure() -> None:
    app = Handlers()

    @app.handler(THUMBNAILS)
    async def make(body: Thumbnail, ctx: Context) -> None:
        async for attempt in ctx.retrying_async(ConnectionError, attempts=2, base_seconds=0.001):
            with attempt:
                raise ConnectionError("still")

    done = perform(app, make, Thumbnail(key="a"))
    assert isinstance(done.error, ConnectionError)
    assert sum(isinstance(event, MessageRetrying) for event in done.events) == 1


def test_cleanup_runs_only_before_a_further_attempt() -> None:
    app, calls = Handlers(), []

    def sweep(body: Thumbnail, ctx: Context) -> None:
        calls.append(f"sweep {ctx.attempt}")

    @app.handler(THUMBNAILS, cleanup=sweep)
    def make(body: Thumbnail) -> None:
        calls.append("make")

    assert perform(app, make, Thumbnail(key="a")).acked
    assert perform(app, make, Thumbnail(key="a"), attempt=2).acked
    assert calls == ["make", "sweep 2", "make"]


def test_a_cleanup_may_omit_the_context() -> None:
    app, calls = Handlers(), []

    def sweep(body: Thumbnail) -> None:
        calls.append(f"sweep {body.key}")

    @app.handler(THUMBNAILS, cleanup=sweep)
    async def make(body: Thumbnail, ctx: Context) -> None:
        calls.append("make")

    assert perform(app, make, Thumbnail(key="a"), attempt=2).acked
    assert calls == ["sweep a", "make"]


def test_a_batch_function_returns_one_result_for_each_message() -> None:
    app = App(broker="memory://")

    @app.handler(THUMBNAILS, batch=10)
    def make(items: list[object]) -> list[BaseException | None]:
        return [None for _ in items]

    assert perform(app, make, Thumbnail(key="a")).acked

    @app.handler("other", batch=10)
    def wrong(items: list[object]) -> list[None]:
        return []

    assert "returns None, or a list" in (perform(app, wrong, b"x").reason or "")


def test_a_message_of_a_newer_schema_is_released_uncounted() -> None:
    app = Handlers()

    @app.handler(THUMBNAILS)
    def make(body: Thumbnail) -> None:
        raise AssertionError("not to be called")

    done = perform(app, make, Thumbnail(key="a"), attributes={"penstock-schema": "2"})
    assert isinstance(done.settlement, Release)
    assert done.settlement.uncounted
    assert done.settlement.delay_seconds > 0
    assert [event.reason for event in done.events if isinstance(event, MessageSkipped)] == ["newer_schema"]


def test_an_invalid_body_is_dead_lettered_with_the_field_and_the_expected_type() -> None:
    app = Handlers()

    @app.handler(THUMBNAILS)
    def make(body: Thumbnail) -> None:
        raise AssertionError("not to be called")

    done = perform(app, make, b'{"key": "a", "width": "wide"}')
    assert done.dead
    assert "width" in (done.reason or "")
    assert "integer" in (done.reason or "")
    assert [type(event) for event in done.events] == [MessageInvalid]


@dataclass
class InvalidOptions:
    options: dict[str, object]
    expected: str


@pytest.mark.parametrize(
    "case",
    [
        InvalidOptions({"max_attempts": 0}, "max_attempts"),
        InvalidOptions({"timeout": "soon"}, "timeout"),
        InvalidOptions({"timeout": -1}, "timeout"),
        InvalidOptions({"concurrency": 0}, "concurrency"),
        InvalidOptions({"batch": 0}, "batch"),
        InvalidOptions({"isolation": "thread"}, "isolation"),
        InvalidOptions({"on_stop": "die"}, "on_stop"),
        InvalidOptions({"batch": 2, "idempotency": str}, "idempotency"),
        InvalidOptions({"every": "10m", "cron": "* * * * *"}, "not both"),
        InvalidOptions({"cron": "every day"}, "cron"),
        InvalidOptions({"every": 0.1}, "too often"),
    ],
    ids=lambda case: case.expected,
)
def test_invalid_options_are_refused_by_name(case: InvalidOptions) -> None:
    with pytest.raises(UsageError, match=case.expected):
        Handlers().handler("q", **case.options)(lambda message: None)  # type: ignore[arg-type]


def test_functions_with_other_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match=r"has to take \(body\) or"):
        Handlers().handler("q")(lambda: None)
    with pytest.raises(UsageError, match=r"has to take \(body\) or"):
        Handlers().handler("q")(lambda a, b, c: None)
    with pytest.raises(UsageError, match=r"has to take \(body\) or"):
        Handlers().handler("q", cleanup=lambda: None)(lambda message: None)


def test_one_queue_has_one_handler() -> None:
    group, app = Handlers(), Handlers()
    group.handler("q")(_nothing)
    app.handler("q")(_other)
    with pytest.raises(UsageError, match="one queue has one handler"):
        app.include(group)


def test_a_scheduled_handler_needs_a_model_that_accepts_a_tick() -> None:
    app = Handlers()
    with pytest.raises(UsageError, match="scheduled_at"):
        app.handler(THUMBNAILS, every="10m")(_nothing)
    app.handler("ticks", every="10m")(_nothing)


def _nothing(message: object) -> None:
    """Do nothing."""


def _other(message: object) -> None:
    """Do nothing, under another name."""


def test_perform_works_in_an_async_test() -> None:
    app, seen = Handlers(), list[bytes]()

    @app.handler("q")
    async def works(message: Message) -> None:
        await asyncio.sleep(0)
        seen.append(message.body)

    async def an_async_test() -> bool:
        return perform(app, works, b"1").acked

    assert asyncio.run(an_async_test())
    assert seen == [b"1"]
