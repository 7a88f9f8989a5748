"""The services of an app, each of which opens one consumer of a worker: the protocol, and functions as services.

Object handlers are in `object_service`, pipelines in `pipelines.service`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from penstock.app.sources import StoreOutages
from penstock.config import Settings
from penstock.events import Bus
from penstock.handlers.breaker import OFF, BreakerPolicy, CircuitBreaker
from penstock.handlers.declaration import HandlerDeclaration
from penstock.handlers.function_handler import FunctionHandler, bookkeeping_threads
from penstock.handlers.keys import IdempotencyKeys, KeyBegun, KeyBusy, KeyDone
from penstock.handlers.outage import OutageWatch
from penstock.messaging.backoff import Random
from penstock.messaging.broker import Broker
from penstock.messaging.call import NO_RESOURCES
from penstock.messaging.clock import Clock
from penstock.messaging.steps import Probe
from penstock.messaging.threads import AsideThreads
from penstock.messaging.tracing import NO_TRACING, Tracing
from penstock.worker.batcher import EACH_ALONE, Limits
from penstock.worker.consumer import Consumer, Gates
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.ledger import Ledger
    from penstock.ledger.records import WorkOwner

NO_OWNERS: "Mapping[str, WorkOwner]" = MappingProxyType({})


def _no_spark() -> Any:
    raise RuntimeError("this worker was made without Spark")  # a defect: every context for pipelines has a session


# Another worker may finish its key or object long before its lease expires, so a busy message is retried sooner; but
# only if the broker does not count a release as an attempt.
BUSY_SECONDS_MAX = 5.0


def busy_seconds_max(broker: Broker) -> float | None:
    """Return the maximum delay before a busy key or object is retried; None: until the lease expires."""
    return BUSY_SECONDS_MAX if broker.capabilities.releases_uncounted else None


BATCH_BYTES_MAX = 1024**3  # of a batch's bodies; the effective limit is the number of messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """The dependencies that a worker gives to its services. Created once per worker, before its services are opened."""

    worker: str
    settings: Settings
    broker: Broker
    ledger: "Callable[[], Ledger]"  # opens it on first use
    bus: Bus
    clock: Clock
    random: Random
    probe: Probe
    stop: StopSignal
    outage: OutageWatch  # of the ledger
    stores: StoreOutages
    bookkeeping: AsideThreads = field(default_factory=bookkeeping_threads)  # shared by the async handlers
    spark: Callable[[], Any] = _no_spark  # session shared by the worker's pipelines, started on first use
    check_spark: Callable[[], None] = _no_spark  # raises `ConfigurationError` if Spark cannot start
    handled: frozenset[str] = frozenset()  # every queue of the app with a handler, served by this worker or not
    resources: Mapping[str, Any] = field(default_factory=lambda: NO_RESOURCES)
    tracing: Tracing = NO_TRACING
    owners: "Callable[[], Mapping[str, WorkOwner]]" = lambda: NO_OWNERS  # of keys, by handler; registers them first
    breaks: bool = True  # False: circuit breakers never open


@dataclass(frozen=True, slots=True)
class LazyKeys:
    """The idempotency keys of a handler, created on first use.

    The first use raises `TemporaryError` if the ledger is unavailable.
    """

    keys: Callable[[], IdempotencyKeys]

    def begin(self, key: str) -> KeyBegun | KeyBusy | KeyDone:
        return self.keys().begin(key)

    def forget(self) -> None:
        self.keys().forget()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedService:
    """An opened service: its consumer in the worker, and the function that closes it after the worker has ended."""

    consumer: Consumer
    close: Callable[[], None]


class Service(Protocol):
    """A handler or pipeline of an app, which serves one queue."""

    @property
    def name(self) -> str:
        """The handler's or pipeline's name; unique in an app."""
        ...

    @property
    def queue_name(self) -> str:
        """The queue that the service consumes."""
        ...

    def open(self, context: ServiceContext, *, weight: int) -> OpenedService:
        """Prepare to serve. Raises `UserError` for a problem that a person has to fix first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionService:
    """A declared message handler as a service."""

    declaration: HandlerDeclaration

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def queue_name(self) -> str:
        return self.declaration.queue.name

    def open(self, context: ServiceContext, *, weight: int) -> OpenedService:
        keys = None
        if self.declaration.idempotency is not None:
            keys = LazyKeys(lru_cache(partial(self._keys, context)))
        breaker = self._breaker(context)
        handler = FunctionHandler(
            self.declaration,
            bus=context.bus,
            clock=context.clock,
            random=context.random,
            keys=keys,
            bookkeeping=context.bookkeeping,
            outage=context.outage,
            breaker=breaker,
            resources=context.resources,
            tracing=context.tracing,
        )
        consumer = Consumer(
            queue=self.queue_name,
            handler=handler,
            gate=breaker if keys is None else Gates(breaker, context.outage.gate(self.queue_name)),
            weight=weight,
            limits=self._limits(),
            in_flight_max=self.declaration.concurrency,
        )
        return OpenedService(consumer=consumer, close=handler.close)

    def _keys(self, context: ServiceContext) -> IdempotencyKeys:
        from penstock.handlers.once import LedgerKeys

        return LedgerKeys(
            ledger=context.ledger(),
            handler=self.declaration.name,
            worker=context.worker,
            lease_seconds=context.settings.worker_lease,
            retention_seconds=context.settings.worker_idempotency_retention,
            owner=context.owners().get(self.name),
            busy_seconds_max=busy_seconds_max(context.broker),
        )

    def _breaker(self, context: ServiceContext) -> CircuitBreaker:
        given, settings = self.declaration.breaker_failures, context.settings
        policy = BreakerPolicy(
            failures=settings.worker_breaker_failures if given is None else given,
            pause_seconds_max=settings.worker_max_breaker_probe,
        )
        return CircuitBreaker(
            policy if context.breaks else OFF,
            queue=self.queue_name,
            handler=self.name,
            bus=context.bus,
            clock=context.clock,
            random=context.random,
            releases_uncounted=context.broker.capabilities.releases_uncounted,
        )

    def _limits(self) -> Limits:
        batch = self.declaration.batch
        if batch is None:
            return EACH_ALONE
        return Limits(messages_max=batch.messages_max, bytes_max=BATCH_BYTES_MAX, wait_seconds=batch.wait_seconds)


def needs_ledger(service: Service) -> bool:
    """Return True if the service uses the ledger: all but functions without an idempotency key."""
    return not isinstance(service, FunctionService) or service.declaration.idempotency is not None


def needs_objects(service: Service) -> bool:
    """Return True if the service processes objects, which have rows in the ledger."""
    return not isinstance(service, FunctionService)


def timeout_seconds_of(service: Service) -> float | None:
    """Return the timeout of a function on messages; None for objects and pipelines, and without a timeout."""
    return service.declaration.timeout_seconds if isinstance(service, FunctionService) else None


def concurrency_of(service: Service) -> int | None:
    """Return the concurrency of a function that takes one message at a time; None if it has no limit of its own."""
    if isinstance(service, FunctionService) and service.declaration.batch is None:
        return service.declaration.concurrency
    return None
