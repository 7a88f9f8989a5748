"""The brokers that keep one contract, each with all that its tests need. A new one joins by an entry in `STANDS`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.brokers.memory import MemoryBroker
from penstock.brokers.sqlite import SqliteBroker
from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.testing import FakeClock

LEASE = 30.0


class MemoryStand:
    """One system, and as many workers' views of it as a test wants."""

    leases_end_by_time = True  # else: only when somebody else has the message

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self._folder = folder
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
        self.clock = FakeClock()
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


Stand = MemoryStand | SqliteStand
STANDS: dict[str, Callable[[Path], Stand]] = {"memory": MemoryStand, "sqlite": SqliteStand}


def outgoing(*bodies: str, **fields: Any) -> list[Outgoing]:
    return [Outgoing(body=body.encode(), **fields) for body in bodies]


def receive(broker: Broker, count: int = 10, *, queue: str = "q", lease: float = LEASE) -> list[Delivery]:
    return list(broker.receive(queue, messages_max=count, lease_seconds=lease))


def bodies(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.message.body.decode() for delivery in deliveries]
