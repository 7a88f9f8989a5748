"""The telemetry of a process: its log, metrics, traces and error reports.

Every kind of process uses it: workers, replayers, the monitor, ingests, runs, reconciles, relays and functions.
`guarded` wraps the user's listeners, so that their exceptions do no harm.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from penstock.app.metering import open_metering
from penstock.app.tracing import open_tracing, trace_ids_of
from penstock.config import Settings
from penstock.errors import UserError
from penstock.events import Bus, Event, Listener, ListenerFailed
from penstock.messaging.failure import failure_of
from penstock.monitoring.errors.hook import ErrorHook, ErrorReporter
from penstock.monitoring.errors.services import ReportingSettings, services
from penstock.monitoring.health import Health
from penstock.monitoring.logs.listener import LogListener, configure_logs
from penstock.monitoring.logs.plans import LogSettings

if TYPE_CHECKING:
    from penstock.app.metering import Metering
    from penstock.monitoring.metrics.meters import Meters
    from penstock.monitoring.traces.tracing import OtelTracing


FLUSH_SECONDS = 1.0  # part of the stop timeout's margin: for reports not sent yet
REPORT_SECONDS = 5.0  # for processes that end on their own: no platform is waiting

Process = Literal[
    "worker", "supervisor", "replayer", "monitor", "relay", "run", "ingest", "reconcile", "upkeep", "cleanup", "lambda"
]
"""The kinds of processes that report failures; upkeep is publish, gc, compact and repair."""


def attended() -> bool:
    """Return True if a person at a terminal reads this process's output."""
    try:
        return sys.stdin.isatty() and sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it was closed
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """The telemetry of one process. ``listeners`` belong on its bus."""

    listeners: Sequence[Listener]
    reporter: ErrorReporter | None
    metering: "Metering | None" = None  # None: the settings ask for no metrics
    tracing: "OtelTracing | None" = None  # None: the settings ask for no traces
    attended: Callable[[], bool] = attended

    @property
    def meters(self) -> "Meters | None":
        """The meters; None without metrics."""
        return None if self.metering is None else self.metering.meters

    @property
    def metrics_address(self) -> str | None:
        """HOST:PORT of the metrics and health endpoint inside `running`; None without one."""
        return None if self.metering is None else self.metering.address

    def report(self, error: BaseException, *, handler: str = "", subject: str | None = None) -> None:
        """Report a failure without an event: one that ends a command, or a worker before it starts.

        ``subject``: a short description, if it is not a failure.
        """
        if self.reporter is not None:
            self.reporter.report(error, handler=handler, subject=subject)

    def listeners_of(self, *, read_only: bool) -> Sequence[Listener]:
        """Return the listeners for the bus.

        A ``read_only`` command at a terminal is not reported to the error hooks.
        """
        if read_only and self.attended():
            return tuple(listener for listener in self.listeners if listener is not self.reporter)
        return self.listeners

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the metrics endpoint and exports inside the block, then flush; report an exception that ends it.

        A `UserError` is not reported if a person at the terminal sees it. Raises `ConfigurationError` if the endpoint
        cannot be opened.
        """
        seconds = FLUSH_SECONDS
        with ExitStack() as stack:
            try:
                if self.metering is not None:
                    stack.enter_context(self.metering.beside())
                yield
            except Exception as error:
                if not (isinstance(error, UserError) and self.attended()):
                    self.report(error)
                seconds = REPORT_SECONDS
                raise
            finally:
                self.flush(seconds)

    def flush(self, seconds: float) -> None:
        """Wait up to this long until everything is sent. Does not close: later events are still sent."""
        ends_at = time.monotonic() + seconds
        if self.metering is not None:
            self.metering.begin_flush()
        await_traces = None if self.tracing is None else self.tracing.begin_flush()
        if self.reporter is not None:
            self.reporter.flush(seconds)
        if self.metering is not None:
            self.metering.await_flush(ends_at - time.monotonic())
        if await_traces is not None:
            await_traces(ends_at - time.monotonic())


def open_telemetry(
    settings: Settings,
    *,
    worker: str,
    process: Process = "worker",
    on_error: ErrorHook | None = None,
    emit: Listener | None = None,
    health: Health | None = None,
    queues: Mapping[str, str] | None = None,
) -> Telemetry:
    """Return the telemetry according to the settings.

    ``emit`` shows a command's progress to people: it replaces the log, unless the setting log_format asks for a log.
    ``process`` is included in each failure report. ``on_error`` is the user's hook, in addition to the configured
    services. ``health`` has the responses of the platform's probes. ``queues`` maps each pipeline and object handler to
    its queue, for metrics. Raises `ConfigurationError` for invalid settings, and for a pip extra that is not installed.
    """
    emit = _log_or(emit, settings, worker=worker)
    reports = _open_reports(settings, worker=worker, process=process, on_error=on_error, emit=emit)
    if settings.metrics_address is None and not settings.metrics_export:
        return reports

    metering = open_metering(
        settings,
        worker=worker,
        health=health,
        queues=queues or {},
        emit=emit,
        setting="metrics.monitor_address" if process == "monitor" else "metrics.address",
    )
    return replace(reports, listeners=(*reports.listeners, metering.listener), metering=metering)


def open_reports(
    settings: Settings,
    *,
    worker: str,
    process: Process,
    on_error: ErrorHook | None = None,
    emit: Listener | None = None,
) -> Telemetry:
    """Return telemetry without metrics, for commands that end on their own and may run beside a worker."""
    emit = _log_or(emit, settings, worker=worker)
    return _open_reports(settings, worker=worker, process=process, on_error=on_error, emit=emit)


def open_reporter(
    settings: Settings, *, worker: str, process: Process, on_error: ErrorHook | None, emit: Listener
) -> ErrorReporter | None:
    """Return the reporter of failures to the user's hook and the configured services; None if there is neither.

    Raises `ConfigurationError` as `penstock.monitoring.errors.services.services` does.
    """
    hooks = _services(settings)
    if on_error is None and not hooks:
        return None
    return ErrorReporter(on_error, worker=worker, process=process, emit=emit, services=hooks)


def is_logged(settings: Settings) -> bool:
    """Return True if a command that shows progress to people should write the log instead."""
    return settings.log_format != "auto"


def open_log(settings: Settings, *, worker: str | None) -> LogListener:
    """Return the log on stderr, as set up. Raises `ConfigurationError` for unknown events and levels."""
    return configure_logs(
        LogSettings(
            format=settings.log_format,
            level=settings.log_level,
            levels=settings.log_levels,
            sampling=settings.log_sampling,
            service=settings.log_service,
            version=settings.log_service_version,
            worker=worker,
            environment=settings.log_environment,
        ),
        trace_ids=trace_ids_of(settings),
    )


def _open_reports(
    settings: Settings, *, worker: str, process: Process, on_error: ErrorHook | None, emit: Listener
) -> Telemetry:
    reporter = open_reporter(settings, worker=worker, process=process, on_error=on_error, emit=emit)
    tracing = open_tracing(settings, worker=worker, emit=emit)
    listeners = (emit, reporter, None if tracing is None else tracing.listener)
    return Telemetry(
        listeners=tuple(listener for listener in listeners if listener is not None), reporter=reporter, tracing=tracing
    )


def _services(settings: Settings) -> Mapping[str, ErrorHook]:
    if not (settings.alerts_sentry_dsn or settings.alerts_rollbar_token or settings.alerts_notify_urls):
        return {}

    return services(
        ReportingSettings(
            sentry_dsn=settings.alerts_sentry_dsn,
            rollbar_token=settings.alerts_rollbar_token,
            notify_urls=tuple(settings.alerts_notify_urls),
            service=settings.log_service,
            version=settings.log_service_version,
            environment=settings.log_environment,
        )
    )


def _log_or(emit: Listener | None, settings: Settings, *, worker: str) -> Listener:
    """Return the log, the command's progress output, or both."""
    if emit is None:
        return open_log(settings, worker=worker)
    if isinstance(emit, LogListener) or not is_logged(settings):
        return emit
    return Bus(emit, open_log(settings, worker=worker))


class _Guarded:
    """A user's listener, with its exceptions caught. Thread-safe."""

    def __init__(self, listener: Listener, emit: Listener) -> None:
        self._listener = listener
        self._emit = emit
        self._reported = False  # set by the first thread in which it raises; two at the same time may both report

    def __call__(self, event: Event) -> None:
        try:
            self._listener(event)
        except (Exception, SystemExit) as error:
            if not self._reported:
                self._reported = True
                name = getattr(self._listener, "__qualname__", type(self._listener).__qualname__)
                self._emit(ListenerFailed(listener=name, error=failure_of(error).summary))


def guarded(listeners: Sequence[Listener], *, emit: Listener) -> Sequence[Listener]:
    """Wrap the listeners so that their exceptions cannot harm the emitter.

    ``emit`` gets one event per failing listener.
    """
    return [_Guarded(listener, emit) for listener in listeners]
