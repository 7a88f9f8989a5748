"""A broker and a plain client at one SQS server."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.services.aws_server import AwsServer, Kind

from penstock.brokers.sqs import SqsBroker
from penstock.messaging.broker import QueueSettings
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Outgoing
from penstock.storage.aws import Aws

LEASE = 60.0
DEADLINE_SECONDS = 180.0
SERVERS: tuple[Kind, ...] = ("moto", "fauxqs")


class Scene:
    def __init__(self, server: AwsServer) -> None:
        self.server = server
        self.raw = server.client("sqs")
        self._open: list[SqsBroker] = []

    def broker(self, *queues: QueueSettings, aws: Aws | None = None, **options: Any) -> SqsBroker:
        """Return a worker's broker; the queue q and its DLQ exist unless the test names others."""
        wanted = queues or (QueueSettings(name="q"),)
        self._open.append(
            SqsBroker(aws or self.server.aws, holder="w1", queues=wanted, **{"poll_seconds": 1, **options})
        )
        return self._open[-1]

    def url(self, queue: str) -> str:
        return str(self.raw.get_queue_url(QueueName=queue)["QueueUrl"])

    def arn(self, queue: str) -> str:
        request = {"QueueUrl": self.url(queue), "AttributeNames": ["QueueArn"]}
        return str(self.raw.get_queue_attributes(**request)["Attributes"]["QueueArn"])

    def close(self) -> None:
        for broker in self._open:
            broker.close()
        self.server.clean()


@pytest.fixture(params=SERVERS)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Open both servers, one after the other."""
    opened = Scene(request.getfixturevalue(request.param))
    yield opened
    opened.close()


def outgoing(*bodies: str, **fields: Any) -> list[Outgoing]:
    return [Outgoing(body=body.encode(), **fields) for body in bodies]


def numbered(count: int) -> list[Outgoing]:
    return outgoing(*map(str, range(count)))


def take(broker: SqsBroker, count: int = 10, *, queue: str = "q", lease: float = LEASE) -> list[Delivery]:
    return list(broker.receive(queue, messages_max=count, lease_seconds=lease))


def take_later(broker: SqsBroker, count: int = 10, *, queue: str = "q", seconds: float = 10.0) -> list[Delivery]:
    """Return the messages that arrive within the seconds."""
    return list(broker.receive(queue, messages_max=count, lease_seconds=LEASE, wait_seconds=seconds))


def take_all(broker: SqsBroker, count: int, *, queue: str = "q") -> list[Delivery]:
    """Return the queue's ``count`` messages, received in several calls.

    On a busy machine, the response of one of the calls can be lost to its timeout. Its messages come after their lease.
    """
    taken: dict[str, Delivery] = {}
    give_up = time.monotonic() + DEADLINE_SECONDS
    while len(taken) < count:
        assert time.monotonic() < give_up, f"{count - len(taken)} messages never came"
        received = broker.receive(queue, messages_max=50, lease_seconds=LEASE, wait_seconds=1.0)
        taken |= {delivery.message.id: delivery for delivery in received}
    assert len(taken) == count
    return list(taken.values())


def bodies(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.message.body.decode() for delivery in deliveries]
