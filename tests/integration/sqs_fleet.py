"""Fleets on a server that speaks SQS's protocol. Their queues are created first, as SQS requires."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.integration.fleet import APP, QUEUES, Fleet
from tests.services.aws_server import AwsServer, environment_for

from penstock.brokers.sqs import SqsBroker
from penstock.messaging.broker import QueueSettings

LEASE_SECONDS = 3  # the shortest possible
STOP_TIMEOUT_SECONDS = 12  # including four for draining, and five for a running poll


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
    """Open a fleet. ``way`` is the address by which its workers reach the server; the test reaches it directly."""
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
    """Open the test's own broker for the queues of a fleet, which are created if necessary."""
    return SqsBroker(server.aws, holder="test", queues=[QueueSettings(name=queue) for queue in QUEUES], poll_seconds=1)


def bodies(name: str, count: int, *, seconds: float = 0.0) -> Sequence[dict[str, object]]:
    return [{"id": f"{name}-{number}", "seconds": seconds} for number in range(count)]


def ends(fleet: Fleet) -> Counter[str]:
    """Return how often each message's work ended, by the id in its body."""
    return Counter(line.id for line in fleet.lines() if line.what == "end")


def acked(fleet: Fleet) -> Counter[str]:
    """Return how often each message was acked, by the workers' logs."""
    return Counter(event["message_id"] for worker in fleet.workers for event in worker.events("message.acked"))
