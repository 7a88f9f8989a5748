"""Fleets on a server that speaks SQS's dialect. Their queues are created first, as SQS requires."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.integration.fleet import APP, QUEUES, Fleet
from tests.services.aws_server import AwsServer, environment_for

from penstock.brokers.sqs import SqsBroker
from penstock.messaging.broker import QueueSettings

LEASE_SECONDS = 3  # the shortest there is
STOP_TIMEOUT_SECONDS = 12  # of which four are for draining, and five for a poll under way


def sqs_fleet(
    folder: Path,
    server: AwsServer,
    *,
    way: str | None = None,
    app: str = APP,
    worker_lease: float = LEASE_SECONDS,
    worker_stop_timeout: float = STOP_TIMEOUT_SECONDS,
    **settings: object,
) -> Fleet:
    """``way``: the address by which its workers come to the server; the test's own way is the straight one."""
    folder.mkdir(exist_ok=True)
    return Fleet(
        folder,
        broker="sqs://",
        aside=straight(server),
        added=environment_for(way or server.url),
        app=app,
        worker_lease=worker_lease,
        worker_stop_timeout=worker_stop_timeout,
        **settings,
    )


def straight(server: AwsServer) -> SqsBroker:
    """The test's own way to the queues of a fleet, which are made if need be."""
    return SqsBroker(server.aws, holder="test", queues=[QueueSettings(name=queue) for queue in QUEUES], poll_seconds=1)


def bodies(name: str, count: int, *, seconds: float = 0.0) -> Sequence[dict[str, object]]:
    return [{"id": f"{name}-{number}", "seconds": seconds} for number in range(count)]


def ends(fleet: Fleet) -> Counter[str]:
    """How often each message's work came to its end, by the id in its body."""
    return Counter(line.id for line in fleet.lines() if line.what == "end")


def acked(fleet: Fleet) -> Counter[str]:
    """How often each message was acked, by what the workers logged."""
    return Counter(event["message_id"] for worker in fleet.workers for event in worker.events("message.acked"))
