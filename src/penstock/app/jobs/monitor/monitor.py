"""Measure everything that an app uses: queues, dead letters, ledger and tables.

Read-only. If something cannot be measured, its values are absent, and the rest is still measured.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.app.backends import ledger_exists
from penstock.app.brokers import broker_exists, check_queues
from penstock.app.jobs.monitor.ledger import LedgerWatch, TableWatch
from penstock.app.jobs.monitor.queues import BrokerSample, QueueWatch
from penstock.app.jobs.monitor.sample import MonitorSample, Source
from penstock.app.paths import TablePaths, declared_table_paths
from penstock.app.queues import check_shared
from penstock.app.service import needs_ledger, needs_objects
from penstock.app.system_health import HasSettled, PipelineHealth, QueueHealth, has_left
from penstock.errors import ConfigurationError
from penstock.events import Listener, MonitorPollFailed, MonitorPollRecovered
from penstock.messaging.clock import Clock
from penstock.messaging.failure import failure_of
from penstock.pipeline.extra import require_spark

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.ledger import Ledger
    from penstock.messaging.broker import Broker

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorTargets:
    """The targets of the monitor: names, and a watch for each source; None for a source that the app does not use."""

    queue_names: tuple[str, ...]
    pipeline_names: tuple[str, ...]
    queues: QueueWatch | None
    ledger: LedgerWatch | None
    tables: TableWatch | None
    tables_unreadable: str | None = None  # why tables cannot be read here
    queue_by_pipeline: Mapping[str, str] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources measured. CloudWatch is missing: the broker's watch adds it once it is used."""
        watches: Mapping[Source, object] = {"broker": self.queues, "ledger": self.ledger, "tables": self.tables}
        return tuple(source for source, watch in watches.items() if watch is not None)


class Monitor:
    """Measure repeatedly, and emit an event when a source becomes unavailable or available. For one thread."""

    def __init__(self, targets: MonitorTargets, *, clock: Clock, emit: Listener) -> None:
        self._targets = targets
        self._clock = clock
        self._emit = emit
        self._unavailable_since: dict[Source, float] = {}  # monotonic
        if targets.tables_unreadable is not None:
            emit(MonitorPollFailed(source="tables", error=targets.tables_unreadable))

    def measure(self) -> MonitorSample:
        """Return a new sample. Does not raise: the sample contains the errors."""
        at, measured, errors = self._clock.now(), list[Source](), dict[Source, str]()
        queues_read_at = self._clock.monotonic()
        broker = self._broker(measured, errors)
        has_settled = partial(self._has_settled, () if broker is None else broker.queues, queues_read_at)
        pipelines = self._pipelines(measured, errors, has_settled=has_settled)
        lags_seconds = self._publish_lags(pipelines, measured, errors)
        unpublished = self._unpublished(pipelines, lags_seconds)
        self._emit_changes(measured, errors)
        return MonitorSample(
            at=at,
            queues=() if broker is None else broker.queues,
            dead_letters=() if broker is None else broker.dead_letters,
            pipelines=pipelines,
            publish_lags_seconds=lags_seconds,
            batches_unpublished=unpublished,
            up={source: source not in errors for source in measured},
            errors=errors,
        )

    def _broker(self, measured: list[Source], errors: dict[Source, str]) -> BrokerSample | None:
        if self._targets.queues is None:
            return None
        measured.append("broker")
        found = _tried("broker", self._targets.queues.measure, errors)
        if found is None:
            return None
        if found.refused:
            errors["broker"] = "; ".join(found.refused)
        if found.asks_cloudwatch:
            measured.append("cloudwatch")
        if found.cloudwatch_error is not None:
            errors["cloudwatch"] = found.cloudwatch_error
        return found

    def _has_settled(self, queues: Sequence[QueueHealth], read_at: float, pipeline: str, seconds: float) -> bool:
        """Return True if no message is left in the pipeline's queue that was there ``seconds`` ago. In doubt, False.

        ``queues`` were read at ``read_at`` (monotonic) or later, so that the broker need not be called again.
        """
        before_seconds = seconds - (self._clock.monotonic() - read_at)
        queue = self._targets.queue_by_pipeline.get(pipeline)
        return before_seconds > 0 and any(has_left(one, seconds=before_seconds) for one in queues if one.queue == queue)

    def _pipelines(
        self, measured: list[Source], errors: dict[Source, str], *, has_settled: HasSettled
    ) -> Sequence[PipelineHealth]:
        ledger = self._targets.ledger
        if ledger is None:
            return ()
        measured.append("ledger")
        return _tried("ledger", partial(ledger.measure, has_settled=has_settled), errors) or ()

    def _publish_lags(
        self, pipelines: Sequence[PipelineHealth], measured: list[Source], errors: dict[Source, str]
    ) -> Mapping[str, float]:
        """Return the lag of each pipeline whose table could be read."""
        tables = self._targets.tables
        if tables is None or not pipelines:
            return {}
        measured.append("tables")
        found = {
            one.pipeline: _tried("tables", partial(tables.lag_seconds, one.pipeline, one.batches_committed), errors)
            for one in pipelines
        }
        return {pipeline: seconds for pipeline, seconds in found.items() if seconds is not None}

    def _unpublished(self, pipelines: Sequence[PipelineHealth], known: Iterable[str]) -> Mapping[str, int]:
        """Return the number of unpublished batches of each pipeline whose lag is known."""
        tables = self._targets.tables
        if tables is None:
            return {}
        committed = {one.pipeline: one.batches_committed for one in pipelines}
        return {pipeline: tables.unpublished(pipeline, committed[pipeline]) for pipeline in known}

    def _emit_changes(self, measured: Sequence[Source], errors: dict[Source, str]) -> None:
        now = self._clock.monotonic()
        for source in measured:
            if source in errors and source not in self._unavailable_since:
                self._unavailable_since[source] = now
                self._emit(MonitorPollFailed(source=source, error=errors[source]))
            elif source not in errors and source in self._unavailable_since:
                outage_seconds = now - self._unavailable_since.pop(source)
                self._emit(MonitorPollRecovered(source=source, outage_seconds=outage_seconds))


def monitor_targets(app: "App", *, clock: Clock) -> MonitorTargets:
    """Return the targets of an app.

    Raises `ConfigurationError` if there are none, for a broker that another process cannot reach, and for a queue that
    does not exist on a broker that does not create queues on use.
    """
    settings = app.settings
    if app.address is not None:
        check_shared(settings)
    names = sorted({*(service.queue_name for service in app.services), *settings.worker_queues})
    recorded = [service.name for service in app.services if needs_objects(service)]
    has_ledger = any(needs_ledger(service) for service in app.services)  # also if only idempotency keys use it
    if not names:
        raise ConfigurationError(
            "There is nothing to measure: the app has no handlers and no pipelines, and the settings name no queues."
        )
    check_queues(names, settings, clock=clock, waits=True)
    table_paths = {
        one.name: declared_table_paths(one.name, one.declaration.sink.address, settings) for one in app.pipelines
    }
    unreadable = _tables_unreadable(table_paths.values()) if table_paths else None

    def broker() -> "Broker | None":
        return app.broker if app.address is None or broker_exists(settings) else None

    def ledger() -> "Ledger | None":
        return app.ledger if ledger_exists(settings) else None

    return MonitorTargets(
        queue_names=tuple(names),
        pipeline_names=tuple(recorded),
        queues=QueueWatch(names, broker=broker, settings=settings, clock=clock),
        ledger=LedgerWatch(recorded, ledger=ledger, overdue_after_seconds=settings.objects_overdue_after, clock=clock)
        if has_ledger
        else None,
        tables=TableWatch(table_paths, ledger=ledger) if table_paths and unreadable is None else None,
        tables_unreadable=unreadable,
        queue_by_pipeline={service.name: service.queue_name for service in app.services},
    )


def _tried(source: Source, measure: Callable[[], Result], errors: dict[Source, str]) -> Result | None:
    """Return the measurement; None if it fails, with the error recorded in ``errors``."""
    try:
        return measure()
    except Exception as error:  # any error: the other values are still needed
        errors[source] = failure_of(error).summary
        return None


def _tables_unreadable(tables: Iterable[TablePaths]) -> str | None:
    """Return why tables cannot be read here, or None."""
    try:
        require_spark(*{table.scheme for table in tables})
    except ConfigurationError as error:
        return str(error)
    return None
