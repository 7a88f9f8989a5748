"""Spans for tests: an exporter in memory, and queries over its spans."""

from collections.abc import Sequence
from functools import cache

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.messaging.message import Attributes
from penstock.monitoring.traces.tracing import OtelTracing


class Traces:
    """Collect the spans of a provider; by default, of a new one instead of the process's."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = provider or TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = OtelTracing(self.provider, version="1")

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """Return the ended spans, in the order of their ends."""
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> Sequence[ReadableSpan]:
        """Return the spans of that name."""
        return [span for span in self.spans if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        """Return the only span of that name."""
        (span,) = self.named(name)
        return span


def traceparent(span: ReadableSpan) -> str:
    """Return a span's W3C traceparent, formatted here and not by OpenTelemetry, as the product does."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def linked(span: ReadableSpan) -> Sequence[str]:
    """Return the traceparents of a span's links."""
    return [
        f"00-{link.context.trace_id:032x}-{link.context.span_id:016x}-{link.context.trace_flags:02x}"
        for link in span.links
    ]


def context_in(attributes: Attributes) -> str | bytes | None:
    """Return the traceparent of a message."""
    return attributes.get("traceparent")


@cache
def process_provider() -> TracerProvider:
    """Return the process's provider, set once for all tests, as an application does."""
    provider = TracerProvider(shutdown_on_exit=False)
    trace.set_tracer_provider(provider)
    assert trace.get_tracer_provider() is provider, "another test set a provider"

    return provider
