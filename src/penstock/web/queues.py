"""The page of one queue: why it is slow, its charts, its workers, leases, dead letters and settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.app.brokers import capabilities_of
from penstock.app.flows import UNKNOWN
from penstock.app.history.chart import Chart
from penstock.app.history.points import SeriesKind
from penstock.app.history.ring import HistoryRange
from penstock.app.queues import QueueStatus, check_known
from penstock.app.registry import WorkerRecord
from penstock.app.scope import Scope
from penstock.config import shown
from penstock.errors import TemporaryError, UsageError
from penstock.messaging.broker import listed_name, names_dead_letters
from penstock.operations.pauses import set_paused
from penstock.operations.status.model import Status
from penstock.operations.status.sentences import span
from penstock.operations.status.status import lagging_after
from penstock.operations.status.watch import StatusFrame
from penstock.operations.status.why import QueueFigures, reasons_of
from penstock.web.context import DashboardContext, context_of
from penstock.web.queue_details import QueueDetails
from penstock.web.rendering import render, url
from penstock.web.security import action, audit_name, fields_of

HELD_MAX = 100  # leases on the page
LIVE = "live"  # the part of the page that is fetched again for each reading
RANGES: Mapping[HistoryRange, str] = {
    HistoryRange.HOUR: "1 hour",
    HistoryRange.DAY: "24 hours",
    HistoryRange.WEEKS: "14 days",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPart:
    """One chart of the page: its title, its values by name with their labels, and whether they are seconds."""

    title: str
    values: Mapping[str, str]
    unit: str  # "", "s" for durations, "/s" for rates


CHARTS: Sequence[ChartPart] = (
    ChartPart(title="Messages", values={"visible": "visible", "in_flight": "in flight", "delayed": "delayed"}, unit=""),
    ChartPart(
        title="Age of the oldest visible message", values={"oldest_visible_age_seconds": "oldest visible"}, unit="s"
    ),
    ChartPart(
        title="Throughput",
        values={"arrived_per_second": "in/s", "settled_per_second": "out/s"},
        unit="/s",
    ),
    ChartPart(title="Dead letters", values={"dead_letters": "dead letters"}, unit=""),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """A message of the queue that a worker holds."""

    worker: str
    message_id: str
    held_seconds: float


def show(request: Request) -> Response:
    """Show one queue."""
    context, name = context_of(request), request.query_params.get("name", "")
    if names_dead_letters(listed_name(name)):
        return RedirectResponse(url(request, "/dead", queue=name), status_code=303)
    range_ = _range(request)
    frame = context.sampler.frame()
    queue = frame.queue(name)
    details = _details(context, name) if queue is not None else QueueDetails()
    is_known = queue is not None or frame.status is None
    return render(
        request,
        "queue.html",
        status=200 if is_known else 404,
        name=name,
        frame=frame,
        queue=queue,
        flow=frame.flows.get(name, UNKNOWN),
        details=details,
        reasons=[] if queue is None or frame.status is None else reasons_of(figures_of(context, frame, queue, details)),
        records=_serving(frame.status, name),
        leases=leases_of(_serving(frame.status, name), name, at=context.clock.now()),
        leases_max=HELD_MAX,
        handlers=sorted(handler for handler, served in context.scope.served.items() if served == name),
        settings=settings_of(context.scope, name),
        lagging_after=lagging_after(context.settings, [name])[name],
        can_pause=capabilities_of(context.settings).pausable,
        is_unrecorded="unrecorded" in request.query_params,
        range=range_,
        ranges=RANGES,
        parts=CHARTS,
        chart=None if _is_live(request) else _chart(context, SeriesKind.QUEUE, name, range_),
        now=context.clock.now(),
    )


def history(request: Request) -> JSONResponse:
    """Return the numbers of the charts of a queue or a pipeline."""
    asked = request.query_params
    kind = SeriesKind.PIPELINE if "pipeline" in asked else SeriesKind.QUEUE
    name = asked.get("pipeline", asked.get("queue", ""))
    chart = _chart(context_of(request), kind, name, _range(request))
    return JSONResponse({"times": chart.times, "values": chart.values, "error": chart.error})


def pause(request: Request) -> Response:
    """Pause a queue."""
    return _set_paused(request, paused=True)


def resume(request: Request) -> Response:
    """Resume a queue."""
    return _set_paused(request, paused=False)


def _set_paused(request: Request, *, paused: bool) -> Response:
    context, name = context_of(request), str(fields_of(request).get("name", ""))
    with context.view() as seen:
        check_known(seen.broker, name)  # a page pauses what it shows; the command also queues to come
    done = set_paused(context.settings, name, paused=paused, who=audit_name(request))
    context.sampler.refresh()
    unrecorded = None if done.unrecorded is None else 1
    return RedirectResponse(url(request, "/queue", name=name, unrecorded=unrecorded), status_code=303)


def figures_of(
    context: DashboardContext, frame: StatusFrame, queue: QueueStatus, details: QueueDetails
) -> QueueFigures:
    """Return the figures from which the reasons follow."""
    status = frame.status
    return QueueFigures(
        queue=queue,
        at=context.clock.now(),
        flow=frame.flows.get(queue.queue, UNKNOWN),
        records=_serving(status, queue.queue),
        workers_seen=status is not None and status.workers_seen,
        lagging_after_seconds=lagging_after(context.settings, [queue.queue])[queue.queue],
        groups=details.groups,
        dead_letters_before=details.dead_letters_before,
        timeouts=context.scope.timeouts,
        concurrency=context.scope.concurrencies.get(queue.queue),
    )


def leases_of(records: Sequence[WorkerRecord], queue: str, *, at: float) -> Sequence[LeaseRow]:
    """Return the messages of the queue that these workers hold, the one held for longest first."""
    found = [
        LeaseRow(worker=record.worker, message_id=held.message_id, held_seconds=max(at - held.since, 0.0))
        for record in records
        for held in record.held
        if held.queue == queue
    ]
    return sorted(found, key=lambda one: -one.held_seconds)[:HELD_MAX]


def settings_of(scope: Scope, queue: str) -> Mapping[str, object]:
    """Return the settings that decide how fast this queue is processed, by name, as they are shown to people."""
    settings = scope.settings
    replays = settings.dead_letters_replay_queues.get(queue)
    fields = {
        "worker.concurrency": "worker_concurrency",
        "worker.processes": "worker_processes",
        "worker.max_fetch": "worker_max_fetch",
        "worker.lease": "worker_lease",
        "worker.breaker_failures": "worker_breaker_failures",
        "dead_letters.replay": "dead_letters_replay",
    }
    found = _options_of(scope, queue)
    found |= {name: shown(field, getattr(settings, field)) for name, field in fields.items()}
    if queue in settings.worker_queues:
        found["worker.queues"] = settings.worker_queues[queue]
    if replays is not None:
        found["dead_letters.replay_queues"] = shown("dead_letters_replay_queues", replays)
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in found.items()}


def _options_of(scope: Scope, queue: str) -> dict[str, object]:
    """Return the options of the queue's handler that limit it, by name."""
    found: dict[str, object] = {}
    if queue in scope.concurrencies:
        found["concurrency"] = scope.concurrencies[queue]
    if queue in scope.timeouts:
        found["timeout"] = span(scope.timeouts[queue])
    return found


def _serving(status: Status | None, queue: str) -> Sequence[WorkerRecord]:
    return [] if status is None else [record for record in status.records if queue in record.queues]


def _details(context: DashboardContext, queue: str) -> QueueDetails:
    try:
        with context.view() as seen:
            return context.queue_details.read(seen, queue)
    except TemporaryError as error:  # a view of a table opens its ledger; the rest of the page needs none
        return QueueDetails(error=str(error))


def _chart(context: DashboardContext, kind: SeriesKind, name: str, range_: HistoryRange) -> Chart:
    return context.charts.chart(kind, name, range_, at=context.clock.now())


def _range(request: Request) -> HistoryRange:
    try:
        return HistoryRange(request.query_params.get("range", HistoryRange.HOUR))
    except ValueError:
        raise UsageError(f"There is no such range; the ranges: {', '.join(HistoryRange)}.") from None


def _is_live(request: Request) -> bool:
    """Return True if only the live part of the page is wanted, which has no charts."""
    return request.headers.get("hx-target") == LIVE


ROUTES: Sequence[BaseRoute] = [
    Route("/queue", show),
    Route("/history.json", history),
    action("/queue/pause", pause),
    action("/queue/resume", resume),
]
