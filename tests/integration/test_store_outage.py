"""A long outage of a handler's store: the queue is paused, and no receive is used up.

On SQS each receive counts, and the queue itself moves a message to its dead-letter queue after some of them.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.services.aws_proxy import AwsProxy
from tests.services.aws_server import AwsServer

from penstock import App
from penstock.app.serving import serve
from penstock.brokers.sqs import SqsBroker
from penstock.config import Settings
from penstock.events import DeliverySettled, Event, StoreAvailable, StoreUnavailable
from penstock.handlers import outage
from penstock.messaging.broker import QueueSettings
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack
from penstock.objects.notification import announce
from penstock.objects.reference import ObjectRef
from penstock.storage import s3
from penstock.worker.shutdown import StopSignal

DEADLINE_SECONDS = 180.0
RECEIVES_MAX = 5
PINGS = 3 * RECEIVES_MAX  # failing ones: as many receives would dead-letter every message
MESSAGES = 12
WORKERS = 2
BUCKET, QUEUE = "landing", "landed"


class Scenario:
    """Workers in threads that read a bucket through a proxy, and their events."""

    def __init__(self, stack: ExitStack, server: AwsServer, proxy: AwsProxy, folder: Path, calls: list[str]) -> None:
        self._changed = threading.Condition()
        # settled deliveries by message id; this and the rest: under the condition
        self.received: Counter[str] = Counter()
        self.acked: Counter[str] = Counter()
        self.outages: list[StoreUnavailable] = []
        self.recoveries = 0
        self._stop = StopSignal()
        self._s3 = server.client("s3")
        self._s3.create_bucket(Bucket=BUCKET)
        queues = (QueueSettings(name=QUEUE, receives_max=RECEIVES_MAX), QueueSettings(name="plain"))
        self.apps: list[App] = []
        for number in range(WORKERS):
            broker = stack.enter_context(
                closing(SqsBroker(server.aws, holder=f"w{number}", queues=queues, poll_seconds=1))
            )
            settings = Settings(
                data_dir=str(folder / f"state{number}"),
                ledger=f"sqlite:///{folder}/ledger.db",
                one_host=True,
                aws_endpoint_url=proxy.url,
                objects_retry_base=0.1,
                objects_max_retry_wait=0.2,
            )
            app = App(broker=broker, settings=settings)
            app.object_handler(QUEUE, source=f"s3://{BUCKET}", name="read")(lambda incoming: calls.append(incoming.key))
            app.handler("plain", name="plain")(lambda message: None)
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

    def store(self, *keys: str) -> Sequence[str]:
        """Put objects directly into the store, and send a notification for each; return the ids of the messages."""
        bodies = []
        for key in keys:
            put: dict[str, Any] = self._s3.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
            ref = ObjectRef(bucket=BUCKET, key=key, size_bytes=len(key), etag=put["ETag"].strip('"'))
            bodies.append(announce(ref))
        return self.apps[0].broker.send(QUEUE, [Outgoing(body=body) for body in bodies])

    def wait_until(self, condition: Callable[[], bool], description: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_SECONDS), f"never came true: {description}"

    def wait_until_acked(self, ids: Sequence[str]) -> None:
        self.wait_until(lambda: all(self.acked[one] for one in ids), "all are done")

    def _listen(self, event: Event) -> None:
        with self._changed:
            match event:
                case DeliverySettled():
                    self.received[event.message_id] += 1
                    self.acked[event.message_id] += isinstance(event.settlement, Ack)
                case StoreUnavailable():
                    self.outages.append(event)
                case StoreAvailable():
                    self.recoveries += 1
                case _:
                    return
            self._changed.notify_all()


@pytest.fixture
def proxy(moto: AwsServer) -> Iterator[AwsProxy]:
    proxy = AwsProxy(moto)
    yield proxy
    proxy.close()


@pytest.fixture
def pings(monkeypatch: pytest.MonkeyPatch) -> list[threading.Event]:
    """Shorten the rounds of the watches and the clients' retries, and return a list with one event per failed ping."""
    failed: list[threading.Event] = []
    outages = outage.OutageWatch._record_unavailable

    def counted(self: outage.OutageWatch, error: str, *, by_request: bool) -> None:
        outages(self, error, by_request=by_request)
        if not by_request:
            failed.append(threading.Event())

    monkeypatch.setattr(outage.OutageWatch, "_record_unavailable", counted)
    for name, seconds in {
        "CHECK_SECONDS": 0.1,
        "PAUSE_SECONDS_MIN": 0.05,
        "PAUSE_SECONDS_MAX": 0.2,
        "COUNTED_RELEASE_SECONDS": 1.0,
    }.items():
        monkeypatch.setattr(outage, name, seconds)
    for name, number in {
        "CONNECT_SECONDS": 1,
        "READ_SECONDS": 1,
        "RETRY_SECONDS": 2,
        "TRIES_MAX": 1,
        "PING_READ_SECONDS": 1,
        "PING_TRIES_MAX": 1,
    }.items():
        monkeypatch.setattr(s3, name, number)
    return failed


def wait_for_pings(pings: list[threading.Event], count: int) -> None:
    tick = threading.Event()
    for _ in range(int(DEADLINE_SECONDS / 0.05)):
        if len(pings) >= count:
            return
        tick.wait(0.05)
    raise AssertionError(f"the watches have {len(pings)} failed pings, expected {count}")


@pytest.mark.parametrize("interrupt", [AwsProxy.leave, AwsProxy.stall], ids=["refuses", "freezes"])
def test_an_outage_of_the_store_costs_messages_no_more_than_a_receive(
    moto: AwsServer,
    proxy: AwsProxy,
    tmp_path: Path,
    pings: list[threading.Event],
    interrupt: Callable[[AwsProxy], None],
) -> None:
    calls: list[str] = []
    with ExitStack() as stack:
        scenario = Scenario(stack, moto, proxy, tmp_path, calls)
        stack.callback(scenario.close)
        scenario.start()
        scenario.wait_until_acked(scenario.store("first"))
        interrupt(proxy)
        waiting = [*scenario.store(*(f"a{number}" for number in range(MESSAGES)))]
        scenario.wait_until(lambda: len(scenario.outages) >= WORKERS, "every worker detects the outage")
        wait_for_pings(pings, len(pings) + WORKERS * PINGS)
        waiting += scenario.store(*(f"b{number}" for number in range(MESSAGES)))
        scenario.wait_until_acked(scenario.apps[0].send_many("plain", [b"{}"]))  # it needs no store
        wait_for_pings(pings, len(pings) + WORKERS * PINGS)
        assert max((scenario.received[one] for one in waiting), default=0) <= WORKERS
        assert "first" in calls
        assert len(calls) == 1, "nothing was read meanwhile"
        if interrupt is AwsProxy.leave:
            proxy.come_back()
        proxy.heal()
        scenario.wait_until_acked(waiting)
        assert {(event.store, event.queues) for event in scenario.outages} == {(f"s3://{BUCKET}", (QUEUE,))}
        assert scenario.recoveries >= WORKERS
        assert max(scenario.received[one] for one in waiting) <= WORKERS + 1
        assert scenario.apps[0].broker.stats(f"{QUEUE}-dlq").messages == 0
        assert Counter(calls) == dict.fromkeys(["first", *calls[1:]], 1)
        assert len(calls) == 1 + 2 * MESSAGES
