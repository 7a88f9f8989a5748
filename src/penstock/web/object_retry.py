"""Retry objects from the dashboard: first a plan, which changes nothing, then the action."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.errors import UsageError
from penstock.ledger.records import ObjectState
from penstock.operations.dead_letters.selection import opened_ledger
from penstock.operations.inspection import view
from penstock.operations.objects.readers import ingest_hint
from penstock.operations.objects.retry import RETRIED, RetryPlan, RetrySelection, plan, retry
from penstock.operations.status.sentences import counted_sentence, sentence
from penstock.web import action_pages
from penstock.web.actions import (
    ActionDescription,
    ActionProgress,
    ActionResult,
)
from penstock.web.context import DashboardContext, context_of
from penstock.web.dead_forms import count_in
from penstock.web.object_states import state_words
from penstock.web.rendering import render, texts_of, url
from penstock.web.security import action, audit_name, fields_of, form_of

PLAN_PAGE = "/objects/retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRequest:
    """The objects that a form selects: one by its address, or all in one state, perhaps by a part of their address."""

    address: str
    state: ObjectState
    text: str
    pipeline: str  # empty: all

    @property
    def selection(self) -> RetrySelection:
        return RetrySelection(
            uris=[self.address] if self.address else (), state=self.state, uri_contains=self.text or None
        )

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields in the address of its confirmation."""
        return {"address": self.address, "state": self.state.value, "q": self.text, "pipeline": self.pipeline}

    @property
    def facts(self) -> Sequence[tuple[str, str]]:
        """The filter, for people."""
        filter_ = [("State", self.state.value), ("Address contains", self.text)]
        given = [("Object", self.address)] if self.address else filter_
        return [(label, value) for label, value in [*given, ("Pipeline", self.pipeline)] if value]

    @property
    def key(self) -> str:
        """A text that requests for the same objects share."""
        return json.dumps(["retry", *self.fields.values()])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRetry:
    """A plan and its request."""

    request: RetryRequest
    plan: RetryPlan

    @property
    def count(self) -> int:
        return self.plan.objects.total()


def start_plan(request: Request) -> Response:
    """Start to count the objects that a retry would enqueue."""
    context, asked = context_of(request), _asked(request)
    described = ActionDescription(title=sentence("Plan of a retry"), facts=asked.facts, page=_page(request, asked))

    def run(progress: ActionProgress) -> ActionResult:
        with view(replace(context.scope, pipeline=asked.pipeline or context.scope.pipeline)) as seen:
            planned = plan(seen, asked.selection, stopped=progress.stopped, on_progress=progress.add)
        value = PlannedRetry(request=asked, plan=planned)
        return ActionResult(sentences=[], outcome="stopped" if progress.stopped() else "done", value=value)

    return action_pages.start_plan(request, PLAN_PAGE, described, run)


def show_plan(request: Request) -> Response:
    """Show a plan: its progress, then its numbers and the form that confirms it."""
    found = context_of(request).plans.find(request.query_params.get("id", ""))
    planned = None if found is None else found.value
    return render(
        request,
        "object_retry.html",
        status=404 if found is None else 200,
        progress=found,
        planned=planned if isinstance(planned, PlannedRetry) else None,
        words=state_words(texts_of(request)),
    )


def cancel_plan(request: Request) -> Response:
    """Stop counting."""
    return action_pages.cancel_plan(request, PLAN_PAGE)


def start_retry(request: Request) -> Response:
    """Start the retry that a plan confirms."""
    context, asked, who = context_of(request), _asked(request), audit_name(request)
    planned = _planned_count(request)
    described = ActionDescription(
        title=counted_sentence(planned, "Retry of {count} object", "Retry of {count} objects"),
        facts=asked.facts,
        total=planned,
        page=_page(request, asked),
        key=asked.key,
    )
    return action_pages.start_action(
        request, "retry", described, lambda progress: _retry(context, asked, planned, who, progress)
    )


def _retry(
    context: DashboardContext, asked: RetryRequest, count: int, who: str, progress: ActionProgress
) -> ActionResult:
    """Enqueue the objects that the filter selects now, and no more than the plan counted."""
    scope = replace(context.scope, pipeline=asked.pipeline or context.scope.pipeline)
    selection = replace(asked.selection, limit=count)
    with view(scope, make=True) as seen, closing(opened_ledger(seen)) as ledger:
        planned = plan(seen, selection, stopped=progress.stopped)
        sent = retry(
            seen,
            selection,
            planned,
            ledger=ledger,
            stopped=progress.stopped,
            on_progress=progress.add,
            clock=context.clock,
            who=who,
        )
        hint = ingest_hint(seen)
    sentences = [
        counted_sentence(sent.total(), "{count} object was enqueued again.", "{count} objects were enqueued again.")
    ]
    sentences += [sentence("To {queue}: {count}.", queue=queue, count=number) for queue, number in sent.items()]
    if hint is not None and sent.total():
        sentences.append(
            sentence("No worker runs: the next ingest of this table reads them. Give it its options again.")
        )
    return ActionResult(sentences=sentences, outcome="stopped" if progress.stopped() else "done")


def _asked(request: Request) -> RetryRequest:
    """Return what a form asks for. Raises `UsageError` for a malformed field."""
    fields = fields_of(request)
    given = {name: str(fields.get(name, "")) for name in ("address", "state", "q", "pipeline")}
    try:
        state = ObjectState(given["state"] or ObjectState.DEAD)
    except ValueError:
        raise UsageError(f"There is no state {given['state']}; the states: {', '.join(ObjectState)}.") from None
    if state not in RETRIED:
        raise UsageError(f"Objects that are {state.value} need no retry; it is for: {', '.join(sorted(RETRIED))}.")
    return RetryRequest(address=given["address"], state=state, text=given["q"].strip(), pipeline=given["pipeline"])


def _planned_count(request: Request) -> int:
    count = count_in(form_of(request), "planned")
    if not count:
        raise UsageError("The form does not say how many objects were planned: make a plan first.")
    return count


def _page(request: Request, asked: RetryRequest) -> str:
    if asked.address:
        return url(request, "/object", address=asked.address)
    return url(request, "/objects", state=asked.state.value, q=asked.text or None, pipeline=asked.pipeline or None)


ROUTES: Sequence[BaseRoute] = [
    Route(PLAN_PAGE, show_plan),
    action(PLAN_PAGE, start_plan),
    action("/objects/retry/cancel", cancel_plan),
    action("/objects/retry/start", start_retry),
]
