"""A process's traces, for tests: where spans go, and what they are asked."""

from collections.abc import Sequence
from functools import cache

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.messaging.message import Attributes
from penstock.monitoring.traces.tracing import OtelTracing


class Traces:
    """A provider of this test's own; the process's stays as it is."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = provider or TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = OtelTracing(self.provider, version="1")

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """Those that ended, in that order."""
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> Sequence[ReadableSpan]:
        """Those of one name."""
        return [span for span in self.spans if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        """The one of that name."""
        (span,) = self.named(name)
        return span


def traceparent(span: ReadableSpan) -> str:
    """As W3C writes it, put together here: what the product writes comes from OpenTelemetry."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def linked(span: ReadableSpan) -> Sequence[str]:
    """What the span links to."""
    return [
        f"00-{link.context.trace_id:032x}-{link.context.span_id:016x}-{link.context.trace_flags:02x}"
        for link in span.links
    ]


def context_in(attributes: Attributes) -> str | bytes | None:
    """What a message takes along."""
    return attributes.get("traceparent")


@cache
def process_provider() -> TracerProvider:
    """The process's, as an application sets it: once, for all tests in it."""
    provider = TracerProvider(shutdown_on_exit=False)
    trace.set_tracer_provider(provider)
    assert trace.get_tracer_provider() is provider, "another test had one made"
    return provider
