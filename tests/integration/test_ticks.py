"""Scheduled messages of several workers on real brokers: one message per tick."""

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.services.aws_server import AwsServer
from tests.services.redis_server import RedisServer

from penstock import App, Handlers
from penstock.app.serving import serve
from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.sqs import SqsBroker
from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.events import Bus, Event, ScheduledMessageSent
from penstock.handlers.once import LedgerKeys
from penstock.handlers.ticker import CLAIM_SECONDS, REMEMBERED_SECONDS, Ticker
from penstock.ledger import Ledger
from penstock.ledger.records import WorkOwner
from penstock.messaging.clock import SystemClock
from penstock.storage.aws import Aws
from penstock.worker.shutdown import StopSignal

DEADLINE_SECONDS = 180.0
TICKS = 4


class ClockAhead(SystemClock):
    """The clock of a host that is six minutes ahead."""

    def now(self) -> float:
        return super().now() + 360.0


class SentTicks:
    """The ticks that were sent, and a signal when there are enough."""

    def __init__(self) -> None:
        self.ticks: list[float] = []
        self.enough = threading.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, ScheduledMessageSent):
            self.ticks.append(event.scheduled_at)
            if len(set(self.ticks)) >= TICKS:
                self.enough.set()


def scheduled(queue: str) -> Handlers:
    group = Handlers()
    group.handler(queue, name="check", every=1)(lambda message: None)
    return group


def run(tickers: Sequence[Ticker], enough: Sequence[threading.Event]) -> None:
    threads = [threading.Thread(target=ticker.run, daemon=True) for ticker in tickers]
    for thread in threads:
        thread.start()
    try:
        assert all(event.wait(DEADLINE_SECONDS) for event in enough)
    finally:
        for ticker in tickers:
            ticker.end()
        for thread in threads:
            thread.join(DEADLINE_SECONDS)


def test_on_redis_a_host_whose_clock_is_ahead_sends_no_tick_early(redis_server: RedisServer) -> None:
    group, sent_ticks = scheduled("checks"), [SentTicks() for _ in range(3)]
    tickers = [
        Ticker(
            group.declarations,
            broker=RedisStreamsBroker(redis_server.url, holder=f"w-{number}"),
            clock=ClockAhead() if number == 0 else SystemClock(),
            bus=Bus(sent_ticks[number]),
            random=random.random,
        )
        for number in range(3)
    ]
    run(tickers, [one.enough for one in sent_ticks])
    sent = Counter(
        message.body for message in RedisStreamsBroker(redis_server.url, holder="t").browse("checks", messages_max=99)
    )
    assert len(sent) >= TICKS
    assert set(sent.values()) == {1}
    assert max(sent_ticks[0].ticks) <= time.time() + 1, "by its own clock it would have sent ticks six minutes early"


def test_on_sqs_the_ledger_lets_one_worker_send_each_tick(moto: AwsServer, tmp_path: Path) -> None:
    aws = Aws(region="us-east-1", endpoint_url=moto.url)
    client = aws.client("sqs")
    queue = client.create_queue(QueueName="checks")["QueueUrl"]
    group, sent_ticks = scheduled("checks"), SentTicks()
    tickers = []
    for number in range(3):
        ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
        keys = LedgerKeys(
            ledger=ledger,
            handler="check",
            worker=f"w-{number}",
            lease_seconds=CLAIM_SECONDS,
            retention_seconds=REMEMBERED_SECONDS,
            owner=WorkOwner(app="app", queue="checks", purpose="tick"),
        )
        tickers.append(
            Ticker(
                group.declarations,
                broker=SqsBroker(aws, holder=f"w-{number}"),
                clock=SystemClock(),
                bus=Bus(sent_ticks),
                random=random.random,
                keys=lambda _, keys=keys: keys,  # type: ignore[misc] # the loop's own
            )
        )
    run(tickers, [sent_ticks.enough])
    bodies: Counter[str] = Counter()
    while messages := client.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages"):
        bodies.update(message["Body"] for message in messages)
    assert len(bodies) >= TICKS
    assert set(bodies.values()) == {1}


def test_on_sqs_a_schedule_without_a_shared_ledger_is_refused_at_start(moto: AwsServer, tmp_path: Path) -> None:
    settings = Settings.model_construct(
        broker="sqs://us-east-1",
        ledger=f"sqlite:///{tmp_path}/ledger.db",
        data_dir=str(tmp_path),
        aws_endpoint_url=moto.url,
    )
    app = App(settings=settings)
    app.handler("checks", name="check", every=1)(lambda message: None)
    with pytest.raises(ConfigurationError, match="the work of check would be done once per host") as refused:
        serve(app, stop=StopSignal())
    assert refused.value.exit_code == 78
