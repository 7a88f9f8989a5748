"""The latest reconcile of each pipeline: objects that exist in a source and were never processed."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import BaseRoute, Route

from penstock.app.scope import Scope
from penstock.ledger.pipelines import Reconciliation
from penstock.web.context import context_of
from penstock.web.object_states import statuses
from penstock.web.rendering import render

_APP_OPTIONS = frozenset({"--app", "--data-dir"})  # of a scope's options: those that `penstock reconcile` has as well


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileSummary:
    """The latest reconcile of one pipeline."""

    pipeline: str
    last: Reconciliation | None  # None: there was none
    still_missing: int | None  # without those whose messages have left the queue since; None: not known now
    command: str

    def covers(self, address: str) -> bool:
        """Return True if the source that was compared holds this address."""
        source = "" if self.last is None else self.last.source
        return bool(source) and address.removeprefix("file://").startswith(source.removeprefix("file://"))


def show(request: Request) -> HTMLResponse:
    """Show the latest reconcile of each pipeline, and how to run one."""
    settings = context_of(request).settings
    return render(
        request,
        "reconcile.html",
        summaries=summaries_of(request),
        every_seconds=settings.objects_reconcile_every,
        older_than_seconds=settings.objects_reconcile_older_than,
        is_table=context_of(request).scope.table is not None,
    )


def summaries_of(request: Request) -> Sequence[ReconcileSummary]:
    """Return the latest reconcile of each pipeline of the dashboard."""
    context = context_of(request)
    with context.view() as seen:
        names = seen.pipelines()
        last = {one.pipeline: one for one in seen.ledger.reconciliations()}
    missing = {one.pipeline: one.objects_missing for one in statuses(context.sampler.frame(), names)}
    return [
        ReconcileSummary(
            pipeline=name,
            last=last.get(name),
            still_missing=missing.get(name) if name in last else None,
            command=_command(context.scope, name, last.get(name)),
        )
        for name in names
    ]


def _command(scope: Scope, pipeline: str, last: Reconciliation | None) -> str:
    if scope.table is not None:
        source = "SOURCE" if last is None else shlex.quote(last.source)
        return f"penstock reconcile --table {shlex.quote(str(scope.table.table))} --source {source}"
    words = shlex.split(scope.options)
    given = [
        f"{name} {shlex.quote(value)}"
        for name, value in zip(words[::2], words[1::2], strict=True)
        if name in _APP_OPTIONS
    ]
    app = [] if any(one.startswith("--app ") for one in given) else ["APP"]
    return " ".join(["penstock reconcile", *given, *app, shlex.quote(pipeline)])


ROUTES: Sequence[BaseRoute] = [Route("/reconcile", show)]
