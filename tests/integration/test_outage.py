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
DEADLINE_SECONDS = 180.0


class EventLog:
    """Collects events of all threads, and waits for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.acked: Counter[str] = Counter()  # under the condition, as is all of this
        self.dead: set[str] = set()
        self.counted: Counter[str] = Counter()  # attempts that failed and were counted, by type of error
        self.failures: list[MessageFailed] = []
        self.openings = 0
        self.closings = 0

    def __call__(self, event: Event) -> None:
        with self._changed:
            match event:
                case DeliverySettled(settlement=Ack()):
                    self.acked[event.message_id] += 1
                case DeliverySettled(settlement=DeadLetter()):
                    self.dead.add(event.message_id)
                case DeliverySettled(settlement=Release(uncounted=False, reason=str(reason))):
                    self.counted[reason.partition(":")[0]] += 1
                case MessageFailed():
                    self.failures.append(event)
                case BreakerOpened():
                    self.openings += 1
                case BreakerClosed():
                    self.closings += 1
                case _:
                    return
            self._changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], description: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_SECONDS), f"never came true: {description}"


class Shop:
    """A worker in a thread whose handler calls the dependency; and its events."""

    def __init__(self, broker: Broker, folder: Path, *, failures: int = FAILURES, max_attempts: int = 5) -> None:
        self.event_log = EventLog()
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
            target=lambda: serve(self.app, stop=self._stop, listeners=(self.event_log,)), daemon=True
        )
        self._thread.start()

    def send(self, count: int) -> list[str]:
        return self.app.send_many("q", [b"{}"] * count)

    def wait_until_settled(self, ids: list[str]) -> None:
        self.event_log.wait_until(
            lambda: all(one in self.event_log.acked or one in self.event_log.dead for one in ids), "all are done"
        )

    def wait_until_failed(self, open_broker: str, count: int) -> None:
        def have() -> bool:
            return sum(failure.error_type == open_broker for failure in self.event_log.failures) >= count

        self.event_log.wait_until(have, f"{count} failed with {open_broker}")

    def close(self) -> None:
        self._stop.request()
        self._thread.join(DEADLINE_SECONDS)
        self.dependency.close()
        assert not self._thread.is_alive(), "the worker did not end"

    def _work(self, message: Message) -> None:
        ask(self.dependency.port, timeout_seconds=CALL_TIMEOUT_SECONDS)


OpenBroker = Callable[[pytest.FixtureRequest, Path], Broker]


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

    def open_one(open_broker: OpenBroker, **options: Any) -> Shop:
        broker = open_broker(request, tmp_path)
        opened.append((Shop(broker, tmp_path, **options), broker))
        return opened[-1][0]

    yield open_one
    for shop, broker in opened:
        with closing(broker):
            shop.close()


@pytest.mark.parametrize("open_broker", [on_sqlite, on_redis, on_sqs])
def test_an_outage_dead_letters_nothing_and_everything_is_done_after_it(
    open_shop: Callable[..., Shop], open_broker: OpenBroker
) -> None:
    shop = open_shop(open_broker)
    event_log = shop.event_log
    shop.wait_until_settled(shop.send(20))
    before = Counter(event_log.counted)
    shop.dependency.refuse()
    waiting = shop.send(60)
    event_log.wait_until(lambda: event_log.openings >= 1, "the breaker opens")
    shop.wait_until_failed("ConnectionRefusedError", 2 * FAILURES)
    shop.dependency.hang()
    shop.wait_until_failed("TimeoutError", 2 * FAILURES)
    waiting += shop.send(10)
    event_log.wait_until(
        lambda: event_log.counted["TimeoutError"] > before["TimeoutError"], "the first that hung are released"
    )
    # On a busy machine a call may also time out while the dependency responds: that does not belong to the outage.
    counted = event_log.counted - before
    shop.dependency.answer()
    shop.wait_until_settled(waiting)
    event_log.wait_until(lambda: event_log.closings == event_log.openings, "the breaker closes")
    assert not event_log.dead
    assert set(event_log.acked.values()) == {1}
    assert len(event_log.acked) == 90
    # Only the attempts before the breaker opened, for each kind of failure, were counted.
    assert 0 < counted["ConnectionRefusedError"] < FAILURES
    assert 0 < counted["TimeoutError"] < FAILURES


def test_without_a_breaker_all_messages_are_dead_lettered(open_shop: Callable[..., Shop]) -> None:
    shop = open_shop(on_sqlite, failures=0)
    shop.dependency.refuse()
    sent = shop.send(60)
    shop.wait_until_settled(sent)
    assert shop.event_log.dead == set(sent)
    assert len(shop.event_log.failures) == 60 * 5


def test_few_messages_are_not_dead_lettered_by_an_outage_if_releases_count(
    open_shop: Callable[..., Shop],
) -> None:
    shop = open_shop(on_sqs, max_attempts=3)
    event_log = shop.event_log
    shop.dependency.refuse()
    sent = shop.send(8)
    event_log.wait_until(
        lambda: any(failure.attempt > 3 for failure in event_log.failures), "one has more attempts than the maximum"
    )
    shop.dependency.answer()
    shop.wait_until_settled(sent)
    assert not event_log.dead
