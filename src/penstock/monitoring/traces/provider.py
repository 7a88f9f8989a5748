"""Select the destination of spans: the application's provider if it set one, else OTLP over HTTP.

The provider is set for the whole process, because OpenTelemetry then makes the user's own spans children of ours.
OpenTelemetry reads its exporter and sampling settings from its standard variables (``OTEL_...``).
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

NAME = "penstock"  # of a service without a configured name
EXIT_SECONDS = 1.0  # for unsent spans at the end of the process
_CHILD_EXIT_SECONDS = 0.3  # shorter than the time that a child asked to end is given


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryResource:
    """The service that spans and metrics belong to. ``name`` None: take it from OpenTelemetry's variables."""

    name: str | None
    version: str | None
    environment: str | None
    worker: str | None  # None: a read-only command


def resource_of(service: TelemetryResource) -> Resource:
    """Return the service as an OpenTelemetry resource. Settings take precedence over OpenTelemetry's variables."""
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
    """Return the process's provider: the application's if it set one, else a new one, which becomes the process's."""
    there = trace.get_tracer_provider()
    if not isinstance(there, trace.ProxyTracerProvider):
        return there
    quieten(trace_exporter.__name__)
    # The SDK's own shutdown can wait for an unreachable collector longer than a stopping process is allowed to.
    provider = TracerProvider(resource=resource_of(service), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    atexit.register(lambda: begin_flush(provider)(EXIT_SECONDS))
    return trace.get_tracer_provider()  # another thread's, if that was faster


def report_failures(emit: Listener) -> None:
    """Emit `TracesExportFailed` when no collector accepts the spans; not for the application's own provider."""
    log = found(trace_exporter.__name__)
    if log is not None:
        log.on_failure(lambda error: emit(TracesExportFailed(error=error)))


def begin_flush(provider: object) -> Callable[[float], None]:
    """Start sending the ended spans. Return a function that waits for it, at most the given seconds.

    The wait is separate because `force_flush` ignores its own timeout.
    """
    force_flush = getattr(provider, "force_flush", None)  # the application's provider may be of any type
    if force_flush is None:
        return _wait_for_nothing
    thread = threading.Thread(target=force_flush, name="penstock-traces-flush", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is shutting down and starts no threads
        return _wait_for_nothing
    return lambda seconds: thread.join(max(seconds, 0.0))


def _wait_for_nothing(_: float) -> None:
    """Return at once: no flush was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildTracing:
    """A `penstock.messaging.tracing.Continuing` with OpenTelemetry."""

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
