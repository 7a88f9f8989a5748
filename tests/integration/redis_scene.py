"""Redis as a plain client sees it, with brokers on the same server, for the tests of its traps."""

from typing import Any

from tests.services.redis_server import RedisServer

from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.redis.keys import QueueKeys
from penstock.events import Event
from penstock.messaging.broker import ReceiveRequest
from penstock.messaging.death import death_of
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement

LEASE = 60.0
NOW = 0.0  # a lease that has expired by the next poll
STREAM = QueueKeys("penstock").stream("q")
GROUP = "penstock"


class Scene:
    """A server with a naive stream `s` that has the group `g`, and workers' brokers that sweep on each poll."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.raw: Any = server.client
        self.events: list[Event] = []
        self._open: list[RedisStreamsBroker] = []

    def broker(self, holder: str = "w1", **options: Any) -> RedisStreamsBroker:
        options = {"sweep_seconds": 0.0, "emit": self.events.append, **options}
        self._open.append(RedisStreamsBroker(self.server.url, holder=holder, **options))
        return self._open[-1]

    def naive(self, *bodies: str, group: str = "0") -> list[bytes]:
        """Create a stream as by hand; return its ids."""
        self.raw.xgroup_create("s", "g", group, mkstream=True)
        return [self.raw.xadd("s", {"body": body}) for body in bodies]

    def read(self, consumer: str, count: int = 10, *streams: str, since: str = ">") -> list[bytes]:
        response = self.raw.xreadgroup("g", consumer, dict.fromkeys(streams or ["s"], since), count=count)
        return [id for _, entries in response for id, _ in entries]

    def pending(self) -> int:
        return int(self.raw.xpending("s", "g")["pending"])

    def close(self) -> None:
        for broker in self._open:
            broker.close()


def outgoing(*bodies: object) -> list[Outgoing]:
    return [Outgoing(body=str(body).encode()) for body in bodies]


def take(broker: RedisStreamsBroker, count: int = 10, *, lease: float = LEASE) -> list[Delivery]:
    return list(broker.receive("q", messages_max=count, lease_seconds=lease))


def bodies(deliveries: list[Delivery]) -> list[str]:
    return [delivery.message.body.decode() for delivery in deliveries]


def entry(delivery: Delivery) -> str:
    return delivery.receipt.partition("-")[2]


def cycle(broker: RedisStreamsBroker, queue: str = "q") -> None:
    """Settle one message in each way, and read the dead letters; the queue is empty before and after."""
    broker.send(queue, outgoing("ack", "release", "die", "delay"))
    turn = broker.turn((), [ReceiveRequest(queue=queue, messages_max=9)], lease_seconds=LEASE)
    acked, released, dead, delayed = turn.deliveries
    assert broker.extend(turn.deliveries, lease_seconds=LEASE) == []
    fates: list[tuple[Delivery, Settlement]] = [
        (acked, Ack()),
        (released, Release()),
        (dead, DeadLetter(reason="x")),
        (delayed, Release(delay_seconds=60)),
    ]
    turn = broker.turn(fates, [ReceiveRequest(queue=queue, messages_max=9)], lease_seconds=LEASE)
    assert (turn.failures, turn.settle_error, turn.receive_error) == ([], None, None)
    assert bodies(list(turn.deliveries)) == ["release"]
    assert broker.stats(queue).delayed == 1
    (dead_letter,) = broker.browse(f"{queue}-dlq", messages_max=9)
    death = death_of(dead_letter.attributes)
    assert death is not None
    assert death.reason == "x"
    assert broker.release_holder("w1") == 1
    assert broker.purge(queue) == 2
    assert broker.purge(f"{queue}-dlq") == 1
