"""Propagation of trace contexts, and the attribute names, links and errors that several kinds of spans share.

A message carries W3C Trace Context in its attributes, written and read by OpenTelemetry's propagator. Names follow
OpenTelemetry's semantic conventions for messaging, plus a few of our own.
"""

from collections.abc import Iterable, Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.semconv._incubating.attributes import messaging_attributes as messaging
from opentelemetry.semconv.attributes import error_attributes, exception_attributes
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Attributes
from penstock.messaging.tracing import Carrier
from penstock.monitoring.logs.lines import plain

SYSTEM = messaging.MESSAGING_SYSTEM
DESTINATION = messaging.MESSAGING_DESTINATION_NAME
OPERATION = messaging.MESSAGING_OPERATION_NAME
OPERATION_TYPE = messaging.MESSAGING_OPERATION_TYPE
MESSAGE_ID = messaging.MESSAGING_MESSAGE_ID
MESSAGE_COUNT = messaging.MESSAGING_BATCH_MESSAGE_COUNT
ERROR_TYPE = error_attributes.ERROR_TYPE
EXCEPTION_TYPE = exception_attributes.EXCEPTION_TYPE
EXCEPTION_MESSAGE = exception_attributes.EXCEPTION_MESSAGE
EXCEPTION_STACKTRACE = exception_attributes.EXCEPTION_STACKTRACE

HANDLER = "penstock.handler"
ATTEMPT = "penstock.attempt"
OUTCOME = "penstock.outcome"  # of a process span: ack, release, dead_letter, mixed, interrupted, lost
PIPELINE = "penstock.pipeline"
SINK = "penstock.sink"
SEQ = "penstock.seq"
OBJECT = "penstock.object"
UNTRACED = "penstock.untraced_messages"  # of a send: number of messages without room for a trace context
LINKS_LEFT_OUT = "penstock.links_left_out"  # number of links beyond LINKS_MAX

LINKS_MAX = 128  # per span: the SDK's default limit

SEND, RECEIVE, PROCESS = "send", "receive", "process"
SCOPE = "penstock"  # of spans and metrics; also the prefix of our own names


def ours(name: str) -> str:
    """Return the name of an attribute of our own."""
    return f"{SCOPE}.{name}"


def said(text: str) -> str:
    """Return text that exporters accept: bounded, without lone surrogates, for which they drop a whole batch."""
    return str(plain(text))


def operation(name: str, *, system: str, queue: str) -> dict[str, AttributeValue]:
    """Return the attributes of every messaging span. Operation types are named like the operations."""
    return {SYSTEM: system, DESTINATION: queue, OPERATION: name, OPERATION_TYPE: name}


_PROPAGATOR = TraceContextTextMapPropagator()  # stateless
PARENT = "traceparent"
_FIELDS = (PARENT, "tracestate")


def original_message_of(context: Context | None = None) -> Carrier:
    """Return the trace context of the span in ``context`` or of the calling thread's span; empty if there is none."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=context)
    return carrier


def context_of(carrier: Carrier) -> Context:
    """Return the context in a carrier, without any context of the calling thread."""
    return _PROPAGATOR.extract(carrier, context=Context())


def sender_of(attributes: Attributes) -> SpanContext | None:
    """Return the span that sent a message; None if its attributes hold no valid context."""
    if PARENT not in attributes:
        return None
    carrier = {name: value for name in _FIELDS if isinstance(value := attributes.get(name), str)}
    found = trace.get_current_span(context_of(carrier)).get_span_context()
    return found if found.is_valid else None


def links_to(senders: Iterable[Attributes]) -> tuple[Sequence[Link], int]:
    """Return one link per sending span of these messages, and the number of links beyond the bound."""
    found: dict[tuple[int, int], SpanContext] = {}
    for attributes in senders:
        sender = sender_of(attributes)
        if sender is not None:
            found[sender.trace_id, sender.span_id] = sender
    links = [Link(sender) for sender in found.values()]
    return links[:LINKS_MAX], max(len(links) - LINKS_MAX, 0)


def links_and_count(messages: Sequence[Attributes]) -> tuple[Sequence[Link], Mapping[str, AttributeValue]]:
    """Return links to the sending spans, and attributes with the number of messages if there are several."""
    links, left_out = links_to(messages)
    counts = {MESSAGE_COUNT: len(messages) if len(messages) > 1 else 0, LINKS_LEFT_OUT: left_out}
    return links, {name: count for name, count in counts.items() if count}


def links_and_names(deliveries: Sequence[Delivery]) -> tuple[Sequence[Link], Mapping[str, AttributeValue]]:
    """Return links and attributes as `links_and_count` does; a single delivery adds its message id."""
    links, described = links_and_count([delivery.message.attributes for delivery in deliveries])
    if len(deliveries) == 1:
        described = {**described, MESSAGE_ID: said(deliveries[0].message.id)}
    return links, described


def note_error(span: Span, error_type: str, message: str) -> None:
    """Record the error on the span and set its status."""
    span.set_attribute(ERROR_TYPE, error_type)
    span.set_status(Status(StatusCode.ERROR, said(f"{error_type}: {message}")))
