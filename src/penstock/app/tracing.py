"""Traces, where the settings ask for them; else nothing, and nothing of OpenTelemetry is imported."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.events import Listener
from penstock.messaging.tracing import NO_TRACING, Tracing
from penstock.monitoring.logs.listener import TraceIds
from penstock.worker.line import Line

if TYPE_CHECKING:
    from penstock.monitoring.traces.provider import TelemetryResource
    from penstock.monitoring.traces.tracing import OtelTracing

PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http", "opentelemetry.semconv")
SWITCHED_ON = "The setting traces is on"


def tracing_of(settings: Settings, *, worker: str) -> Tracing:
    """What the rooms are handed. Raises `ConfigurationError`, naming the extra, where OpenTelemetry is missing."""
    return open_tracing(settings, worker=worker) or NO_TRACING


def open_tracing(settings: Settings, *, worker: str, tell: Listener | None = None) -> "OtelTracing | None":
    """What the settings ask for; all of one process share where spans go. ``tell`` hears when nobody takes them. Raises
    as `tracing_of`."""
    if not settings.traces:
        return None
    require_otel(SWITCHED_ON)
    from penstock.app.naming import own_version
    from penstock.monitoring.traces.provider import tell_failures
    from penstock.monitoring.traces.tracing import otel_tracing

    tracing = otel_tracing(otel_service(settings, worker=worker), version=own_version())
    if tell is not None:
        tell_failures(tell)
    return tracing


def trace_ids_of(settings: Settings) -> TraceIds | None:
    """What says in which trace and span a thread is, for lines of the log. Raises as `tracing_of`."""
    if not settings.traces:
        return None
    require_otel(SWITCHED_ON)
    from penstock.monitoring.traces.tracing import trace_ids

    return trace_ids


def otel_service(settings: Settings, *, worker: str) -> "TelemetryResource":
    """As OpenTelemetry is told of this service; its own variables count where the settings say nothing."""
    from penstock.monitoring.traces.provider import TelemetryResource

    return TelemetryResource(
        name=settings.service if "service" in settings.model_fields_set else None,
        version=settings.service_version,
        environment=settings.environment,
        worker=worker or None,
    )


def require_otel(what: str) -> None:
    """Raise `ConfigurationError`, naming the extra, where OpenTelemetry is missing. Imports none of it."""
    if not all(map(_is_there, PACKAGES)):
        raise ConfigurationError(f"{what}, and OpenTelemetry cannot be found here: run pip install 'penstock[otel]'.")


def traced(lines: Sequence[Line], tracing: Tracing, *, system: str) -> Sequence[Line]:
    """The lines; each execution is a span where there is tracing."""
    return [replace(line, handler=tracing.handler(line.handler, queue=line.queue, system=system)) for line in lines]


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of a package around it
        return False
