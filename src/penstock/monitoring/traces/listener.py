"""Add events to spans: failures that handlers report without raising, and published batches.

Events are emitted in the working thread, in which the span of the work is current.
"""

import time

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Tracer
from opentelemetry.util.types import AttributeValue

from penstock.events import BatchPublished, Event, MessageFailed, MessageInvalid, ObjectFailed, SelectiveListener
from penstock.monitoring.errors.occurrences import Occurrence, occurrence_of
from penstock.monitoring.logs.lines import block
from penstock.monitoring.traces.context import (
    ERROR_TYPE,
    EXCEPTION_MESSAGE,
    EXCEPTION_STACKTRACE,
    EXCEPTION_TYPE,
    MESSAGE_ID,
    OBJECT,
    PIPELINE,
    SEQ,
    SINK,
    note_error,
    said,
)

_HEARD = (MessageFailed, MessageInvalid, ObjectFailed, BatchPublished)


class TraceListener(SelectiveListener):
    """Bus listener that adds events to spans. Thread-safe."""

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
