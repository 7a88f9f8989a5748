"""The OpenTelemetry implementation of `penstock.messaging.tracing.Tracing`."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Tracer, TracerProvider
from opentelemetry.util.types import AttributeValue

from penstock.events import (
    BatchPublished,
    Event,
    Listener,
    MessageFailed,
    MessageInvalid,
    ObjectFailed,
    SelectiveListener,
)
from penstock.messaging.broker import Broker
from penstock.messaging.handler import BatchHandler
from penstock.messaging.tracing import Carrier, Continuing, Wrapped
from penstock.monitoring.errors.occurrences import Occurrence, occurrence_of
from penstock.monitoring.logs.lines import block
from penstock.monitoring.traces.broker import TracedBroker
from penstock.monitoring.traces.context import (
    ERROR_TYPE,
    EXCEPTION_MESSAGE,
    EXCEPTION_STACKTRACE,
    EXCEPTION_TYPE,
    MESSAGE_ID,
    OBJECT,
    PIPELINE,
    SCOPE,
    SEQ,
    SINK,
    note_error,
    original_message_of,
    ours,
    said,
)
from penstock.monitoring.traces.handler import TracedHandler
from penstock.monitoring.traces.provider import ChildTracing, TelemetryResource, begin_flush, provider_for

_HEARD = (MessageFailed, MessageInvalid, ObjectFailed, BatchPublished)


def otel_tracing(service: TelemetryResource, *, version: str) -> "OtelTracing":
    """Return the tracing of this process; ``version`` is Penstock's own."""
    return OtelTracing(provider_for(service), version=version, continuing=ChildTracing(service=service))


class OtelTracing:
    """The tracing of one process, through a provider that decides where spans go. Thread-safe."""

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


class TraceListener(SelectiveListener):
    """Add events to spans: failures that handlers report without raising, and published batches. Thread-safe.

    Events are emitted in the working thread, in which the span of the work is current.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def wants(self, kind: type[Event]) -> bool:
        return issubclass(kind, _HEARD)

    def __call__(self, event: Event) -> None:
        if isinstance(event, BatchPublished):
            self._record_publish(event)
        elif (failed := occurrence_of(event)) is not None:
            _note(failed)

    def _record_publish(self, event: BatchPublished) -> None:
        """Record a finished span: most polls for a batch to publish find none, so none is started before."""
        now = time.time_ns()
        attributes: dict[str, AttributeValue] = {PIPELINE: said(event.pipeline), SINK: said(event.sink), SEQ: event.seq}
        self._tracer.start_span(
            "publish",
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            start_time=now - round(event.seconds * 1e9),
        ).end(now)


def _note(failed: Occurrence) -> None:
    """Add an exception to the current span; the first one sets the span's error."""
    span = trace.get_current_span()
    if not span.is_recording():
        return
    values = {
        EXCEPTION_TYPE: failed.error_type,
        EXCEPTION_MESSAGE: failed.error,
        MESSAGE_ID: failed.message_id,
        OBJECT: failed.object_uri,
    }
    noted = {name: said(value) for name, value in values.items() if value is not None}
    if failed.traceback:
        noted[EXCEPTION_STACKTRACE] = block(failed.traceback)
    span.add_event("exception", noted)
    if not _has_failed(span):
        note_error(span, failed.error_type, failed.error)


def _has_failed(span: Span) -> bool:
    return ERROR_TYPE in (getattr(span, "attributes", None) or {})
