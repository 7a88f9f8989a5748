"""Where spans go: to the application's own provider if it set one, else by OTLP over HTTP.

The provider is the process's, since the user's own spans are to be within ours: that is how OpenTelemetry finds it. How
and where it exports and what it samples is OpenTelemetry's to read from its standard variables (``OTEL_...``).
"""

import atexit
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.semconv._incubating.attributes import deployment_attributes, service_attributes

from penstock.events import Listener, TracesExportFailed
from penstock.messaging.tracing import Carrier
from penstock.monitoring.export_log import found, quieten
from penstock.monitoring.traces.context import context_of

NAME = "penstock"  # of a service that nobody named
EXIT_SECONDS = 1.0  # for what was not sent when the process ends
_CHILD_EXIT_SECONDS = 0.3  # a child that is asked to end is waited for a little longer than that


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryResource:
    """Whose spans and metrics they are. ``name`` None: what OpenTelemetry's variables say."""

    name: str | None
    version: str | None
    environment: str | None
    worker: str | None  # None: of a command that looks


def resource_of(service: TelemetryResource) -> Resource:
    """As OpenTelemetry names a service. What the settings say goes before its variables."""
    name = service.name or OTELResourceDetector().detect().attributes.get(service_attributes.SERVICE_NAME) or NAME
    named = {
        service_attributes.SERVICE_NAME: name,
        service_attributes.SERVICE_VERSION: service.version,
        service_attributes.SERVICE_INSTANCE_ID: service.worker,
        deployment_attributes.DEPLOYMENT_ENVIRONMENT_NAME: service.environment,
        deployment_attributes.DEPLOYMENT_ENVIRONMENT: service.environment,  # its name until 2024
    }
    return Resource.create({key: value for key, value in named.items() if value is not None})


def provider_for(service: TelemetryResource) -> trace.TracerProvider:
    """The process's: what the application set, or ours from here on."""
    there = trace.get_tracer_provider()
    if not isinstance(there, trace.ProxyTracerProvider):
        return there
    quieten(trace_exporter.__name__)
    # Shutting down waits for a collector that is away, for longer than a process has that was told to stop.
    provider = TracerProvider(resource=resource_of(service), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    atexit.register(lambda: begin_flush(provider)(EXIT_SECONDS))
    return trace.get_tracer_provider()  # another thread's, if it was quicker


def tell_failures(tell: Listener) -> None:
    """Have it told when no collector takes the spans; of the application's own provider nothing is."""
    log = found(trace_exporter.__name__)
    if log is not None:
        log.told_to(lambda error: tell(TracesExportFailed(error=error)))


def begin_flush(provider: object) -> Callable[[float], None]:
    """Have what ended so far sent; answers how that is waited for, in seconds, which `force_flush` itself heeds not."""
    force_flush = getattr(provider, "force_flush", None)  # the application's provider may be of any kind
    if force_flush is None:
        return _wait_for_nothing
    thread = threading.Thread(target=force_flush, name="penstock-traces-flush", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter begins no threads any more
        return _wait_for_nothing
    return lambda seconds: thread.join(max(seconds, 0.0))


def _wait_for_nothing(_: float) -> None:
    """There is nothing to wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildTracing:
    """A `penstock.messaging.tracing.Continuing`."""

    service: TelemetryResource

    @contextmanager
    def __call__(self, carrier: Carrier) -> Iterator[None]:
        provider_for(self.service)
        token = contexts.attach(context_of(carrier))
        try:
            yield
        finally:
            contexts.detach(token)

    def close(self) -> None:
        begin_flush(trace.get_tracer_provider())(_CHILD_EXIT_SECONDS)
