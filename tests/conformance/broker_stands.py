"""The brokers that keep one contract, each with all that its tests need. A new one joins by an entry in `STANDS`."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.services.aws_server import Kind
from tests.services.frozen_clock import ServerClock
from tests.services.plugin import Servers

from penstock.brokers.memory.broker import MemoryBroker
from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.brokers.sqs import SqsBroker
from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.testing import FakeClock

LEASE = 30.0


class Stand(Protocol):
    """One system, and as many workers' views of it as a test wants."""

    clock: FakeClock
    leases_end_by_time: bool  # else: only when somebody else has the message

    def broker(self, holder: str = "w1", queues: Sequence[QueueSettings] = ()) -> Broker: ...

    def advance(self, seconds: float) -> None: ...

    def close(self) -> None: ...


class MemoryStand:
    leases_end_by_time = True

    def __init__(self) -> None:
        self.clock: FakeClock = FakeClock()
        self._first: MemoryBroker | None = None
        self._open: list[MemoryBroker] = []

    def broker(self, holder: str = "w1", queues: Sequence[QueueSettings] = ()) -> Broker:
        if self._first is None:
            self._first = MemoryBroker(clock=self.clock, queues=queues, holder=holder)
        self._open.append(self._first.held_by(holder))
        return self._open[-1]

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        for broker in self._open:
            broker.close()


class SqliteStand:
    leases_end_by_time = True

    def __init__(self, folder: Path) -> None:
        self.clock: FakeClock = FakeClock()
        self._folder = folder
        self._open: list[SqliteBroker] = []

    def broker(self, holder: str = "w1", queues: Sequence[QueueSettings] = ()) -> Broker:
        self._open.append(SqliteBroker(self._folder / "queue.db", holder=holder, clock=self.clock, queues=queues))
        return self._open[-1]

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        for broker in self._open:
            broker.close()


class RedisStand:
    """A database at a shared server, whose clock goes with the test's."""

    leases_end_by_time = False

    def __init__(self, servers: Servers, version: str) -> None:
        self.clock: FakeClock = ServerClock(servers.clock_file)
        self.server = servers.redis(version)
        self._open: list[RedisStreamsBroker] = []

    def broker(self, holder: str = "w1", queues: Sequence[QueueSettings] = ()) -> Broker:
        self._open.append(
            RedisStreamsBroker(self.server.url, holder=holder, queues=queues, sweep_seconds=0.0, clock=self.clock)
        )
        return self._open[-1]

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        for broker in self._open:
            broker.close()
        self.server.clean()


class SqsStand:
    """A server that speaks SQS's dialect, whose clock goes with the test's. The queues of all tests are there."""

    leases_end_by_time = False

    def __init__(self, servers: Servers, kind: Kind) -> None:
        self.clock: FakeClock = ServerClock(servers.clock_file)
        self.server = servers.aws(kind)
        self._open: list[SqsBroker] = []

    def broker(self, holder: str = "w1", queues: Sequence[QueueSettings] = ()) -> Broker:
        if not self._open:
            for name in SQS_QUEUES:
                self.server.client("sqs").create_queue(QueueName=name)
        self._open.append(SqsBroker(self.server.aws, holder=holder, queues=queues, poll_seconds=1, clock=self.clock))
        return self._open[-1]

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        for broker in self._open:
            broker.close()
        self.server.clean()


SQS_QUEUES = ("q", "q-dlq", "q-dead", "other", "a", "b", "first", "second", "third", "one", "two", "elsewhere")


def sqlite_stand(request: pytest.FixtureRequest) -> SqliteStand:
    return SqliteStand(request.getfixturevalue("tmp_path"))


def redis_stand(request: pytest.FixtureRequest, version: str) -> RedisStand:
    return RedisStand(request.getfixturevalue("frozen_servers"), version)


def sqs_stand(request: pytest.FixtureRequest, kind: Kind) -> SqsStand:
    return SqsStand(request.getfixturevalue("frozen_servers"), kind)


STANDS: dict[str, Callable[[pytest.FixtureRequest], Stand]] = {
    "memory": lambda request: MemoryStand(),
    "sqlite": sqlite_stand,
    "redis 7.0": partial(redis_stand, version="7.0"),
    "redis 6.2": partial(redis_stand, version="6.2"),
    "sqs moto": partial(sqs_stand, kind="moto"),
    "sqs fauxqs": partial(sqs_stand, kind="fauxqs"),
}


# Where a server is wrong about the system it stands for: stand, test, and how it is wrong. Another server of the same
# dialect keeps the test.
NOT_APPLICABLE: dict[tuple[str, str], str] = {
    (
        "sqs fauxqs",
        "test_past_its_retention_a_message_is_not_handed_over",
    ): "not applicable: fauxqs keeps messages for ever",
}


def outgoing(*bodies: str, **fields: Any) -> list[Outgoing]:
    return [Outgoing(body=body.encode(), **fields) for body in bodies]


def receive(broker: Broker, count: int = 10, *, queue: str = "q", lease: float = LEASE) -> list[Delivery]:
    return list(broker.receive(queue, messages_max=count, lease_seconds=lease))


class Waiting:
    """Somebody who waits for messages in a thread of its own, while the test lets time pass."""

    def __init__(self, stand: Stand, wait: Callable[[], Sequence[Delivery]]) -> None:
        self._stand = stand
        self._pool = ThreadPoolExecutor(1)
        self._waiting = self._pool.submit(wait)
        self._pool.shutdown(wait=False)  # the thread ends with its one task

    def goes_on(self) -> bool:
        """Whether it still waits, after a moment of the machine's time."""
        return not wait([self._waiting], timeout=0.2).done

    def over(self, *, within_seconds: float) -> list[Delivery]:
        """Let time pass in small steps until it is over; answers what it got."""
        give_up = self._stand.clock.monotonic() + within_seconds
        while not wait([self._waiting], timeout=0.01).done:
            self._stand.advance(0.1)
            assert self._stand.clock.monotonic() < give_up, "it still waits"
        return list(self._waiting.result())


def waiting(stand: Stand, broker: Broker, *, wait_seconds: float) -> Waiting:
    """A receiver that waits for the first message of q."""
    return Waiting(stand, lambda: broker.receive("q", messages_max=5, lease_seconds=LEASE, wait_seconds=wait_seconds))


def bodies(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.message.body.decode() for delivery in deliveries]
