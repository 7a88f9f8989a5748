"""Messages and dead letters in every state, sent, received and settled with the broker's own calls."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.web.hostile import BODIES, IMAGE, NAMES, SCRIPT
from tests.web.past import DAY, HOUR, MINUTE, PastClock
from tests.web.shop import (
    BROKEN_QUEUE,
    EMPTY_QUEUE,
    FLOODED_QUEUE,
    HANDLED_QUEUES,
    JAPANESE_QUEUE,
    LAGGING_QUEUE,
    LONG_QUEUE,
    NO_CONSUMER_QUEUE,
    PAUSED_QUEUE,
    STATE,
    UNSERVED_QUEUE,
)

from penstock.app.state import QUEUE_FILE
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.broker import QueueSettings, conventional_dead_letter_queue
from penstock.messaging.delivery import Delivery
from penstock.messaging.failure import failure_of, fingerprint
from penstock.messaging.message import NO_ATTRIBUTES, Attributes, Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release

LEASE_SECONDS = 12 * HOUR
HOSTILE_ATTRIBUTES: Attributes = {"x-note": SCRIPT, IMAGE: IMAGE, "x-bytes": b"\x00\xff", "x-long": "long " * 200}
LONG_TEXT = "The gateway refused the payment because the account of the merchant is under review. " * 40


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSeeder:
    """Sends as the shop, and receives as its workers, at the time of the clock."""

    folder: Path
    clock: PastClock
    brokers: Mapping[str, SqliteBroker]  # by worker

    def send(
        self,
        queue: str,
        *bodies: object,
        group: str | None = None,
        delay_seconds: float = 0.0,
        attributes: Attributes = NO_ATTRIBUTES,
    ) -> None:
        """Send bodies as JSON, or as they are if they are bytes."""
        outgoing = [
            Outgoing(
                body=body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode(),
                attributes={"content-type": "application/json", **attributes},
                group=group,
                delay_seconds=delay_seconds,
            )
            for body in bodies
        ]
        self._any.send(queue, outgoing)

    def receive(self, queue: str, worker: str, *, count: int = 1) -> Sequence[Delivery]:
        """Receive messages as this worker; they stay in flight."""
        found = self.brokers[worker].receive(queue, messages_max=count, lease_seconds=LEASE_SECONDS)
        assert len(found) == count
        return found

    def fail(self, queue: str, worker: str, *, reason: str, count: int = 1) -> None:
        """Receive messages and release them as failed, visible at once."""
        found = self.receive(queue, worker, count=count)
        assert not self.brokers[worker].settle([(each, Release(reason=reason)) for each in found])

    def kill(self, queue: str, worker: str, settlement: DeadLetter, *, count: int = 1) -> None:
        """Receive messages and dead-letter them."""
        found = self.receive(queue, worker, count=count)
        assert not self.brokers[worker].settle([(each, settlement) for each in found])

    def ack(self, queue: str, worker: str, *, count: int) -> None:
        found = self.receive(queue, worker, count=count)
        assert not self.brokers[worker].settle([(each, Ack()) for each in found])

    @property
    def _any(self) -> SqliteBroker:
        return next(iter(self.brokers.values()))


@contextmanager
def queue_seeder(folder: Path, clock: PastClock, workers: Sequence[str]) -> Iterator[QueueSeeder]:
    """Open the shop's queues once for each worker."""
    path = folder / STATE / QUEUE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = [QueueSettings(name=queue) for queue in (*HANDLED_QUEUES, NO_CONSUMER_QUEUE)]
    with ExitStack() as closing_all:
        brokers = {
            worker: closing_all.enter_context(
                closing(SqliteBroker(path, holder=worker, clock=clock, queues=settings if not number else ()))
            )
            for number, worker in enumerate(workers)
        }
        yield QueueSeeder(folder=folder, clock=clock, brokers=brokers)


def seed_dead_letters(shop: QueueSeeder, worker: str) -> None:
    """Seed groups of dead letters, oldest first: replayed in vain, crashed, rejected, unreadable, hostile, foreign."""
    shop.clock.ago_seconds = 6 * DAY
    for body in ({"order": 7, "customer": "ACME"}, {"order": 8, "customer": "佐藤商店"}):
        shop.send(FLOODED_QUEUE, body)
        shop.kill(FLOODED_QUEUE, worker, crashed(_lookup, FLOODED_QUEUE))
    dlq = conventional_dead_letter_queue(FLOODED_QUEUE)
    final = DeadLetter(reason="replayed 3 times, and failed again", set_aside=True)
    shop.kill(dlq, worker, final, count=2)
    shop.clock.ago_seconds = 5 * HOUR
    shop.send(FLOODED_QUEUE, *({"order": 1_000 + number, "amount": number * 10} for number in range(57)))
    shop.kill(FLOODED_QUEUE, worker, crashed(_call_gateway, FLOODED_QUEUE), count=57)
    shop.clock.ago_seconds = 2 * HOUR
    shop.send(JAPANESE_QUEUE, {"注文": "東京-0042", "品名": "抹茶 500g", "備考": "時間指定あり。" * 30})
    shop.kill(JAPANESE_QUEUE, worker, crashed(_translate, JAPANESE_QUEUE))
    shop.clock.ago_seconds = HOUR
    shop.send(BROKEN_QUEUE, *({"payment": number, "note": LONG_TEXT} for number in range(12)))
    rejected = DeadLetter(reason="no such order", poison=True, handler=BROKEN_QUEUE)
    shop.kill(BROKEN_QUEUE, worker, rejected, count=12)
    shop.clock.ago_seconds = 20 * MINUTE
    for unreadable, reason in BODIES:
        shop.send(LAGGING_QUEUE, unreadable)
        shop.kill(LAGGING_QUEUE, worker, DeadLetter(reason=reason, poison=True, handler=LAGGING_QUEUE))
    for name in NAMES:
        shop.send(LONG_QUEUE, {"name": name})
        shop.kill(LONG_QUEUE, worker, crashed(_raise(name), name))
    shop.send(LONG_QUEUE, {"note": LONG_TEXT})
    shop.kill(LONG_QUEUE, worker, DeadLetter(reason=LONG_TEXT, poison=True, handler=LONG_QUEUE))
    # Sent to the DLQ by another program: nothing is known of its death
    shop.send(dlq, b"moved by hand")


def seed_messages(shop: QueueSeeder, *, busy: str, stuck: str, draining: str) -> None:
    """Seed waiting, in-flight and delayed messages, in queues that are well, flooded, lagging, paused or left alone."""
    shop.clock.ago_seconds = 3 * DAY
    shop.send(NO_CONSUMER_QUEUE, *({"report": number} for number in range(3)))
    shop.clock.ago_seconds = 50 * MINUTE
    shop.send(LAGGING_QUEUE, {"invoice": 1, "customer": "stuck"})
    shop.receive(LAGGING_QUEUE, stuck)
    shop.send(LAGGING_QUEUE, *({"invoice": number} for number in range(2, 31)))
    shop.send(PAUSED_QUEUE, *({"to": f"customer-{number}@example.com"} for number in range(5)))
    shop.clock.ago_seconds = 30 * MINUTE
    shop.send(FLOODED_QUEUE, *({"order": number} for number in range(12_345)), group="tenant-that-floods")
    shop.clock.ago_seconds = 10 * MINUTE
    shop.send(BROKEN_QUEUE, *({"payment": number} for number in range(8)))
    shop.fail(BROKEN_QUEUE, busy, reason="TimeoutError: the gateway did not answer within 5 s", count=8)
    shop.send(UNSERVED_QUEUE, {"report": "monthly"})
    shop.clock.ago_seconds = MINUTE
    shop.send(FLOODED_QUEUE, {"order": "quiet"}, group="tenant-b")
    shop.send(FLOODED_QUEUE, *({"order": f"later-{number}"} for number in range(3)), delay_seconds=2 * HOUR)
    shop.receive(FLOODED_QUEUE, busy, count=4)
    shop.send(EMPTY_QUEUE, *({"done": number} for number in range(4)))
    shop.ack(EMPTY_QUEUE, busy, count=4)
    shop.send(JAPANESE_QUEUE, {"注文": "東京-0043", "顧客": "山田太郎"}, {"注文": "大阪-0001"})
    shop.receive(JAPANESE_QUEUE, draining)
    for name in NAMES:
        shop.send(LONG_QUEUE, {"name": name}, group=name)
    for body, _ in BODIES:
        shop.send(LONG_QUEUE, body)
    shop.send(LONG_QUEUE, {"hostile": "attributes"}, attributes=HOSTILE_ATTRIBUTES)
    shop.clock.ago_seconds = 0.0
    shop.brokers[busy].pause(PAUSED_QUEUE)


def crashed(function: object, handler: str) -> DeadLetter:
    """Return the settlement of a message whose handler raises what this function raises."""
    try:
        assert callable(function)
        function()
    except Exception as raised:
        failure = failure_of(raised)
        return DeadLetter(
            reason=f"failed 4 times, the last time with {failure.summary}",
            exception=failure.summary,
            traceback=failure.traceback,
            fingerprint=fingerprint(handler, failure.error_type, raised, failure.traceback),
            handler=handler,
        )
    raise AssertionError("the function raises nothing")


def _call_gateway() -> None:
    raise TimeoutError("the gateway did not answer within 5 s")


def _lookup() -> None:
    customers: Mapping[str, str] = {}
    try:
        customers["ACME"]
    except KeyError as error:
        raise LookupError("the customer ACME is unknown") from error


def _translate() -> None:
    raise ValueError(f"文字を変換できません: {'抹茶' * 50}")


def _raise(text: str) -> object:
    def fail() -> None:
        raise ValueError(text)

    return fail
