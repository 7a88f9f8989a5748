"""Doubles for the worker's tests: clocks that the test moves, and a broker and a handler that the test scripts."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest

from penstock.brokers.shared import one_by_one
from penstock.errors import TemporaryError
from penstock.events import Bus, Event
from penstock.messaging.broker import BrokerCapabilities, QueueStats, ReceiveRequest, SettleFailure, TurnResult
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import ExecutionPlace, Extension, HeldClaim, Settlements
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.queued import QueuedMessage, QueuedPage, QueuedState
from penstock.messaging.settlement import Ack, Release, Settlement
from penstock.worker.batcher import Limits
from penstock.worker.consumer import Consumer
from penstock.worker.lifecycle import WorkerOutcome
from penstock.worker.liveness import Liveness
from penstock.worker.pools import EventLoop
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal
from penstock.worker.worker import Worker

DEADLINE_SECONDS = 60.0

Kind = TypeVar("Kind", bound=Event)


def eventually(condition: Callable[[], object], reason: str = "") -> None:
    """Wait until the condition holds, with a deadline."""
    ends_at = time.monotonic() + DEADLINE_SECONDS
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < ends_at, f"the condition never held: {reason}"
        tick.wait(0.002)


class FakeClock:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.time = 1_000.0
        self.waits: list[float] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        ends_at = self.time + seconds
        while self.time < ends_at and not event.is_set():
            event.wait(0.001)
        return event.is_set()


class SkippingClock(FakeClock):
    """A clock on which every wait returns at once and moves the time by its length. For code in one thread."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        if not event.is_set():
            self.time += seconds
        return event.is_set()


def make_delivery(number: int, attempt: int = 1, queue: str = "q") -> Delivery:
    message = Message(id=f"m{number}", body=b"{}", enqueued_at=0.0)
    return Delivery(message=message, queue=queue, receipt=f"r{number}-{attempt}", attempt=attempt, received_at=0.0)


class FakeListening:
    """A listening whose arrivals the test signals, whatever queues are wanted."""

    def __init__(self, queues: Sequence[str], on_arrival: Callable[[], None]) -> None:
        self.queues = tuple(queues)
        self.signal = on_arrival
        self.wanted: list[bool] = []
        self.wanted_of: Set[str] = frozenset()
        self.wanted_sets: list[Set[str]] = []
        self.closed = False

    def want(self, queues: Set[str]) -> None:
        self.wanted_of = queues
        self.wanted_sets.append(queues)
        self.wanted.append(bool(queues))

    def close(self) -> None:
        self.closed = True


class FakeBroker:
    """Queues in memory, "q" by default. Leases never expire; the test takes them away with `steal`."""

    capabilities = BrokerCapabilities(
        delay_seconds_max=900,
        release_delay_seconds_max=900,
        lease_seconds_max=43_200,
        body_bytes_max=1_000_000,
        receive_max=1_000,
        fenced=True,
        releases_uncounted=True,
        deduplicates=False,
        browsable=False,
        remembers_attempts=False,
        pausable=False,
    )

    def __init__(self, journal: list[str]) -> None:
        self.journal = journal
        self.lock = threading.RLock()
        self.queues: dict[str, list[tuple[int, int]]] = {"q": []}  # number, attempt
        self.leased: dict[str, Delivery] = {}
        self.settled: list[tuple[str, Settlement]] = []  # message id
        self.receive_sizes: list[int] = []
        self.polled_queues: list[str] = []
        self.waited: set[float] = set()
        self.unreachable: set[str] = set()  # queues that cannot be reached
        self.extensions: list[Sequence[str]] = []
        self.receive_faults: list[Exception] = []
        self.settle_faults: list[Exception] = []
        self.extend_faults: list[Exception] = []
        self.refuse: set[str] = set()  # message ids that settle refuses, not lost
        self.receive_gate: threading.Event | None = None  # a receive waits for it first
        self.extend_gate: threading.Event | None = None
        self.hanging: dict[str, threading.Event] = {}  # by queue: an extension waits for it
        self.receiving = threading.Event()
        self.extending = threading.Event()
        self.turns: list[tuple[int, list[str]]] = []  # number of settlements, and the queues polled
        self.listenings: list[FakeListening] = []
        self.next_in_seconds: float | None = None  # returned by turns without deliveries
        self.reports_drained = False  # by turns with deliveries

    @property
    def waiting(self) -> list[tuple[int, int]]:
        return self.queues["q"]

    def put(self, *numbers: int, queue: str = "q") -> None:
        with self.lock:
            self.queues.setdefault(queue, []).extend((number, 1) for number in numbers)

    def steal(self, message_id: str) -> None:
        with self.lock:
            for receipt, delivery in list(self.leased.items()):
                if delivery.message.id == message_id:
                    del self.leased[receipt]

    def send(self, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        raise NotImplementedError

    def receive(
        self, queue: str, *, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[Delivery]:
        self.receive_sizes.append(messages_max)
        self.polled_queues.append(queue)
        self.waited.add(wait_seconds)
        self.receiving.set()
        if self.receive_gate is not None:
            assert self.receive_gate.wait(DEADLINE_SECONDS)
        with self.lock:
            if self.receive_faults:
                raise self.receive_faults.pop(0)
            if queue in self.unreachable:
                raise TemporaryError(f"{queue} is unreachable")
            waiting = self.queues.setdefault(queue, [])
            taken, waiting[:] = waiting[:messages_max], waiting[messages_max:]
            deliveries = [make_delivery(number, attempt, queue) for number, attempt in taken]
            self.leased.update((delivery.receipt, delivery) for delivery in deliveries)
            return deliveries

    def extend(self, deliveries: Sequence[Delivery], *, lease_seconds: float) -> Sequence[Delivery]:
        self.extending.set()
        if (hanging := self.hanging.get(deliveries[0].queue)) is not None:
            assert hanging.wait(DEADLINE_SECONDS)
        self.extensions.append([delivery.message.id for delivery in deliveries])
        if self.extend_gate is not None:
            assert self.extend_gate.wait(DEADLINE_SECONDS)
        with self.lock:
            self.journal.append("extend")
            if self.extend_faults:
                raise self.extend_faults.pop(0)
            return [delivery for delivery in deliveries if delivery.receipt not in self.leased]

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> Sequence[SettleFailure]:
        with self.lock:
            self.journal.append(f"settle {len(settlements)}")
            if self.settle_faults:
                raise self.settle_faults.pop(0)
            return [failure for pair in settlements if (failure := self._settle(*pair)) is not None]

    def _settle(self, delivery: Delivery, settlement: Settlement) -> SettleFailure | None:
        if delivery.receipt not in self.leased:
            return SettleFailure(delivery=delivery, reason="the lease expired", lost=True)
        if delivery.message.id in self.refuse:
            return SettleFailure(delivery=delivery, reason="not now", lost=False)
        del self.leased[delivery.receipt]
        self.settled.append((delivery.message.id, settlement))
        return None

    def turn(
        self,
        settlements: Sequence[tuple[Delivery, Settlement]],
        requests: Sequence[ReceiveRequest],
        *,
        lease_seconds: float,
        wait_seconds: float = 0.0,
    ) -> TurnResult:
        self.turns.append((len(settlements), [request.queue for request in requests]))
        turn = one_by_one(self, settlements, requests, lease_seconds=lease_seconds, wait_seconds=wait_seconds)
        if turn.deliveries:
            return replace(turn, drained=self.reports_drained)
        return replace(turn, next_in_seconds=self.next_in_seconds)

    def listen(self, queues: Sequence[str], on_arrival: Callable[[], None]) -> FakeListening:
        self.listenings.append(FakeListening(queues, on_arrival))
        return self.listenings[-1]

    def stats(self, queue: str) -> QueueStats:
        raise NotImplementedError

    def is_empty(self, queue: str) -> bool:
        raise NotImplementedError

    def browse(self, queue: str, *, messages_max: int, after_id: str | None = None) -> Sequence[Message]:
        raise NotImplementedError

    def peek(self, queue: str, state: QueuedState, *, messages_max: int, after: str | None = None) -> QueuedPage:
        raise NotImplementedError

    def find(self, queue: str, id: str, *, near: str | None = None) -> QueuedMessage | None:
        raise NotImplementedError

    def queue_names(self) -> Sequence[str]:
        raise NotImplementedError

    def dead_letter_queue(self, queue: str) -> str:
        raise NotImplementedError

    def retention_seconds(self, queue: str) -> float | None:
        raise NotImplementedError

    def discard(self, queue: str, ids: Sequence[str]) -> int:
        raise NotImplementedError

    def purge(self, queue: str) -> int:
        raise NotImplementedError

    def pause(self, queue: str) -> None:
        raise NotImplementedError

    def resume(self, queue: str) -> None:
        raise NotImplementedError

    def now(self) -> float:
        return 0.0

    def paused(self, queue: str) -> bool:
        return False

    def close(self) -> None:
        pass

    def acked(self) -> list[str]:
        with self.lock:
            return [message_id for message_id, settlement in self.settled if isinstance(settlement, Ack)]

    def released(self) -> dict[str, Release]:
        with self.lock:
            return {message_id: ending for message_id, ending in self.settled if isinstance(ending, Release)}


class ToyExecution:
    """An execution that acks everything once the test lets it go on (or once it is interrupted, if ``obedient``)."""

    def __init__(self, handler: "ToyHandler", deliveries: Sequence[Delivery]) -> None:
        self.handler = handler
        self.deliveries = deliveries
        self.started = threading.Event()
        self.interrupted = threading.Event()
        self.go_on = threading.Event()
        self.held = True
        self.begun_at = handler.clock.monotonic()

    def run(self) -> Settlements | Coroutine[Any, Any, Settlements]:
        self.started.set()
        if self.handler.blocking:
            assert self.go_on.wait(DEADLINE_SECONDS)
        return self.handler.answer(self.deliveries)

    def let_go(self) -> None:
        self.go_on.set()

    def claim(self) -> HeldClaim | None:
        return HeldClaim(extender=self.handler.extender, id=f"claim-{id(self)}") if self.handler.claims else None

    def loses(self, claim: HeldClaim) -> bool:
        return claim.id == f"claim-{id(self)}"

    def drain(self) -> None:
        self.handler.journal.append("drain")

    def left_seconds(self, timeout_seconds: float) -> float:
        if self.handler.waits_for_ledger:
            return timeout_seconds
        return timeout_seconds - (self.handler.clock.monotonic() - self.begun_at)

    def time_out(self) -> Settlements:
        self.handler.journal.append("time out")
        if self.handler.time_out_fault is not None:
            raise self.handler.time_out_fault
        return {delivery.receipt: Release(delay_seconds=5.0) for delivery in self.deliveries}

    def release(self) -> None:
        self.handler.journal.append("release")
        if self.handler.release_fault is not None:
            raise self.handler.release_fault

    def interrupt(self) -> None:
        self.handler.journal.append("interrupt")
        self.interrupted.set()
        if self.handler.obedient:
            self.go_on.set()


class LoopExecution(ToyExecution):
    """A `ToyExecution` as a coroutine. An interruption cancels its task."""

    def run(self) -> Coroutine[Any, Any, Settlements]:
        return self._work()

    async def _work(self) -> Settlements:
        self.task, self.loop = asyncio.current_task(), asyncio.get_running_loop()
        self.gate = asyncio.Event()
        self.started.set()
        while self.handler.blocking and not self.go_on.is_set():
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.handler.journal.append("cancelled")
                if self.handler.obedient:
                    raise
        return self.handler.answer(self.deliveries)

    def let_go(self) -> None:
        self.go_on.set()
        self.loop.call_soon_threadsafe(self.gate.set)

    def interrupt(self) -> None:
        self.handler.journal.append("interrupt")
        self.interrupted.set()
        assert self.task is not None
        self.loop.call_soon_threadsafe(self.task.cancel)


def ack_all(deliveries: Sequence[Delivery]) -> Mapping[str, Settlement]:
    return {delivery.receipt: Ack() for delivery in deliveries}


class ToyExtender:
    """Extends the claims of a toy handler's executions; ``gate`` is awaited first."""

    def __init__(self, handler: "ToyHandler") -> None:
        self.handler = handler
        self.gate: threading.Event | None = None
        self.extending = threading.Event()

    def extend(self, ids: Sequence[str], *, lease_seconds: float, response_seconds: float) -> Extension:
        self.handler.journal.append("extend claim")
        self.extending.set()
        if self.gate is not None:
            assert self.gate.wait(DEADLINE_SECONDS)
        if self.handler.claim_faults:
            raise self.handler.claim_faults.pop(0)
        lost = {f"claim-{id(one)}" for one in self.handler.executions if not one.held}
        return Extension(lost=lost & set(ids))


@dataclass
class ToyHandler:
    journal: list[str]
    name: str = "toy"
    place: ExecutionPlace = ExecutionPlace.THREAD
    timeout_seconds: float | None = None
    blocking: bool = False
    obedient: bool = True
    answer: Callable[[Sequence[Delivery]], Mapping[str, Settlement]] = ack_all
    weight: int = 1
    executions: list[ToyExecution] = field(default_factory=list)
    upkeeps: int = 0
    upkeep_faults: list[Exception] = field(default_factory=list)
    begin_faults: list[Exception] = field(default_factory=list)
    claim_faults: list[Exception] = field(default_factory=list)
    release_fault: Exception | None = None
    time_out_fault: Exception | None = None
    claims: bool = True  # True if its executions hold a claim
    waits_for_ledger: bool = False  # True: no user code has begun
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        self.extender = ToyExtender(self)

    def weigh(self, delivery: Delivery) -> int:
        return self.weight

    def begin(self, deliveries: Sequence[Delivery]) -> ToyExecution:
        if self.begin_faults:
            raise self.begin_faults.pop(0)
        execution = (LoopExecution if self.place is ExecutionPlace.LOOP else ToyExecution)(self, deliveries)
        self.executions.append(execution)
        return execution

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        return {"upkeep": lambda: self.upkeep()}

    def upkeep(self) -> None:
        self.upkeeps += 1
        if self.upkeep_faults:
            raise self.upkeep_faults.pop(0)


QUICK = {
    "idle_floor_seconds": 0.001,
    "idle_ceiling_seconds": 0.005,
    "start_jitter_seconds": 0.0,
    "retry_base_seconds": 0.001,
    "retry_cap_seconds": 0.002,
    "backoff_base_seconds": 0.001,
    "backoff_cap_seconds": 0.002,
}


class Life:
    """A worker in a thread, its doubles, and the events that it emitted."""

    def __init__(self) -> None:
        self.journal: list[str] = []
        self.events: list[Event] = []
        self.listeners: tuple[Callable[[Event], None], ...] = (self.events.append,)
        self.broker = FakeBroker(self.journal)
        self.handler = ToyHandler(self.journal)
        self.stop = StopSignal()
        self.clock: Clock = SystemClock()
        self.steps: list[str] = []
        self.until: Callable[[], bool] | None = None
        self.consumers: Sequence[Consumer] = ()
        self.event_loop: EventLoop | None = None
        self.liveness: Liveness | None = None
        self.conclusion: WorkerOutcome | None = None
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def worker(self, **settings: object) -> Worker:
        """Return a worker with the test's consumers, or with one for the toy handler.

        The limits of the toy handler's consumer are among the settings.
        """
        limits = Limits(
            messages_max=settings.pop("batch_messages_max", 5_000),  # type: ignore[arg-type] # they check themselves
            bytes_max=2**40,
            wait_seconds=settings.pop("batch_wait_seconds", 30.0),  # type: ignore[arg-type]
        )
        in_flight_max: int | None = settings.pop("in_flight_max", None)  # type: ignore[assignment]
        fetch_max: int = settings.pop("fetch_max", 500)  # type: ignore[assignment]
        consumer = Consumer(
            queue="q", handler=self.handler, limits=limits, in_flight_max=in_flight_max, fetch_max=fetch_max
        )
        settings.setdefault("fetch_max", fetch_max)
        return Worker(
            broker=self.broker,
            consumers=self.consumers or [consumer],
            settings=WorkerSettings(**{**QUICK, **settings}),  # type: ignore[arg-type] # the settings check themselves
            clock=self.clock,
            bus=Bus(*self.listeners),
            probe=self.steps.append,
            random=lambda: 0.5,
            liveness=self.liveness,
            event_loop=self.event_loop,
        )

    def start(self, **settings: object) -> "Life":
        worker = self.worker(**settings)

        def live() -> None:
            try:
                self.conclusion = worker.run(self.stop, self.until)
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=live, daemon=True)
        self._thread.start()
        return self

    def end(self) -> str | None:
        assert self._thread is not None
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), "the worker did not end"
        return None if self.conclusion is None else self.conclusion.outcome

    def running(self, number: int = 0, handler: "ToyHandler | None" = None) -> ToyExecution:
        executions = (handler or self.handler).executions
        eventually(lambda: len(executions) > number, "an execution begins")
        execution = executions[number]
        assert execution.started.wait(DEADLINE_SECONDS)
        return execution

    def serve(self, place: ExecutionPlace, **numbers: Any) -> ToyHandler:
        """Add a consumer with its own handler, one message a batch. Its queue has the handler's name."""
        handler = ToyHandler(self.journal, place=place, **numbers.pop("handler", {}))
        handler.name = numbers.setdefault("queue", handler.name)
        self.consumers = [*self.consumers, Consumer(handler=handler, **numbers)]
        return handler

    def handlers(self) -> list[ToyHandler]:
        return [consumer.handler for consumer in self.consumers if isinstance(consumer.handler, ToyHandler)]

    def emitted(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in list(self.events) if type(event) is kind]


@pytest.fixture
def life() -> Life:
    return Life()


@pytest.fixture
def delivery() -> Callable[..., Delivery]:
    return make_delivery


@pytest.fixture(name="eventually")
def _eventually() -> Callable[..., None]:
    return eventually


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def skipping_clock() -> SkippingClock:
    return SkippingClock()


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker([])
