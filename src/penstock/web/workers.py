"""The pages about workers: those of this host, and those that only the ledger's claims name."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.app.registry import SERVING, WorkerRecord, is_local
from penstock.errors import TemporaryError, UserError
from penstock.ledger.holders import ClaimingWorker, OpenClaim
from penstock.operations.inspection import ScopeView
from penstock.operations.workers.draining import drain_worker
from penstock.operations.workers.stuck import StuckWorker, stuck_signs
from penstock.web.context import context_of
from penstock.web.rendering import render, url
from penstock.web.security import action, audit_name, fields_of

WORKERS_MAX = 200  # on the page
CLAIMS_MAX = 100  # of each kind, of one worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A worker of this host. Ages are seconds by its clock."""

    record: WorkerRecord
    signs: Sequence[StuckWorker]
    up_seconds: float
    beat_age_seconds: float

    @property
    def can_drain(self) -> bool:
        """Return True if this process can ask it to drain, and it does not yet."""
        return self.record.state == SERVING and is_local(self.record)

    @property
    def unserved(self) -> dict[str, str]:
        """The reasons by queue why it does not serve a queue at the moment."""
        return {**self.record.unserved, **self.record.paused}


def show_all(request: Request) -> HTMLResponse:
    """List the workers."""
    context = context_of(request)
    with context.view() as seen:
        records, silent = seen.workers.records(), seen.workers.silent()
        holders, unavailable = _holders(seen)
    known = {*silent, *(record.worker for record in records)}
    elsewhere = [holder for holder in holders if holder.worker not in known]
    return render(
        request,
        "workers.html",
        rows=_stuck_first([_row(request, record) for record in records])[:WORKERS_MAX],
        silent=silent[:WORKERS_MAX],
        more=max(len(records) - WORKERS_MAX, 0) + max(len(silent) - WORKERS_MAX, 0),
        elsewhere=elsewhere[:WORKERS_MAX],
        more_elsewhere=max(len(elsewhere) - WORKERS_MAX, 0),
        unavailable=unavailable,
        now=context.clock.now(),
    )


def show_one(request: Request) -> HTMLResponse:
    """Show one worker: its state, the messages and claims that it holds, and signs that it is stuck."""
    context = context_of(request)
    worker = request.query_params.get("id", "")
    with context.view() as seen:
        record = next((one for one in seen.workers.records() if one.worker == worker), None)
        is_silent = record is None and worker in seen.workers.silent()
        claims, unavailable = _claims(seen, worker)
    return render(
        request,
        "worker.html",
        worker=worker,
        row=None if record is None else _row(request, record),
        is_silent=is_silent,
        is_asked="asked" in request.query_params,
        claims=claims,
        claims_max=CLAIMS_MAX,
        unavailable=unavailable,
        now=context.clock.now(),
    )


def drain(request: Request) -> Response:
    """Ask a worker to drain, and show it."""
    context = context_of(request)
    worker = str(fields_of(request).get("worker", ""))
    with context.view() as seen:
        try:
            drain_worker(seen, worker, who=audit_name(request))
        except UserError as error:  # without the view's connections being closed
            refusal: UserError | None = error
        else:
            refusal = None
    if refusal is not None:
        raise refusal
    context.sampler.refresh()
    return RedirectResponse(url(request, "/worker", id=worker, asked=1), status_code=303)


def _row(request: Request, record: WorkerRecord) -> WorkerRow:
    context = context_of(request)
    now = context.clock.now()
    return WorkerRow(
        record=record,
        signs=stuck_signs(record, now=now, timeouts=context.scope.timeouts),
        up_seconds=max(now - record.started_at, 0.0),
        beat_age_seconds=max(now - record.beat_at, 0.0),
    )


def _stuck_first(rows: Sequence[WorkerRow]) -> Sequence[WorkerRow]:
    return sorted(rows, key=lambda row: not row.signs)


def _holders(seen: ScopeView) -> tuple[Sequence[ClaimingWorker], str | None]:
    """Return the holders of claims; or none, and why, while the ledger is unavailable."""
    try:
        return seen.ledger.holders.all(), None
    except TemporaryError as error:
        return (), str(error)


def _claims(seen: ScopeView, worker: str) -> tuple[Sequence[OpenClaim], str | None]:
    try:
        return seen.ledger.holders.claims_of(worker, limit=CLAIMS_MAX), None
    except TemporaryError as error:
        return (), str(error)


ROUTES: Sequence[BaseRoute] = [
    Route("/workers", show_all),
    Route("/worker", show_one),
    action("/workers/drain", drain),
]
