"""A handler wrapper that records executions as spans, current while the function runs, so that its spans are children.

A span begins with the run, as a root that links to the senders, and ends once: with the run's result, or when the
execution is timed out, released or lost from outside. Work that a function does after that belongs to no span.
"""

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Tracer
from opentelemetry.util.types import AttributeValue

from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import BatchHandler, Execution, ExecutionPlace, HeldClaim, Settlements
from penstock.messaging.settlement import operation_of
from penstock.monitoring.traces.context import (
    ATTEMPT,
    HANDLER,
    OUTCOME,
    PROCESS,
    links_and_names,
    note_error,
    operation,
    ours,
)


class TracedHandler:
    """A `penstock.messaging.handler.BatchHandler` around another one."""

    def __init__(self, inner: BatchHandler, tracer: Tracer, *, queue: str, system: str) -> None:
        self._inner = inner
        self._tracer = tracer
        self._name = f"{PROCESS} {queue}"
        self._attributes = {**operation(PROCESS, system=system, queue=queue), HANDLER: inner.name}

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def place(self) -> ExecutionPlace:
        return self._inner.place

    @property
    def timeout_seconds(self) -> float | None:
        return self._inner.timeout_seconds

    def weigh(self, delivery: Delivery) -> int:
        return self._inner.weigh(delivery)

    def begin(self, deliveries: Sequence[Delivery]) -> Execution:
        return TracedExecution(self._inner.begin(deliveries), deliveries, self)

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        return self._inner.jobs()

    def span_of(self, deliveries: Sequence[Delivery]) -> Span:
        """Start the span of an execution."""
        links, described = links_and_names(deliveries)
        attributes: dict[str, AttributeValue] = {**self._attributes, **described}
        if len(deliveries) == 1:
            attributes[ATTEMPT] = deliveries[0].attempt
        return self._tracer.start_span(
            self._name, context=Context(), kind=SpanKind.CONSUMER, attributes=attributes, links=links
        )


class TracedExecution:
    """A `penstock.messaging.handler.Execution` around another one."""

    def __init__(self, inner: Execution, deliveries: Sequence[Delivery], handler: TracedHandler) -> None:
        self._inner = inner
        self._deliveries = deliveries
        self._handler = handler
        self._lock = threading.Lock()
        self._span: Span | None = None  # guarded by _lock; None before the run and after the end

    def run(self) -> Settlements | Coroutine[Any, Any, Settlements]:
        span = self._handler.span_of(self._deliveries)
        with self._lock:
            self._span = span
        try:
            with _within(span):
                settlements = self._inner.run()
        except BaseException as error:
            self._failed(error)
            raise
        if inspect.iscoroutine(settlements):
            return self._awaited(settlements, span)
        self._record_settlements(settlements)  # type: ignore[arg-type] # the protocol knows no other coroutines
        return settlements

    def claim(self) -> HeldClaim | None:
        return self._inner.claim()

    def loses(self, claim: HeldClaim) -> bool:
        return self._inner.loses(claim)

    def drain(self) -> None:
        self._inner.drain()

    def left_seconds(self, timeout_seconds: float) -> float:
        return self._inner.left_seconds(timeout_seconds)

    def time_out(self) -> Settlements:
        with _within(self._span):  # so that failure events emitted by the call are added to this span
            settlements = self._inner.time_out()
        self._record_settlements(settlements)
        return settlements

    def release(self) -> None:
        try:
            self._inner.release()
        finally:
            self._end("interrupted")

    def interrupt(self) -> None:
        try:
            self._inner.interrupt()
        finally:
            self._end("lost")  # no effect if it has ended, by a timeout or a release

    async def _awaited(self, coroutine: Coroutine[Any, Any, Settlements], span: Span) -> Settlements:
        try:
            with _within(span):
                settlements = await coroutine
        except BaseException as error:
            self._failed(error)
            raise
        self._record_settlements(settlements)
        return settlements

    def _record_settlements(self, settlements: Settlements) -> None:
        """End the span with how the deliveries are to be settled."""
        count = Counter(operation_of(settlement) for settlement in settlements.values())
        several = {ours(f"settled.{name}"): number for name, number in count.items()} if len(settlements) > 1 else {}
        self._end(next(iter(count)) if len(count) == 1 else "mixed" if count else None, several)

    def _failed(self, error: BaseException) -> None:
        span = self._span
        if span is not None:
            note_error(span, type(error).__name__, str(error))
        self._end(None)

    def _end(self, outcome: str | None, attributes: dict[str, int] | None = None) -> None:
        with self._lock:
            span, self._span = self._span, None
        if span is None:
            return
        if outcome is not None:
            span.set_attribute(OUTCOME, outcome)
        span.set_attributes(dict(attributes or {}))
        span.end()


@contextmanager
def _within(span: Span | None) -> Iterator[None]:
    """Make the span current until the block ends, without ending it."""
    if span is None:
        yield
        return
    token = contexts.attach(trace.set_span_in_context(span, Context()))
    try:
        yield
    finally:
        contexts.detach(token)
