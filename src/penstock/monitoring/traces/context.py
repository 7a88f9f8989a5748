"""How a trace travels: W3C's context in a message's attributes, written and read by OpenTelemetry's propagator."""

from collections.abc import Iterable, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock.messaging.message import Attributes
from penstock.messaging.tracing import Carrier
from penstock.monitoring.traces.names import LINKS_MAX

_PROPAGATOR = TraceContextTextMapPropagator()  # holds no state
PARENT = "traceparent"
_FIELDS = (PARENT, "tracestate")


def carrier_of(context: Context | None = None) -> Carrier:
    """What the span of that context, or of the calling thread's, is continued by; empty where there is none."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=context)
    return carrier


def context_of(carrier: Carrier) -> Context:
    """The context that a carrier tells of, and nothing of the calling thread's."""
    return _PROPAGATOR.extract(carrier, context=Context())


def sender_of(attributes: Attributes) -> SpanContext | None:
    """The span that sent a message; None where its attributes tell of none that can be."""
    if PARENT not in attributes:
        return None
    carrier = {name: value for name in _FIELDS if isinstance(value := attributes.get(name), str)}
    found = trace.get_current_span(context_of(carrier)).get_span_context()
    return found if found.is_valid else None


def links_to(senders: Iterable[Attributes]) -> tuple[Sequence[Link], int]:
    """Links to those that sent messages of these attributes, each once; and how many are beyond the bound."""
    found: dict[tuple[int, int], SpanContext] = {}
    for attributes in senders:
        sender = sender_of(attributes)
        if sender is not None:
            found[sender.trace_id, sender.span_id] = sender
    links = [Link(sender) for sender in found.values()]
    return links[:LINKS_MAX], max(len(links) - LINKS_MAX, 0)
