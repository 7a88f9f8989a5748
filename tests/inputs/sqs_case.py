"""A bucket whose notifications go to a queue on SQS, and an app with an object handler."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from tests.services.aws_server import REGION, AwsServer
from tests.services.s3_scene import Announced, Way, as_eventbridge_documents_it

from penstock import App
from penstock.app.serving import serve
from penstock.brokers.sqs import SqsBroker
from penstock.config import Settings
from penstock.events import DeliverySettled, Event
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectState
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Settlement
from penstock.pipeline.objects.stream import IncomingObject
from penstock.worker.shutdown import StopSignal

HANDLER = "each"
LEASE_SECONDS = 5.0  # short, because tests wait for its end, but long enough for a slow machine
PATIENCE_SECONDS = 60.0

EventT = TypeVar("EventT", bound=Event)
Function = Callable[[IncomingObject], None]


class Case:
    """One bucket and its queue, at a real server. ``taken`` has the handler's objects, ``events`` all events."""

    def __init__(self, folder: Path, server: AwsServer, way: Way = "sqs", *, versioned: bool = False) -> None:
        self.folder = folder
        self.server = server
        self.announced = Announced(server, way, versioned=versioned)
        self.queue = self.announced.queue_arn.rpartition(":")[2]
        self.announced.sqs.create_queue(QueueName=f"{self.queue}-dlq")
        self.broker = self.open_broker("test")
        self.taken: list[tuple[str, bytes]] = []  # this and the next: appended to by the workers' threads
        self.events: list[Event] = []

    def close(self) -> None:
        self.broker.close()

    def open_broker(self, holder: str) -> SqsBroker:
        return SqsBroker(self.server.aws, holder=holder, poll_seconds=1)

    # --- messages

    def put(self, key: str, content: bytes = b"x") -> None:
        """Put an object and announce it as AWS does: moto's EventBridge names the ETag differently and reports tags."""
        self.announced.put(key, content)
        if self.announced.way == "eventbridge":
            self.send(*[as_eventbridge_documents_it(body) for body in self.arrived(2) if b"Object Created" in body])

    def arrived(self, count: int = 1) -> list[bytes]:
        """Take the next announcements out of the queue, without S3's test event."""
        bodies: list[bytes] = []
        while len(bodies) < count:
            bodies += [body for body in self.announced.arrived() if b"s3:TestEvent" not in body]
        return bodies

    def send(self, *bodies: bytes) -> None:
        self.broker.send(self.queue, [Outgoing(body=body) for body in bodies])

    # --- work

    @contextmanager
    def app(
        self,
        function: Function | None = None,
        *,
        s3_url: str | None = None,
        ledger: object = None,
        holder: str = "worker",
        **options: object,
    ) -> Iterator[App]:
        """Open the app of one worker. ``s3_url`` is the address that it reads from, by default the server's."""
        settings = Settings(
            aws_region=REGION,
            aws_endpoint_url=s3_url or self.server.url,
            worker_lease=LEASE_SECONDS,
            worker_concurrency=8,
        )
        address = f"sqlite:///{self.folder / 'ledger.db'}"
        with App(broker=self.open_broker(holder), ledger=ledger or address, settings=settings) as app:
            declare = app.object_handler(
                self.queue,
                name=HANDLER,
                source=f"s3://{self.announced.bucket}",
                **{"retry_base": 0.001, "max_retry_wait": 0.001, **options},  # type: ignore[arg-type] # as the caller gave
            )
            declare(function or self.take)
            yield app

    def take(self, obj: IncomingObject) -> None:
        self.taken.append((obj.key, obj.read()))

    def work(self, function: Function | None = None, **options: object) -> None:
        """Run one worker until the queue is empty."""
        with self.app(function, **options) as app:  # type: ignore[arg-type] # as the caller gave them
            self.serve(app)

    def serve(self, app: App, *, until: Callable[[], bool] | None = None) -> None:
        """Serve until the queue is empty or a condition is true, at most `PATIENCE_SECONDS`."""
        stop = StopSignal()
        late = threading.Timer(PATIENCE_SECONDS, stop.request)
        late.start()
        try:
            serve(app, stop=stop, until=until or self.is_empty, listeners=[self.events.append], resident=False)
        finally:
            late.cancel()
        assert not stop.requested, f"it did not end; {self.events[-5:]}"

    def serve_together(self, *apps: App) -> None:
        """Serve several apps at the same time."""
        with ThreadPoolExecutor(len(apps)) as pool:
            for served in [pool.submit(self.serve, app) for app in apps]:
                served.result()

    # --- results

    def is_empty(self) -> bool:
        stats = self.broker.stats(self.queue)
        return not (stats.visible or stats.in_flight or stats.delayed)

    def dead(self) -> int:
        return self.broker.stats(f"{self.queue}-dlq").visible

    def events_of(self, kind: type[EventT]) -> list[EventT]:
        return [event for event in self.events if isinstance(event, kind)]

    def settled(self) -> list[Settlement]:
        return [event.settlement for event in self.events_of(DeliverySettled)]

    def states(self) -> list[ObjectState]:
        with closing(Ledger.open(self.folder / "ledger.db")) as ledger:
            return sorted(row.state for row in ledger.objects(HANDLER))
