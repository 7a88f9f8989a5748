"""The metrics of one process: its meters, the endpoint that serves them, and the exporters that send them."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.app.brokers import capabilities_of
from penstock.app.naming import own_version
from penstock.app.tracing import otel_service, require_otel
from penstock.config import Settings
from penstock.events import Listener
from penstock.messaging.clock import Clock, SystemClock
from penstock.monitoring.health import Health
from penstock.monitoring.logs.lines import LineWriter
from penstock.monitoring.metrics.exporter import Exporter, MetricsDestination
from penstock.monitoring.metrics.listener import MetricsListener
from penstock.monitoring.metrics.meters import Meters

if TYPE_CHECKING:
    from penstock.monitoring.endpoint import Endpoint
    from penstock.monitoring.metrics.otel import Otel

SETTING = "metrics_address"


class Metering:
    """The metrics of one process. ``listener`` belongs on its bus."""

    def __init__(
        self, meters: Meters, *, listener: Listener, endpoint: "Endpoint | None", exporters: Sequence[Exporter]
    ) -> None:
        self.meters = meters
        self.listener = listener
        self._endpoint = endpoint
        self._exporters = exporters

    @property
    def address(self) -> str | None:
        """HOST:PORT of the endpoint, with the actual port once it is open; None without an endpoint."""
        return None if self._endpoint is None else self._endpoint.address

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Serve and export inside the block. Raises `ConfigurationError` if the address cannot be bound."""
        if self._endpoint is not None:
            self._endpoint.open()
        for exporter in self._exporters:
            exporter.start()
        try:
            yield
        finally:
            for exporter in self._exporters:
                exporter.end()
            if self._endpoint is not None:
                self._endpoint.close()

    def begin_flush(self) -> None:
        """Start an export now without waiting for it. Also works outside `beside`."""
        for exporter in self._exporters:
            exporter.begin_flush()

    def await_flush(self, seconds: float) -> bool:
        """Wait up to this long for the export; return True if it finished."""
        ends_at = time.monotonic() + seconds
        return all(exporter.await_flush(ends_at - time.monotonic()) for exporter in self._exporters)


def open_metering(
    settings: Settings,
    *,
    worker: str,
    health: Health | None,
    queues: Mapping[str, str],
    emit: Listener,
    clock: Clock | None = None,
    setting: str = SETTING,
) -> Metering:
    """Return the metering according to the settings.

    ``health`` has the responses of the endpoint's probes; by default they report that the process runs. ``setting`` is
    the name of the setting with the address. Raises `ConfigurationError` for an invalid address and for a pip extra
    that is not installed.
    """
    clock = SystemClock() if clock is None else clock
    otel = _otel(settings, worker=worker) if "otel" in settings.metrics_export else None
    meters = Meters() if otel is None else otel.meters
    endpoint = None
    if settings.metrics_address is not None:
        from penstock.monitoring.endpoint import Endpoint, address_of

        address = address_of(settings.metrics_address, setting=setting)
        endpoint = Endpoint(address, meters=meters, health=health or running(), setting=setting)
    outlets = [*_outlets(settings, worker=worker, meters=meters, clock=clock)]
    if otel is not None and otel.destination is not None:
        outlets.append(otel.destination)
    every_seconds = settings.metrics_export_every
    exporters = [Exporter(meters, outlet, every_seconds=every_seconds, clock=clock, emit=emit) for outlet in outlets]
    return Metering(meters, listener=MetricsListener(meters, queues=queues), endpoint=endpoint, exporters=exporters)


def metrics_beside(settings: Settings, number: int) -> Settings:
    """Return the settings of the process with this number, from 0: its port is the configured port plus the number.

    Raises `ConfigurationError` if there is no such port.
    """
    if settings.metrics_address is None or not number:
        return settings
    from penstock.monitoring.endpoint import address_of

    address = address_of(settings.metrics_address, setting=SETTING).beside(number)
    return settings.model_copy(update={SETTING: str(address)})


def running() -> Health:
    """Return probes that only report that the process responds."""

    def probe() -> tuple[bool, str]:
        return True, "The process runs."

    return Health(live=probe, ready=probe, started=probe)


def _otel(settings: Settings, *, worker: str) -> "Otel":
    require_otel("The setting metrics_export names otel")
    from penstock.monitoring.metrics.otel import open_otel
    from penstock.monitoring.traces.provider import resource_of

    resource = resource_of(otel_service(settings, worker=worker))
    return open_otel(resource, version=own_version(), system=capabilities_of(settings).system)


def _outlets(settings: Settings, *, worker: str, meters: Meters, clock: Clock) -> Sequence[MetricsDestination]:
    outlets: list[MetricsDestination] = []
    wanted = set(settings.metrics_export)
    if "emf" in wanted:
        from penstock.monitoring.metrics.cloudwatch import EmfDestination

        outlets.append(
            EmfDestination(
                LineWriter(sys.stderr),  # the log's stream: standard output is for the output of commands
                namespace=settings.metrics_cloudwatch_namespace,
                properties=_properties(settings, worker),
                catalogue=meters.catalogue,
                clock=clock,
            )
        )
    if "cloudwatch" in wanted:
        from penstock.monitoring.metrics.cloudwatch import CloudWatchDestination, require_boto3

        require_boto3()
        outlets.append(
            CloudWatchDestination(
                lambda: settings.aws.client("cloudwatch"),
                namespace=settings.metrics_cloudwatch_namespace,
                catalogue=meters.catalogue,
                clock=clock,
            )
        )
    return outlets


def _properties(settings: Settings, worker: str) -> Mapping[str, str]:
    found = {
        "service": settings.log_service,
        "version": settings.log_service_version,
        "environment": settings.log_environment,
        "worker": worker,
    }
    return {name: value for name, value in found.items() if value is not None}
