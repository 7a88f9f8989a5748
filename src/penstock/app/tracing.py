"""Set up tracing, if it is enabled in the settings. Otherwise OpenTelemetry is not imported."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from penstock.app.naming import own_version
from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.events import Listener
from penstock.messaging.tracing import NO_TRACING, Tracing
from penstock.monitoring.logs.listener import TraceIds
from penstock.worker.consumer import Consumer

if TYPE_CHECKING:
    from penstock.monitoring.traces.provider import TelemetryResource
    from penstock.monitoring.traces.tracing import OtelTracing

PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http", "opentelemetry.semconv")
SWITCHED_ON = "The setting tracing.enabled is true"


def tracing_of(settings: Settings, *, worker: str) -> Tracing:
    """Return the tracing according to the settings; one that does nothing if it is not enabled.

    Raises `ConfigurationError`, naming the pip extra, if OpenTelemetry is missing.
    """
    return open_tracing(settings, worker=worker) or NO_TRACING


def open_tracing(settings: Settings, *, worker: str, emit: Listener | None = None) -> "OtelTracing | None":
    """Return the tracing according to the settings, or None. All tracing of one process shares an exporter.

    ``emit`` receives an event if spans cannot be exported. Raises as `tracing_of`.
    """
    if not settings.tracing_enabled:
        return None
    require_otel(SWITCHED_ON)
    from penstock.monitoring.traces import provider, tracing

    opened = tracing.otel_tracing(otel_service(settings, worker=worker), version=own_version())
    if emit is not None:
        provider.report_failures(emit)
    return opened


def trace_ids_of(settings: Settings) -> TraceIds | None:
    """Return the function that finds a thread's trace and span ids, for log lines. Raises as `tracing_of`."""
    if not settings.tracing_enabled:
        return None
    require_otel(SWITCHED_ON)
    from penstock.monitoring.traces.tracing import trace_ids

    return trace_ids


def otel_service(settings: Settings, *, worker: str) -> "TelemetryResource":
    """Return the description of this service for OpenTelemetry.

    For settings that are not set, OpenTelemetry's own environment variables apply.
    """
    from penstock.monitoring.traces.provider import TelemetryResource

    return TelemetryResource(
        name=settings.log_service if "log_service" in settings.model_fields_set else None,
        version=settings.log_service_version,
        environment=settings.log_environment,
        worker=worker or None,
    )


def require_otel(subject: str) -> None:
    """Raise `ConfigurationError`, naming the pip extra, if OpenTelemetry is missing. Imports none of it."""
    if not all(map(_is_there, PACKAGES)):
        raise ConfigurationError(
            f"{subject}, and OpenTelemetry cannot be found here: run pip install 'penstock[otel]'."
        )


def traced(consumers: Sequence[Consumer], tracing: Tracing, *, system: str) -> Sequence[Consumer]:
    """Return the consumers with handlers that trace each execution as a span; unchanged without tracing."""
    return [
        replace(consumer, handler=tracing.handler(consumer.handler, queue=consumer.queue, system=system))
        for consumer in consumers
    ]


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
