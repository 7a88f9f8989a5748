"""A user's function as a handler of the worker."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.errors import ConfigurationError
from penstock.events import Bus
from penstock.handlers.batch_call import AsyncBatchCall, PlainBatchCall
from penstock.handlers.breaker import OFF, CircuitBreaker
from penstock.handlers.call import AsyncCall, HandlerRuntime, PlainCall
from penstock.handlers.declaration import HandlerDeclaration
from penstock.handlers.keys import IdempotencyKeys
from penstock.handlers.outage import OutageWatch
from penstock.handlers.process_call import ChildCall, ChildProcesses
from penstock.messaging.backoff import Random
from penstock.messaging.call import NO_RESOURCES
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Execution, ExecutionPlace
from penstock.messaging.schema import BodyCodec
from penstock.messaging.threads import AsideThreads
from penstock.messaging.tracing import NO_TRACING, Tracing

FORGET_SECONDS = 600.0  # between two deletions of expired completions
BOOKKEEPING_THREADS_MAX = 8  # as many as a ledger has connections: more would only wait for one


def bookkeeping_threads() -> AsideThreads:
    """Return the threads in which async handlers of one worker use its ledger."""
    return AsideThreads("bookkeeping", threads_max=BOOKKEEPING_THREADS_MAX)


class FunctionHandler:
    """One declared function as a `penstock.messaging.handler.BatchHandler`. The worker's consumer owns it.

    The I/O thread begins its executions; `close` is called once the worker has ended.
    """

    def __init__(
        self,
        declaration: HandlerDeclaration,
        *,
        bus: Bus,
        clock: Clock,
        random: Random,
        keys: IdempotencyKeys | None = None,
        bookkeeping: AsideThreads | None = None,
        outage: OutageWatch | None = None,
        breaker: CircuitBreaker | None = None,
        resources: Mapping[str, Any] = NO_RESOURCES,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        """``bookkeeping``: the threads in which async handlers use the ledger; if None, this handler has its own."""
        if (declaration.idempotency is not None) != (keys is not None):
            raise ConfigurationError(f"The handler {declaration.name} is idempotent, and that needs a ledger.")
        self._declaration = declaration
        self._forget_at = clock.monotonic() + FORGET_SECONDS * random()  # written by the job's thread
        self._is_async = declaration.is_async  # computed once: the inspection is slow
        self._runtime = HandlerRuntime(
            declaration=declaration,
            codec=BodyCodec(declaration.queue),
            function=declaration.function,
            wants_context=declaration.wants_context,
            bus=bus,
            clock=clock,
            random=random,
            outage=outage or OutageWatch(bus=bus, clock=clock),
            breaker=breaker
            or CircuitBreaker(
                OFF, queue=declaration.queue.name, handler=declaration.name, bus=bus, clock=clock, random=random
            ),
            keys=keys,
            bookkeeping=None if keys is None else bookkeeping or bookkeeping_threads(),
            resources=resources,
            tracing=tracing,
        )
        self._children = (
            ChildProcesses(
                declaration.function,
                declaration.queue,
                wants_context=declaration.wants_context,
                continuing=tracing.continuing,
            )
            if declaration.isolation == "process"
            else None
        )

    @property
    def name(self) -> str:
        return self._declaration.name

    @property
    def place(self) -> ExecutionPlace:
        return ExecutionPlace.LOOP if self._is_async else ExecutionPlace.POOL

    @property
    def timeout_seconds(self) -> float | None:
        return self._declaration.timeout_seconds

    def weigh(self, delivery: Delivery) -> int:
        return len(delivery.message.body)

    def begin(self, deliveries: Sequence[Delivery]) -> Execution:
        self._runtime.breaker.begin(deliveries)
        if self._declaration.batch is not None:
            kind = AsyncBatchCall if self._is_async else PlainBatchCall
            return kind(deliveries, self._runtime)
        (delivery,) = deliveries
        if self._children is not None:
            return ChildCall(delivery, self._runtime, self._children)
        return AsyncCall(delivery, self._runtime) if self._is_async else PlainCall(delivery, self._runtime)

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        return {} if self._runtime.keys is None else {"completions": self.forget}

    def forget(self) -> None:
        """Delete expired completions, at most once every `FORGET_SECONDS`."""
        now = self._runtime.clock.monotonic()
        if self._runtime.keys is not None and now >= self._forget_at:
            self._runtime.keys.forget()
            self._forget_at = now + FORGET_SECONDS

    def close(self) -> None:
        """End the child processes of this handler."""
        if self._children is not None:
            self._children.close()
