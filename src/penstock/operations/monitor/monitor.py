"""Measure everything that an app uses: queues, dead letters, ledger and tables.

Read-only. If something cannot be measured, its values are absent, and the rest is still measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from penstock.app.backends import check_queues
from penstock.app.paths import declared_places
from penstock.app.queues import check_shared
from penstock.app.scope import is_there
from penstock.app.service import needs_ledger, needs_objects
from penstock.errors import ConfigurationError
from penstock.events import Listener, LookFailed, LookRecovered
from penstock.messaging.clock import Clock
from penstock.messaging.failure import failure_of
from penstock.operations.monitor.ledger import LedgerWatch, TableWatch
from penstock.operations.monitor.look import MonitorSample, PipelineSample, Source
from penstock.operations.monitor.queues import BrokerSample, QueueWatch
from penstock.pipeline.extra import require_spark

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.ledger import Ledger
    from penstock.messaging.broker import Broker

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorTargets:
    """The monitor's targets and their watches; None if there is nothing to measure."""

    queue_names: tuple[str, ...]
    pipeline_names: tuple[str, ...]
    queues: QueueWatch | None
    ledger: LedgerWatch | None
    tables: TableWatch | None
    unseen: str | None = None  # why tables cannot be read here

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources measured. CloudWatch is missing: the broker's watch adds it once it is used."""
        watches: Mapping[Source, object] = {"broker": self.queues, "ledger": self.ledger, "tables": self.tables}
        return tuple(source for source, watch in watches.items() if watch is not None)


class Monitor:
    """Measure repeatedly, and emit an event when a source becomes unavailable or available. For one thread."""

    def __init__(self, watches: MonitorTargets, *, clock: Clock, tell: Listener) -> None:
        self._watches = watches
        self._clock = clock
        self._tell = tell
        self._away: dict[Source, float] = {}  # unavailable since (monotonic)
        if watches.unseen is not None:
            tell(LookFailed(source="tables", error=watches.unseen))

    def look(self) -> MonitorSample:
        """Return a new sample. Does not raise: the sample contains the errors."""
        at, asked, errors = self._clock.now(), list[Source](), dict[Source, str]()
        broker = self._broker(asked, errors)
        pipelines = self._pipelines(asked, errors)
        self._tell_changes(asked, errors)
        return MonitorSample(
            at=at,
            queues=() if broker is None else broker.queues,
            dead_letters=() if broker is None else broker.dead_letters,
            pipelines=pipelines,
            up={source: source not in errors for source in asked},
            errors=errors,
        )

    def _broker(self, asked: list[Source], errors: dict[Source, str]) -> BrokerSample | None:
        if self._watches.queues is None:
            return None
        asked.append("broker")
        found = _tried("broker", self._watches.queues.look, errors)
        if found is None:
            return None
        if found.refused:
            errors["broker"] = "; ".join(found.refused)
        if found.asks_cloudwatch:
            asked.append("cloudwatch")
        if found.cloudwatch_error is not None:
            errors["cloudwatch"] = found.cloudwatch_error
        return found

    def _pipelines(self, asked: list[Source], errors: dict[Source, str]) -> Sequence[PipelineSample]:
        watches = self._watches
        if watches.ledger is None:
            return ()
        asked.append("ledger")
        found = _tried("ledger", watches.ledger.look, errors)
        if not found or watches.tables is None:
            return found or ()
        asked.append("tables")
        return [self._with_lag(one, watches.tables, errors) for one in found]

    def _with_lag(self, look: PipelineSample, tables: TableWatch, errors: dict[Source, str]) -> PipelineSample:
        lag = _tried("tables", lambda: tables.lag_seconds(look), errors)
        return replace(look, commit_to_publish_lag_seconds=lag)

    def _tell_changes(self, asked: Sequence[Source], errors: dict[Source, str]) -> None:
        now = self._clock.monotonic()
        for source in asked:
            if source in errors and source not in self._away:
                self._away[source] = now
                self._tell(LookFailed(source=source, error=errors[source]))
            elif source not in errors and source in self._away:
                self._tell(LookRecovered(source=source, away_seconds=now - self._away.pop(source)))


def watches_of(app: "App", *, clock: Clock) -> MonitorTargets:
    """Return the targets of an app.

    Raises `ConfigurationError` if there are none, for a broker that another process cannot reach, and for a queue that
    does not exist on a broker that does not create queues on use.
    """
    settings = app.settings
    if app.address is not None:
        check_shared(settings)
    names = sorted({*(service.queue_name for service in app.services), *settings.queues})
    recorded = [service.name for service in app.services if needs_objects(service)]
    has_ledger = any(needs_ledger(service) for service in app.services)  # also if only idempotency keys use it
    if not names:
        raise ConfigurationError(
            "There is nothing to look at: the app has no handlers and no pipelines, and the settings name no queues."
        )
    check_queues(names, settings, clock=clock, waits=True)
    places = {one.name: declared_places(one.name, one.declaration.sink.table, settings) for one in app.pipelines}
    unseen = _unseen() if places else None

    def broker() -> "Broker | None":
        return app.broker if app.address is None or is_there(settings.broker) else None

    def ledger() -> "Ledger | None":
        return app.ledger if is_there(settings.ledger) else None

    return MonitorTargets(
        queue_names=tuple(names),
        pipeline_names=tuple(recorded),
        queues=QueueWatch(names, broker=broker, settings=settings, clock=clock),
        ledger=LedgerWatch(recorded, ledger=ledger, overdue_after_seconds=settings.overdue_after_seconds, clock=clock)
        if has_ledger
        else None,
        tables=TableWatch(places, ledger=ledger) if places and unseen is None else None,
        unseen=unseen,
    )


def _tried(source: Source, look: Callable[[], Answer], errors: dict[Source, str]) -> Answer | None:
    """Return the measurement; None if it fails, with the error recorded in ``errors``."""
    try:
        return look()
    except Exception as error:  # any error: the other values are still needed
        errors[source] = failure_of(error).summary
        return None


def _unseen() -> str | None:
    """Return why tables cannot be read here, or None."""
    try:
        require_spark()
    except ConfigurationError as error:
        return str(error)
    return None
