"""A long outage of the ledger's server: the queues that need it are paused, and no receive is used up.

On SQS each receive counts, and the queue itself moves a message to its dead-letter queue after some of them.
"""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.services.aws_server import AwsServer
from tests.services.mariadb_server import MariadbServer
from tests.services.plugin import StartMariadb
from tests.services.redis_server import RedisServer

from penstock import App
from penstock.app.serving import serve
from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.brokers.sqs import SqsBroker
from penstock.config import Settings
from penstock.events import DeliverySettled, Event, LedgerAvailable, LedgerUnavailable
from penstock.handlers import outage
from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.message import Message
from penstock.messaging.settlement import Ack, DeadLetter
from penstock.worker.shutdown import StopSignal

DEADLINE_SECONDS = 180.0
RECEIVES_MAX = 5
PINGS = 3 * RECEIVES_MAX  # failing ones: as many receives would dead-letter every message
MESSAGES = 12
WORKERS = 2

OpenBroker = Callable[[pytest.FixtureRequest, Path, str], Broker]
QUEUES = (QueueSettings(name="keyed", receives_max=RECEIVES_MAX), QueueSettings(name="plain"))


def on_sqlite(request: pytest.FixtureRequest, folder: Path, holder: str) -> Broker:
    return SqliteBroker(folder / "queue.db", holder=holder)


def on_redis(request: pytest.FixtureRequest, folder: Path, holder: str) -> Broker:
    server: RedisServer = request.getfixturevalue("servers").redis("7.0")
    request.addfinalizer(server.clean)
    return RedisStreamsBroker(server.url, holder=holder)


def on_sqs(request: pytest.FixtureRequest, folder: Path, holder: str) -> Broker:
    server: AwsServer = request.getfixturevalue("moto")
    request.addfinalizer(server.clean)
    return SqsBroker(server.aws, holder=holder, queues=QUEUES, poll_seconds=1)


class Scenario:
    """Workers in threads on one broker and one ledger, and their events."""

    def __init__(
        self,
        stack: ExitStack,
        open_broker: OpenBroker,
        request: pytest.FixtureRequest,
        folder: Path,
        url: str,
        *,
        replay: bool = False,
    ) -> None:
        self._changed = threading.Condition()
        # settled deliveries by message id; this and the rest: under the condition
        self.received: Counter[str] = Counter()
        self.acked: Counter[str] = Counter()
        self.settled: Counter[str] = Counter()  # settled deliveries by queue
        self.outages: list[LedgerUnavailable] = []
        self.recoveries = 0
        self.apps: list[App] = []
        self._stop = StopSignal()
        for number in range(WORKERS):
            broker = stack.enter_context(closing(open_broker(request, folder, f"w{number}")))
            settings = Settings(
                data_dir=str(folder / f"state{number}"),
                ledger=url,
                one_host=True,
                worker_concurrency=10,
                dead_letters_replay=replay,
            )
            app = App(broker=broker, settings=settings)
            app.handler("keyed", idempotency=lambda message: message.id)(self._work)
            app.handler("plain", name="plain")(self._work)
            self.apps.append(app)
        self._threads = [
            threading.Thread(target=lambda app=app: serve(app, stop=self._stop, listeners=(self._listen,)), daemon=True)
            for app in self.apps
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.request()
        self._stop.request()
        for thread in self._threads:
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive(), "the worker did not end"

    def send(self, queue: str, count: int = MESSAGES) -> list[str]:
        return self.apps[0].send_many(queue, [b"{}"] * count)

    def dead_letter(self, count: int = MESSAGES) -> None:
        """Dead-letter messages of the paused queue without the workers."""
        broker, dead_lettered = self.apps[0].broker, 0
        self.send("keyed", count)
        while dead_lettered < count:
            found = broker.receive("keyed", messages_max=count, lease_seconds=60.0)
            assert not broker.settle([(one, DeadLetter(reason="no")) for one in found])
            dead_lettered += len(found)

    def wait_until(self, condition: Callable[[], bool], description: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_SECONDS), f"never came true: {description}"

    def wait_until_acked(self, ids: list[str]) -> None:
        self.wait_until(lambda: all(self.acked[one] for one in ids), "all are done")

    def _listen(self, event: Event) -> None:
        with self._changed:
            match event:
                case DeliverySettled():
                    self.received[event.message_id] += 1
                    self.settled[event.queue] += 1
                    self.acked[event.message_id] += isinstance(event.settlement, Ack)
                case LedgerUnavailable():
                    self.outages.append(event)
                case LedgerAvailable():
                    self.recoveries += 1
                case _:
                    return
            self._changed.notify_all()

    def _work(self, message: Message) -> None:
        pass


@pytest.fixture
def pings(monkeypatch: pytest.MonkeyPatch) -> list[threading.Event]:
    """Shorten the rounds of the watches, and return a list with one event per failed ping."""
    failed: list[threading.Event] = []
    outages = outage.OutageWatch._record_unavailable

    def counted(self: outage.OutageWatch, error: str, *, by_request: bool) -> None:
        outages(self, error, by_request=by_request)
        if not by_request:
            failed.append(threading.Event())

    monkeypatch.setattr(outage.OutageWatch, "_record_unavailable", counted)
    monkeypatch.setattr(outage, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(outage, "PAUSE_SECONDS_MIN", 0.05)
    monkeypatch.setattr(outage, "PAUSE_SECONDS_MAX", 0.2)
    monkeypatch.setattr(outage, "COUNTED_RELEASE_SECONDS", 2.0)
    return failed


def wait_for_pings(pings: list[threading.Event], count: int) -> None:
    tick = threading.Event()
    for _ in range(int(DEADLINE_SECONDS / 0.05)):
        if len(pings) >= count:
            return
        tick.wait(0.05)
    raise AssertionError(f"the watches have {len(pings)} failed pings, expected {count}")


# quick: one broker in a file, and SQS, which counts every receive
@pytest.mark.parametrize("open_broker", [on_sqlite, pytest.param(on_redis, marks=pytest.mark.slow), on_sqs])
def test_an_outage_of_the_ledger_costs_messages_no_more_than_a_receive(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    start_mariadb: StartMariadb,
    pings: list[threading.Event],
    open_broker: OpenBroker,
) -> None:
    server: MariadbServer = start_mariadb()
    with ExitStack() as stack:
        scenario = Scenario(stack, open_broker, request, tmp_path, server.fresh())
        stack.callback(scenario.close)
        scenario.start()
        scenario.wait_until_acked(scenario.send("keyed"))
        server.kill()
        waiting = scenario.send("keyed")
        scenario.wait_until(
            lambda: len(scenario.outages) >= WORKERS, "every worker detects the outage, though it received nothing"
        )
        wait_for_pings(pings, len(pings) + WORKERS * PINGS)
        waiting += scenario.send("keyed")
        scenario.wait_until_acked(scenario.send("plain"))  # they need no ledger
        wait_for_pings(pings, len(pings) + WORKERS * PINGS)
        assert max((scenario.received[one] for one in waiting), default=0) <= WORKERS
        server.start()
        scenario.wait_until_acked(waiting)
        assert all(event.queues == ("keyed",) for event in scenario.outages)
        assert scenario.recoveries >= WORKERS
        assert max(scenario.received[one] for one in waiting) <= WORKERS + 1
        assert scenario.apps[0].broker.stats("keyed-dlq").messages == 0


def test_a_worker_that_starts_without_its_ledger_serves_queues_that_need_none(
    request: pytest.FixtureRequest, tmp_path: Path, start_mariadb: StartMariadb, pings: list[threading.Event]
) -> None:
    server: MariadbServer = start_mariadb()
    url = server.fresh()
    server.kill()
    with ExitStack() as stack:
        scenario = Scenario(stack, on_sqlite, request, tmp_path, url)
        stack.callback(scenario.close)
        waiting = scenario.send("keyed")
        scenario.start()
        scenario.wait_until_acked(scenario.send("plain"))
        wait_for_pings(pings, WORKERS * PINGS)
        assert not any(scenario.received[one] for one in waiting)
        assert {event.queues for event in scenario.outages} == {("keyed",)}
        server.start()
        scenario.wait_until_acked(waiting)


@pytest.mark.parametrize("open_broker", [on_sqlite, on_sqs])
def test_an_outage_of_the_ledger_costs_dead_letters_no_receive(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    start_mariadb: StartMariadb,
    pings: list[threading.Event],
    open_broker: OpenBroker,
) -> None:
    server: MariadbServer = start_mariadb()
    with ExitStack() as stack:
        scenario = Scenario(stack, open_broker, request, tmp_path, server.fresh(), replay=True)
        stack.callback(scenario.close)
        scenario.start()
        scenario.wait_until_acked(scenario.send("keyed"))
        server.kill()
        scenario.wait_until(
            lambda: len(scenario.outages) >= WORKERS, "every worker detects the outage, though it received nothing"
        )
        assert all("keyed-dlq" in event.queues for event in scenario.outages)
        scenario.dead_letter()
        wait_for_pings(pings, len(pings) + WORKERS * PINGS)
        assert scenario.settled["keyed-dlq"] == 0
        server.start()
        scenario.wait_until(lambda: scenario.settled["keyed-dlq"] >= MESSAGES, "they are processed after the outage")
