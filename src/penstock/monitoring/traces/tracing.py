"""The OpenTelemetry implementation of `penstock.messaging.tracing.Tracing`."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import trace
from opentelemetry.trace import SpanKind, TracerProvider

from penstock.events import Listener
from penstock.messaging.broker import Broker
from penstock.messaging.handler import BatchHandler
from penstock.messaging.tracing import Carrier, Continuing, Wrapped
from penstock.monitoring.traces.broker import TracedBroker
from penstock.monitoring.traces.context import SCOPE, note_error, original_message_of, ours, said
from penstock.monitoring.traces.handler import TracedHandler
from penstock.monitoring.traces.listener import TraceListener
from penstock.monitoring.traces.provider import ChildTracing, TelemetryResource, begin_flush, provider_for


def otel_tracing(service: TelemetryResource, *, version: str) -> "OtelTracing":
    """Return the tracing of this process; ``version`` is Penstock's own."""
    return OtelTracing(provider_for(service), version=version, continuing=ChildTracing(service=service))


class OtelTracing:
    """Records spans with a provider, which decides where they go. Thread-safe."""

    def __init__(self, provider: TracerProvider, *, version: str, continuing: Continuing | None = None) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(SCOPE, version)
        self._continuing = continuing

    @property
    def listener(self) -> Listener:
        """Return the bus listener that adds events to spans."""
        return TraceListener(self._tracer)

    @property
    def continuing(self) -> Continuing | None:
        return self._continuing

    def broker(self, broker: Broker) -> Broker:
        return broker if isinstance(broker, Wrapped) else TracedBroker(broker, self._tracer)

    def handler(self, handler: BatchHandler, *, queue: str, system: str) -> BatchHandler:
        return TracedHandler(handler, self._tracer, queue=queue, system=system)

    def stage(self, name: str, **attributes: str | int) -> AbstractContextManager[None]:
        return self._stage(name, attributes)

    def carrier(self) -> Carrier:
        return original_message_of()

    def begin_flush(self) -> Callable[[float], None]:
        """Start sending the ended spans. Return a function that waits for it, at most the given seconds."""
        return begin_flush(self._provider)

    @contextmanager
    def _stage(self, name: str, attributes: dict[str, str | int]) -> Iterator[None]:
        named = {ours(key): said(value) if isinstance(value, str) else value for key, value in attributes.items()}
        with self._tracer.start_as_current_span(
            name, kind=SpanKind.INTERNAL, attributes=named, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except BaseException as error:
                note_error(span, type(error).__name__, str(error))
                raise


def trace_ids() -> tuple[str, str] | None:
    """Return the ids of the calling thread's trace and span, in the format for logs; None if it has none."""
    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return None
    return trace.format_trace_id(found.trace_id), trace.format_span_id(found.span_id)
