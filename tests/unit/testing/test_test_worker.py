"""The test worker and through it the App: sends, retries, dead letters, batches, lifespans, keys."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from penstock import App, Context, Handlers, IncomingObject, Item, Message, Queue, Reject, Retry, cleanup
from penstock.errors import ConfigurationError, UsageError, UserError
from penstock.events import LifespanFailed, MessageSkipped
from penstock.testing import TestWorker

DEADLINE_SECONDS = 60.0


class Order(BaseModel):
    id: int


ORDERS = Queue("orders", Order)


def test_messages_sent_by_handlers_are_processed() -> None:
    app, seen = App(), []

    @app.handler(ORDERS)
    def take(order: Order) -> None:
        app.send("receipts", {"order": order.id}, group="blue")

    @app.handler("receipts")
    async def receipt(message: Message) -> None:
        seen.append((message.body, message.group))
        if len(seen) < 2:
            await app.send_async(ORDERS, Order(id=8))

    with TestWorker(app) as worker:
        worker.send(ORDERS, Order(id=7))
        worker.run_until_empty()
    assert seen == [(b'{"order":7}', "blue"), (b'{"order":8}', "blue")]


def test_send_many_async_keeps_the_order() -> None:
    app, seen = App(), []

    @app.handler(ORDERS)
    async def take(order: Order) -> None:
        assert len(await app.send_many_async("receipts", [{"order": n} for n in range(3)], group="blue")) == 3

    @app.handler("receipts", concurrency=1)
    def receipt(message: Message) -> None:
        seen.append((message.body, message.group))

    with TestWorker(app) as worker:
        worker.send(ORDERS, Order(id=7))
        worker.run_until_empty()
    assert seen == [(b'{"order":0}', "blue"), (b'{"order":1}', "blue"), (b'{"order":2}', "blue")]


def test_retries_take_no_time_and_the_last_failure_is_dead_lettered() -> None:
    app, attempts = App(), []

    @app.handler(ORDERS, max_attempts=4, retry_base="1 min", max_retry_wait="1 h")
    def take(order: Order, ctx: Context) -> None:
        attempts.append((ctx.attempt, ctx.previous_attempt.reason if ctx.previous_attempt else None))
        raise ValueError("never")

    with TestWorker(app) as worker:
        worker.send(ORDERS, Order(id=7))
        worker.run_until_empty(raises=False)
        (dead,) = worker.dead(ORDERS)
    assert attempts == [(1, None), (2, "ValueError: never"), (3, "ValueError: never"), (4, "ValueError: never")]
    assert dead.body == {"id": 7}
    assert dead.attempts == 4
    assert dead.exception == "ValueError: never"


def test_an_unexpected_exception_is_raised_in_the_test() -> None:
    app = App()

    @app.handler(ORDERS, max_attempts=1)
    def take(order: Order) -> None:
        raise LookupError("no such order")

    with TestWorker(app) as worker:
        worker.send(ORDERS, Order(id=7))
        with pytest.raises(LookupError, match="no such order"):
            worker.run_until_empty()


def test_a_rejected_message_does_not_fail_the_test() -> None:
    app = App()

    @app.handler(ORDERS)
    def take(order: Order) -> None:
        raise Reject("sold out")

    with TestWorker(app) as worker:
        worker.send(ORDERS, Order(id=7))
        worker.run_until_empty()
        assert [dead.reason for dead in worker.dead(ORDERS)] == ["sold out"]


def test_delayed_messages_are_received_in_order_of_their_due_times() -> None:
    app, seen = App(), []
    app.handler(ORDERS)(lambda order: seen.append(order.id))
    with TestWorker(app) as worker:
        worker.send(ORDERS, Order(id=2), delay="10 min")
        worker.send(ORDERS, Order(id=1), delay="5 s")
        worker.send(ORDERS, Order(id=0))
        worker.run_until_empty()
    assert seen == [0, 1, 2]


def test_the_longest_delay_takes_no_time() -> None:
    app, seen = App(), []
    app.handler(ORDERS)(lambda order: seen.append(order.id))
    with TestWorker(app) as worker:
        worker.send(ORDERS, Order(id=3), delay="13 days")
        worker.send(ORDERS, Order(id=2), delay="12 days")
        worker.send(ORDERS, Order(id=1), delay="0.5 s")
        worker.run_until_empty(timeout_seconds=10)
    assert seen == [1, 2, 3]


def test_a_retry_waits_for_its_own_delay() -> None:
    app, seen = App(), []

    @app.handler(ORDERS, max_attempts=2)
    def take(order: Order, ctx: Context) -> None:
        seen.append((order.id, ctx.attempt))
        if order.id == 1 and ctx.attempt == 1:
            raise Retry("not yet", delay_seconds=600)

    with TestWorker(app) as worker:
        worker.send(ORDERS, Order(id=1))
        worker.send(ORDERS, Order(id=2), delay="1 min")
        worker.run_until_empty()
    assert seen == [(1, 1), (2, 1), (1, 2)]


def test_duplicates_of_one_key_have_one_effect() -> None:
    app, effects = App(), list[int]()

    @app.handler(ORDERS, idempotency=lambda order: str(order.id))
    def take(order: Order) -> dict[str, int]:
        effects.append(order.id)
        return {"paid": order.id}

    with TestWorker(app) as worker:
        worker.send_many(ORDERS, [Order(id=7)] * 5)
        worker.run_until_empty()
        worker.send(ORDERS, Order(id=7))
        worker.run_until_empty()
        (work,) = app.ledger.works("take")
        assert (work.key, work.outcome) == ("7", '{"paid":7}')
        assert (work.app, work.queue) == (app.name, ORDERS.name)
        skipped = [event.reason for event in worker.events if isinstance(event, MessageSkipped)]
    assert effects == [7]
    assert skipped[-1] == "already_done"


def test_batches_are_collected_and_each_message_settled_separately() -> None:
    app, sizes = App(), []

    @app.handler(ORDERS, batch=4, max_wait=0.05, max_attempts=1)
    async def take(items: list[Item[Order]]) -> list[BaseException | None]:
        sizes.append(len(items))
        return [Reject("odd") if item.body.id % 2 else None for item in items]

    with TestWorker(app) as worker:
        worker.send_many(ORDERS, [Order(id=n) for n in range(10)])
        worker.run_until_empty()
        assert sorted(dead.body["id"] for dead in worker.dead(ORDERS)) == [1, 3, 5, 7, 9]
    assert sum(sizes) == 10
    assert max(sizes) == 4


def test_lifespans_are_entered_in_order_and_exited_in_reverse_on_the_handlers_loop() -> None:
    app, log = App(), []

    @app.lifespan
    def database() -> Iterator[dict[str, str]]:
        log.append("open database")
        yield {"database": "db"}
        log.append("close database")

    @app.lifespan
    async def client() -> AsyncIterator[dict[str, Any]]:
        log.append("open client")
        yield {"client": "http", "loop": asyncio.get_running_loop()}
        log.append("close client")

    @app.handler(ORDERS)
    async def take(order: Order, ctx: Context) -> None:
        assert ctx.resources["loop"] is asyncio.get_running_loop()
        log.append(f"{ctx.resources['database']} {ctx.resources['client']}")

    with TestWorker(app) as worker:
        worker.send(ORDERS, Order(id=1))
        worker.run_until_empty()
    assert log == ["open database", "open client", "db http", "close client", "close database"]


def test_a_lifespan_that_fails_at_its_end_is_reported_and_one_that_fails_at_its_start_raises() -> None:
    app = App()

    @app.lifespan
    def fails_at_exit() -> Iterator[None]:
        yield None
        raise OSError("cannot close")

    app.handler(ORDERS)(lambda order: None)
    with TestWorker(app) as worker:
        worker.run_until_empty()
        errors = [event.error for event in worker.events if isinstance(event, LifespanFailed)]
    assert errors == ["OSError: cannot close"]

    @app.lifespan
    def fails_at_start() -> Iterator[None]:
        if errors:
            raise ConnectionError("no database")
        yield None

    with (
        TestWorker(app) as worker,
        pytest.raises(UserError, match="fails_at_start raised ConnectionError: no database"),
    ):
        worker.run_until_empty()


def test_a_worker_for_a_queue_without_a_handler_is_refused() -> None:
    from penstock.app.serving import chosen

    app = App()
    app.handler(ORDERS)(lambda order: None)
    with pytest.raises(ConfigurationError, match="no handler"):
        chosen(app, {"other": 1})
    with pytest.raises(ConfigurationError, match="nothing to serve"):
        chosen(App(), None)
    assert [(service.queue_name, weight) for service, weight in chosen(app, {"orders": 3})] == [("orders", 3)]


def test_handlers_of_an_included_group_are_called() -> None:
    group, app, seen = Handlers(), App(), []
    group.handler(ORDERS)(lambda order: seen.append(order.id))
    app.include(group)
    with TestWorker(app) as worker:
        worker.send("orders", {"id": "12"})
        worker.run_until_empty()
    assert seen == [12]


def test_an_invalid_body_is_refused_at_the_send() -> None:
    app = App()
    with TestWorker(app) as worker:
        with pytest.raises(UsageError, match="id: Input should be a valid integer"):
            worker.send(ORDERS, {"id": "seven"})
        with pytest.raises(UsageError, match="neither bytes, text nor a JSON value"):
            worker.send("raw", object())
        with pytest.raises(UsageError, match="reserved for Penstock"):
            worker.send(ORDERS, Order(id=1), attributes={"penstock-type": "x"})
        assert worker.waiting(ORDERS) == []


def test_a_run_that_exceeds_its_timeout_raises() -> None:
    app = App()

    @app.handler(ORDERS, retry_base=0.001, max_retry_wait=0.001)
    def take(order: Order) -> None:
        app.send(ORDERS, order)

    with TestWorker(app) as worker:
        worker.send(ORDERS, Order(id=1))
        with pytest.raises(AssertionError, match="not empty after"):
            worker.run_until_empty(timeout_seconds=0.2)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_hung_handler_does_not_hang_the_test(kind: str) -> None:
    app, gate = App(), threading.Event()

    def hang(message: Message) -> None:
        gate.wait(DEADLINE_SECONDS)

    async def hang_async(message: Message) -> None:
        await asyncio.sleep(30)

    app.handler("q", name="hang")(hang if kind == "plain" else hang_async)
    with TestWorker(app) as worker:
        worker.send("q", b"1")
        with pytest.raises(AssertionError, match=r"not empty after 0.2 s; at work were: hang"):
            worker.run_until_empty(timeout_seconds=0.2)
    gate.set()


def test_a_worker_that_is_not_entered_opens_no_real_queue() -> None:
    app = App(broker="sqlite:///nowhere/at/all.db")
    app.handler(ORDERS)(lambda order: None)
    worker = TestWorker(app)
    for misuse in (lambda: worker.send(ORDERS, Order(id=1)), worker.run_until_empty):
        with pytest.raises(UsageError, match="not entered"):
            misuse()
    with worker, pytest.raises(UsageError, match="entered already"), worker:
        pass


def test_the_source_of_an_object_handler_is_not_cleaned_up(tmp_path: Path) -> None:
    """No background job runs: a test must not delete real objects. The testing page says so."""
    app, seen = App(), list[bytes]()
    (tmp_path / "a.txt").write_bytes(b"1")

    @app.object_handler("files", source=str(tmp_path), source_cleanup=cleanup.Delete(after=0))
    def read(obj: IncomingObject) -> None:
        seen.append(obj.read())

    with TestWorker(app) as worker:
        app.announce("files", str(tmp_path))
        worker.run_until_empty()
    assert seen == [b"1"]
    assert (tmp_path / "a.txt").exists()


def test_nested_workers_have_separate_queues() -> None:
    app, seen = App(), list[int]()
    app.handler(ORDERS)(lambda order: seen.append(order.id))
    with TestWorker(app) as outer:
        outer.send(ORDERS, Order(id=1))
        with TestWorker(app) as inner:
            inner.send(ORDERS, Order(id=2))
            inner.run_until_empty()
        assert seen == [2]
        outer.run_until_empty()
    assert seen == [2, 1]


def test_duplicates_within_the_window_are_sent_once() -> None:
    app = App()
    with TestWorker(app) as worker:
        ids = {worker.send(ORDERS, Order(id=1), deduplication_id="one") for _ in range(3)}
        assert len(ids) == 1
        assert len(worker.waiting(ORDERS)) == 1
