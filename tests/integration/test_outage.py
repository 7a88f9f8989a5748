"""A handler's dependency is down for a while: it refuses, then hangs. The breaker prevents dead letters."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.services.aws_server import AwsServer
from tests.services.dependency import Dependency, ask
from tests.services.redis_server import RedisServer

from penstock import App
from penstock.app.serving import serve
from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.brokers.sqs import SqsBroker
from penstock.config import Settings
from penstock.events import BreakerClosed, BreakerOpened, DeliverySettled, Event, MessageFailed
from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.message import Message
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.worker.shutdown import StopSignal

FAILURES = 5
CALL_TIMEOUT_SECONDS = 0.3
DEADLINE_SECONDS = 60.0


class Books:
    """Collect events of all threads, and wait for them."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self.acked: Counter[str] = Counter()  # under the condition, as is all of this
        self.dead: set[str] = set()
        self.charged: Counter[str] = Counter()  # attempts that failed and were not given back, by type of error
        self.failures: list[MessageFailed] = []
        self.openings = 0
        self.closings = 0

    def __call__(self, event: Event) -> None:
        with self._news:
            match event:
                case DeliverySettled(settlement=Ack()):
                    self.acked[event.message_id] += 1
                case DeliverySettled(settlement=DeadLetter()):
                    self.dead.add(event.message_id)
                case DeliverySettled(settlement=Release(uncounted=False, reason=str(reason))):
                    self.charged[reason.partition(":")[0]] += 1
                case MessageFailed():
                    self.failures.append(event)
                case BreakerOpened():
                    self.openings += 1
                case BreakerClosed():
                    self.closings += 1
                case _:
                    return
            self._news.notify_all()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        with self._news:
            assert self._news.wait_for(condition, DEADLINE_SECONDS), f"never came true: {what}"


class Shop:
    """A worker in a thread, whose handler calls the dependency; and its events."""

    def __init__(self, broker: Broker, folder: Path, *, failures: int = FAILURES, max_attempts: int = 5) -> None:
        self.books = Books()
        self.dependency = Dependency()
        settings = Settings(
            data_dir=str(folder / "state"),
            worker_concurrency=10,
            worker_breaker_failures=failures,
            worker_max_breaker_probe=0.4,
        )
        self.app = App(broker=broker, settings=settings)
        self.app.handler("q", max_attempts=max_attempts, retry_base=0.05, max_retry_wait=0.1)(self._work)
        self._stop = StopSignal()
        self._thread = threading.Thread(
            target=lambda: serve(self.app, stop=self._stop, listeners=(self.books,)), daemon=True
        )
        self._thread.start()

    def send(self, count: int) -> list[str]:
        return self.app.send_many("q", [b"{}"] * count)

    def until_settled(self, ids: list[str]) -> None:
        self.books.until(lambda: all(one in self.books.acked or one in self.books.dead for one in ids), "all are done")

    def until_failed(self, kind: str, count: int) -> None:
        def have() -> bool:
            return sum(failure.error_type == kind for failure in self.books.failures) >= count

        self.books.until(have, f"{count} failed with {kind}")

    def close(self) -> None:
        self._stop.request()
        self._thread.join(DEADLINE_SECONDS)
        self.dependency.close()
        assert not self._thread.is_alive(), "the worker did not end"

    def _work(self, message: Message) -> None:
        ask(self.dependency.port, timeout_seconds=CALL_TIMEOUT_SECONDS)


Kind = Callable[[pytest.FixtureRequest, Path], Broker]


def on_sqlite(request: pytest.FixtureRequest, folder: Path) -> Broker:
    return SqliteBroker(folder / "queue.db", holder="w1")


def on_redis(request: pytest.FixtureRequest, folder: Path) -> Broker:
    server: RedisServer = request.getfixturevalue("servers").redis("7.0")
    request.addfinalizer(server.clean)
    return RedisStreamsBroker(server.url, holder="w1")


def on_sqs(request: pytest.FixtureRequest, folder: Path) -> Broker:
    server: AwsServer = request.getfixturevalue("moto")
    request.addfinalizer(server.clean)
    return SqsBroker(server.aws, holder="w1", queues=(QueueSettings(name="q"),), poll_seconds=1)


@pytest.fixture
def open_shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    opened: list[tuple[Shop, Broker]] = []

    def open_one(kind: Kind, **options: Any) -> Shop:
        broker = kind(request, tmp_path)
        opened.append((Shop(broker, tmp_path, **options), broker))
        return opened[-1][0]

    yield open_one
    for shop, broker in opened:
        with closing(broker):
            shop.close()


@pytest.mark.parametrize("kind", [on_sqlite, on_redis, on_sqs])
def test_an_outage_dead_letters_nothing_and_everything_is_done_after_it(
    open_shop: Callable[..., Shop], kind: Kind
) -> None:
    shop = open_shop(kind)
    books = shop.books
    shop.until_settled(shop.send(20))
    before = Counter(books.charged)
    shop.dependency.refuse()
    waiting = shop.send(60)
    books.until(lambda: books.openings >= 1, "the breaker opens")
    shop.until_failed("ConnectionRefusedError", 2 * FAILURES)
    shop.dependency.hang()
    shop.until_failed("TimeoutError", 2 * FAILURES)
    waiting += shop.send(10)
    books.until(lambda: books.charged["TimeoutError"] > before["TimeoutError"], "the first that hung have gone back")
    # On a busy machine a call may take too long while the dependency answers, too: that is no matter of the outage.
    charged = books.charged - before
    shop.dependency.answer()
    shop.until_settled(waiting)
    books.until(lambda: books.closings == books.openings, "the breaker closes")
    assert not books.dead
    assert set(books.acked.values()) == {1}
    assert len(books.acked) == 90
    # Only those before the breaker opened, for each way to be down, lost an attempt.
    assert 0 < charged["ConnectionRefusedError"] < FAILURES
    assert 0 < charged["TimeoutError"] < FAILURES


def test_without_it_they_die(open_shop: Callable[..., Shop]) -> None:
    shop = open_shop(on_sqlite, failures=0)
    shop.dependency.refuse()
    sent = shop.send(60)
    shop.until_settled(sent)
    assert shop.books.dead == set(sent)
    assert len(shop.books.failures) == 60 * 5


def test_few_messages_tried_repeatedly_are_not_dead_lettered_where_releases_count(
    open_shop: Callable[..., Shop],
) -> None:
    shop = open_shop(on_sqs, max_attempts=3)
    books = shop.books
    shop.dependency.refuse()
    sent = shop.send(8)
    books.until(lambda: any(failure.attempt > 3 for failure in books.failures), "one is beyond its attempts")
    shop.dependency.answer()
    shop.until_settled(sent)
    assert not books.dead
