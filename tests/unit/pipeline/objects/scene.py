"""A queue, a ledger and a folder, and handlers without a worker's threads: for tests of object handlers."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.events import Bus, Event
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectRow, ObjectState
from penstock.messaging.broker import Broker
from penstock.messaging.death import Death, death_of
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Settlements
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Settlement
from penstock.objects.local_store import LocalStore
from penstock.objects.notification import announce, parse
from penstock.objects.reference import ObjectRef
from penstock.objects.store import ObjectStore
from penstock.pipeline.batch import BatchExecution
from penstock.pipeline.objects.declaration import ObjectHandlerDeclaration
from penstock.pipeline.objects.handler import ObjectHandler, ObjectHandlerRuntime
from penstock.testing import FakeClock

HANDLER, QUEUE, LEASE_SECONDS = "thumbnails", "landing", 60.0

SomeEvent = TypeVar("SomeEvent", bound=Event)


class Scene:
    """The resources that workers share, and the events that they emitted. Time stands still until the test moves it."""

    def __init__(self, folder: Path, *, buckets_allowed: frozenset[str] | None = None) -> None:
        self.folder = folder / "in"
        self.folder.mkdir()
        self.clock = FakeClock()
        self.ledger = Ledger.open(folder / "ledger.db", now=self.clock.now)
        self.broker = SqliteBroker(folder / "queue.db", holder="w1", clock=self.clock)
        self.store: ObjectStore = LocalStore(self.folder)
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.events: list[Event] = []
        self._parse = partial(parse, buckets_allowed=buckets_allowed)

    def close(self) -> None:
        self.broker.close()
        self.ledger.close()

    def handler(self, function: Callable[..., Any], **declared: Any) -> ObjectHandler:
        declaration = ObjectHandlerDeclaration(name=HANDLER, function=function, **declared)
        tools = ObjectHandlerRuntime(
            ledger=self.ledger,
            store=self.store,
            parse=self._parse,
            worker="w1",
            lease_seconds=LEASE_SECONDS,
            bus=Bus(self.events.append),
            scratch=self.scratch,
            random=lambda: 0.5,
        )
        return ObjectHandler(declaration, tools)

    # Objects and messages

    def put(self, name: str | bytes, content: bytes = b"x\n") -> ObjectRef:
        path = self.folder / (name if isinstance(name, str) else name.decode("utf-8", "surrogateescape"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return LocalStore(self.folder).describe(path)

    def announce(self, *refs: ObjectRef) -> None:
        for ref in refs:
            self.send(announce(ref))

    def send(self, body: bytes, **attributes: str) -> str:
        return self.broker.send(QUEUE, [Outgoing(body=body, attributes=attributes)])[0]

    # Work

    def receive(self, broker: Broker | None = None) -> list[Delivery]:
        return list((broker or self.broker).receive(QUEUE, messages_max=10, lease_seconds=LEASE_SECONDS))

    def begin(self, handler: ObjectHandler) -> tuple[Delivery, BatchExecution]:
        """Receive the one visible message, and begin its execution."""
        [delivery] = self.receive()
        return delivery, handler.begin([delivery])

    def settle(self, answers: Sequence[tuple[Delivery, Settlements]]) -> list[Settlement]:
        pairs = [(delivery, answer[delivery.receipt]) for delivery, answer in answers]
        assert self.broker.settle(pairs) == []
        return [settlement for _, settlement in pairs]

    def serve(self, handler: ObjectHandler) -> list[Settlement]:
        """Process every visible message, one after another, and settle it."""
        settlements: list[Settlement] = []
        for delivery in self.receive():
            answer = run(handler.begin([delivery]))
            settlements += self.settle([(delivery, answer)])
        return settlements

    def serve_to_the_end(self, handler: ObjectHandler, *, rounds_max: int = 20) -> list[Settlement]:
        """Serve until the queue is empty, advancing the clock past every delay."""
        settlements: list[Settlement] = []
        for _ in range(rounds_max):
            settlements += self.serve(handler)
            stats = self.broker.stats(QUEUE)
            if stats.visible + stats.delayed + stats.in_flight == 0:
                return settlements
            self.clock.advance(400.0)
        raise AssertionError(f"the queue is not empty after {rounds_max} rounds: {settlements}")

    # Results

    def row(self, ref: ObjectRef) -> ObjectRow:
        return next(row for row in self.ledger.objects(HANDLER) if row.object_id == ref.object_id)

    def state(self, ref: ObjectRef) -> ObjectState:
        return self.ledger.states(HANDLER, [ref.object_id])[ref.object_id]

    def dead(self) -> list[Death]:
        messages = self.broker.browse(f"{QUEUE}-dlq", messages_max=100)
        return [death for message in messages if (death := death_of(message.attributes)) is not None]

    def emitted(self, kind: type[SomeEvent]) -> list[SomeEvent]:
        return [event for event in self.events if isinstance(event, kind)]


def run(execution: BatchExecution) -> Settlements:
    answer = execution.run()
    assert isinstance(answer, Mapping)
    return answer
