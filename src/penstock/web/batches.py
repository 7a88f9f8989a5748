"""Batches: those that were committed, the attempts that run now, and one batch with its stages, files and objects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import BaseRoute, Route

from penstock.errors import UsageError
from penstock.ledger.batch_lists import BatchSummary
from penstock.ledger.records import replaced_objects
from penstock.operations.status.model import PipelineStatus
from penstock.operations.status.status import DETAILS_SECONDS
from penstock.operations.status.watch import StatusFrame
from penstock.operations.tables.batches import BatchDetails, details_of
from penstock.operations.tables.running import RunningAttempt, running_attempts
from penstock.web.context import DashboardContext, context_of
from penstock.web.object_states import statuses
from penstock.web.rendering import render, url

PAGE_BATCHES = 100
BATCHES_OF_EACH = 10  # of each pipeline, if there are several
RUNNING_SHOWN = 10
OBJECTS_SHOWN = 100
FILES_SHOWN = 100
BAR_WIDTH = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineBatches:
    """The newest batches of one pipeline, and its running attempts."""

    pipeline: str
    status: PipelineStatus | None  # as of the newest reading
    visibility: "Visibility"
    batches: Sequence[BatchSummary]
    running: Sequence[RunningAttempt]
    running_more: int  # running attempts that are not shown
    next_address: str | None

    def is_visible(self, batch: BatchSummary) -> bool | None:
        """Return True if the table shows the batch; None if that is not known now."""
        return self.visibility.of(batch.seq, batch.committed_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """The batches that a pipeline's table shows, as of the newest reading."""

    status: PipelineStatus | None  # None: there is no reading, or the place of the table is unknown
    read_at: float

    def of(self, seq: int, committed_at: float) -> bool | None:
        """Return True if the table shows this batch; None if that is not known now.

        A reading remembers for a while what it read from the table, so it knows nothing of the newest batches.
        """
        if self.status is None or self.status.batches_unpublished is None:
            return None
        if committed_at > self.read_at - 2 * DETAILS_SECONDS:
            return None
        return seq <= self.status.batches_committed - self.status.batches_unpublished


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBar:
    """One stage of a batch, and its bar in the picture of all stages."""

    name: str
    seconds: float
    x: int
    width: int


def show_list(request: Request) -> HTMLResponse:
    """Show the newest batches of one pipeline, or of each."""
    context, chosen = context_of(request), request.query_params.get("pipeline", "")
    before = _number(request, "before")
    with context.view() as seen:
        names = seen.pipelines()
        if chosen and chosen not in names:
            raise UsageError(f"The ledger knows no pipeline {chosen}; its pipelines: {', '.join(names) or 'none'}.")
        meant = [chosen] if chosen else names
        limit = PAGE_BATCHES if len(meant) == 1 else BATCHES_OF_EACH
        frame = context.sampler.frame()
        status = {one.pipeline: one for one in statuses(frame, meant)}
        shown = []
        for name in meant:
            batches = seen.ledger.batch_lists.newest(name, limit=limit + 1, before_seq=before)
            running = running_attempts(seen, name, batches) if before is None else ()
            more = (
                url(request, "/batches", pipeline=name, before=batches[limit - 1].seq) if len(batches) > limit else None
            )
            shown.append(
                PipelineBatches(
                    pipeline=name,
                    status=status.get(name),
                    visibility=_visibility(context, frame, name),
                    batches=batches[:limit],
                    running=running[:RUNNING_SHOWN],
                    running_more=max(0, len(running) - RUNNING_SHOWN),
                    next_address=more,
                )
            )
    return render(
        request, "batches.html", shown=shown, chosen=chosen, names=names, before=before, web_address=web_address
    )


def show_batch(request: Request) -> HTMLResponse:
    """Show one batch. Its tables' logs are read only if the query has ``tables``: that takes long for big tables."""
    context, pipeline = context_of(request), request.query_params.get("pipeline", "")
    seq, has_tables = _number(request, "seq"), "tables" in request.query_params
    if seq is None:
        raise UsageError("Which batch? The address of this page has to name its pipeline and its number.")
    with context.view() as seen:
        if pipeline not in seen.pipelines():
            raise UsageError(f"The ledger knows no pipeline {pipeline}.")
        found = details_of(seen, seq, objects_max=OBJECTS_SHOWN, pipeline=pipeline, tables=has_tables)
    visible = _visibility(context, context.sampler.frame(), pipeline).of(seq, found.batch.committed_at)
    if has_tables and found.tables:
        visible = None if any(one.visible is None for one in found.tables) else all(one.visible for one in found.tables)
    replaced = replaced_objects(found.batch.record.replaces)
    return render(
        request,
        "batch.html",
        found=found,
        batch=found.batch,
        record=found.batch.record,
        bars=_bars(found),
        bar_width=BAR_WIDTH,
        replaced=replaced[:OBJECTS_SHOWN],
        replaced_more=max(0, len(replaced) - OBJECTS_SHOWN),
        visible=visible,
        has_tables=has_tables,
        files_shown=FILES_SHOWN,
        tables_address=url(request, "/batch", pipeline=pipeline, seq=seq, tables=1),
        web_address=web_address,
        knows_table=pipeline in context.scope.tables,
    )


def _visibility(context: DashboardContext, frame: StatusFrame, pipeline: str) -> Visibility:
    status = next(iter(statuses(frame, [pipeline])), None) if pipeline in context.scope.tables else None
    return Visibility(status=status, read_at=frame.at)


def web_address(address: str | None) -> str | None:
    """Return an address that a link may have: the records are written by other processes."""
    return address if address is not None and address.startswith(("http://", "https://")) else None


def _bars(found: BatchDetails) -> Sequence[StageBar]:
    """Return a bar for each stage, one after the other, in a picture of `BAR_WIDTH`."""
    stages: Mapping[str, float] = found.batch.record.stage_seconds
    total = max(sum(stages.values()), 1e-9)
    bars: list[StageBar] = []
    before = 0.0
    for name, seconds in stages.items():
        x, end = round(before / total * BAR_WIDTH), round((before + seconds) / total * BAR_WIDTH)
        bars.append(StageBar(name=name, seconds=seconds, x=x, width=max(1, end - x)))
        before += seconds
    return bars


def _number(request: Request, name: str) -> int | None:
    """Return a positive number of the query; None if it has none. Raises `UsageError` for anything else."""
    given = request.query_params.get(name)
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or not 0 < int(given[:19]) < 1 << 62:
        raise UsageError(f"{name} is {given[:40]!r}, and has to be the number of a batch.")
    return int(given[:19])


ROUTES: Sequence[BaseRoute] = [Route("/batches", show_list), Route("/batch", show_batch)]
