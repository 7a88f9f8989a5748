"""Replay and purge dead letters from the dashboard: first a plan, which changes nothing, then the action.

A plan counts what the filter matches now. Its confirmation carries the filter, the options and that number. The action
applies exactly this filter to the dead letters of its own time, and reports a different number.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.app.kill import killing_probe
from penstock.errors import TemporaryError, UsageError, UserError
from penstock.operations.dead_letters.actions import ReplayOperation, purge
from penstock.operations.dead_letters.selection import (
    DeadLetterPlan,
    DeadLetterSelection,
    check_destination,
    opened_ledger,
    plan,
    selected_queues,
)
from penstock.operations.inspection import view
from penstock.operations.queued_messages import known_queue
from penstock.operations.status.sentences import Sentence, counted_sentence, sentence
from penstock.web import action_pages
from penstock.web.actions import (
    ActionDescription,
    ActionFunction,
    ActionOutcome,
    ActionProgress,
    ActionResult,
)
from penstock.web.context import DashboardContext, context_of
from penstock.web.dead import group_in, is_browsable, shown_in
from penstock.web.dead_forms import (
    FILTERS,
    OPTIONS,
    DeadLetterQuery,
    Fields,
    ReplayQuery,
    count_in,
    dead_letter_query,
    replay_query,
)
from penstock.web.dead_results import purge_sentences, replay_sentences
from penstock.web.rendering import render, url
from penstock.web.security import action, audit_name, fields_of, form_of

PLAN_PAGE = "/dead/plan"
GROUPS_SHOWN = 10
FLOWS_SHOWN = 100

Goal = Literal["replay", "purge"]
_OUTCOMES: Mapping[str, ActionOutcome] = {
    "done": "done",
    "interrupted": "stopped",
    "canary died": "failed",
    "canary unknown": "failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRequest:
    """The replay or purge that a form asks for."""

    goal: Goal
    query: DeadLetterQuery
    replay: ReplayQuery
    single: bool = False  # one dead letter, from its own page
    group_name: str | None = None  # of the group in the filter, without secrets; None: there is none, or it is unknown

    @property
    def facts(self) -> Sequence[tuple[str, str]]:
        """The filter and the options, for people."""
        given = {**self.query.given, **(self.replay.given if self.goal == "replay" else {})}
        if self.group_name is not None:
            given["group"] = self.group_name
        return [(label, given[name]) for name, label in {**FILTERS, **OPTIONS}.items() if name in given]

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields in the address of its confirmation."""
        return {"goal": self.goal, **self.query.given, **self.replay.given}

    @property
    def selection(self) -> DeadLetterSelection:
        """The selection, with the name of its group for the audit log."""
        return replace(self.query.selection, group_name=self.group_name)

    @property
    def key(self) -> str:
        """A text that requests with the same goal and filter share."""
        return json.dumps([self.goal, self.query.selection.details], sort_keys=True, default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAction:
    """A plan and its request."""

    request: DeadLetterRequest
    plan: DeadLetterPlan

    @property
    def flows(self) -> Sequence[tuple[int, str, str | None]]:
        """Number, DLQ and destination, largest first; the destination is None if it is unknown."""
        flows = [(count, source, to) for (source, to), count in self.plan.by_queue.items()]
        return sorted(flows, key=lambda flow: -flow[0])[:FLOWS_SHOWN]

    @property
    def ids_missing(self) -> Sequence[str]:
        """The ids of the filter that no dead letter has."""
        return sorted(self.request.query.selection.wanted.ids - self.plan.ids_met)

    @property
    def count(self) -> int:
        """The number of messages that the action would change."""
        kept = self.plan.without_origin if self.request.goal == "replay" else 0
        return self.plan.dead_letters - kept


def start_plan(request: Request) -> Response:
    """Start to count what an action would change."""
    context = context_of(request)
    asked = _asked(request)
    _check_queues(context, asked)
    page = url(request, "/dead", **asked.query.given)
    described = ActionDescription(title=sentence("Plan"), facts=asked.facts, page=page)

    def run(progress: ActionProgress) -> ActionResult:
        with context.counting.awaited(progress.stopped), context.view() as seen:
            if asked.replay.options.to is not None:
                check_destination(seen, asked.replay.options.to, option="as the destination")
            planned = plan(
                seen,
                asked.query.selection,
                to=asked.replay.options.to,
                goes=asked.goal == "replay",
                clock=context.clock,
                stopped=progress.stopped,
                on_progress=progress.add,
            )
        outcome: ActionOutcome = "stopped" if progress.stopped() else "done"
        return ActionResult(sentences=[], outcome=outcome, value=PlannedAction(request=asked, plan=planned))

    return action_pages.start_plan(request, PLAN_PAGE, described, run)


def show_plan(request: Request) -> Response:
    """Show a plan: its progress, then its numbers and the form that confirms it."""
    return _plan_page(request, request.query_params.get("id", ""))


def cancel_plan(request: Request) -> Response:
    """Stop counting."""
    return action_pages.cancel_plan(request, PLAN_PAGE)


def start_replay(request: Request) -> Response:
    """Start the replay that a plan or the page of one dead letter confirms."""
    asked = _asked(request, goal="replay")
    planned = _planned_count(request)
    context, who = context_of(request), audit_name(request)
    _check_queues(context, asked)
    if asked.replay.options.to is not None:
        with context.view() as seen:
            check_destination(seen, asked.replay.options.to, option="as the destination")
    title = counted_sentence(planned, "Replay of {count} dead letter", "Replay of {count} dead letters")
    return _start(request, asked, planned, title, lambda progress: _replay(context, asked, planned, who, progress))


def start_purge(request: Request) -> Response:
    """Start the purge that a plan confirms, if the number was typed."""
    asked = _asked(request, goal="purge")
    planned = _planned_count(request)
    context, who = context_of(request), audit_name(request)
    _check_queues(context, asked)
    if _typed(request) != planned:
        refusal = sentence("The number that was typed is not the number of dead letters. Nothing was deleted.")
        return _plan_page(request, str(form_of(request).get("plan", "")), refusal=refusal)
    title = counted_sentence(planned, "Purge of {count} dead letter", "Purge of {count} dead letters")
    return _start(request, asked, planned, title, lambda progress: _purge(context, asked, planned, who, progress))


def _start(request: Request, asked: DeadLetterRequest, planned: int, title: Sentence, run: ActionFunction) -> Response:
    with context_of(request).view() as seen:  # raises for a queue that does not exist
        queues = selected_queues(seen, asked.query.selection)
    described = ActionDescription(
        title=title,
        facts=asked.facts,
        total=planned,
        page=url(request, "/dead", **({} if asked.single else asked.query.given)),
        key=asked.key,
        # One message needs not wait for the end of a long replay: that one skips messages that were sent meanwhile. It
        # does not skip those that were deleted: it may have read them before.
        resources=frozenset() if asked.single and asked.goal == "replay" else frozenset(queues),
    )
    return action_pages.start_action(request, asked.goal, described, run)


def _replay(
    context: DashboardContext, asked: DeadLetterRequest, planned: int, who: str, progress: ActionProgress
) -> ActionResult:
    if asked.replay.options.canaries:
        seconds = f"{asked.replay.options.canary_seconds:,.0f}"
        progress.say(sentence("The canaries are sent first, and watched for up to {seconds} s.", seconds=seconds))
    shown = shown_in(context.settings)
    with view(context.scope) as seen, closing(opened_ledger(seen)) as ledger:
        replaying = ReplayOperation(
            seen,
            asked.selection,
            asked.replay.options,
            ledger=ledger,
            stopped=progress.stopped,
            on_progress=progress.add,
            clock=context.clock,
            probe=killing_probe(context.settings.kill_at),
            who=who,
        )
        try:
            report = replaying.run(say=lambda _: None)
        except (UserError, TemporaryError) as error:
            failed = replay_sentences(replaying.report, planned=planned, shown=shown, error=error)
            return ActionResult(sentences=failed, outcome="failed")
    sentences = replay_sentences(report, planned=planned, shown=shown)
    return ActionResult(sentences=sentences, outcome=_OUTCOMES[report.outcome])


def _purge(
    context: DashboardContext, asked: DeadLetterRequest, planned: int, who: str, progress: ActionProgress
) -> ActionResult:
    with view(context.scope) as seen, closing(opened_ledger(seen)) as ledger:
        report = purge(
            seen,
            asked.selection,
            ledger=ledger,
            stopped=progress.stopped,
            on_progress=progress.add,
            who=who,
        )
    stopped = progress.stopped()
    sentences = purge_sentences(report, planned=planned, stopped=stopped)
    return ActionResult(sentences=sentences, outcome="stopped" if stopped else "done")


def _asked(request: Request, *, goal: Goal | None = None) -> DeadLetterRequest:
    """Return the request of a form. Raises `UsageError` for a malformed field, and for a purge of everything."""
    fields: Fields = fields_of(request)
    named = goal or fields.get("goal")
    if named not in ("replay", "purge"):
        raise UsageError("The form does not say what to plan: a replay or a purge.")
    query = dead_letter_query(fields)
    if named == "purge" and not query.is_filtered:
        raise UsageError("That would delete every dead letter of every queue: select some, by queue or error.")
    single = len(query.selection.wanted.ids) == 1 and query.selection.limit == 1
    replay = replay_query(fields if named == "replay" else {})
    group = group_in(context_of(request).dead_letters.last_survey(), query.selection.wanted.group)
    return DeadLetterRequest(
        goal="replay" if named == "replay" else "purge",
        query=query,
        replay=replay,
        single=single,
        group_name=None if group is None else shown_in(context_of(request).settings)(group.key),
    )


def _check_queues(context: DashboardContext, asked: DeadLetterRequest) -> None:
    """Raise `UsageError` for a queue of others, on an account that the app shares with them."""
    named = [queue for queue in (asked.query.selection.queue, asked.replay.options.to) if queue is not None]
    if not named:
        return
    with context.view() as seen:
        if seen.queues is not None:
            for queue in named:
                known_queue(seen, queue)


def _planned_count(request: Request) -> int:
    count = count_in(form_of(request), "planned")
    if not count:
        raise UsageError("The form does not say how many dead letters were planned: make a plan first.")
    return count


def _typed(request: Request) -> int | None:
    with suppress(UsageError):
        return count_in(form_of(request), "typed")
    return None


def _plan_page(request: Request, plan_id: str, *, refusal: Sentence | None = None) -> Response:
    """Return the page of a plan. ``refusal``: why its confirmation was refused."""
    context = context_of(request)
    found = context.plans.find(plan_id)
    planned = None if found is None else found.value
    return render(
        request,
        "dead_plan.html",
        status=404 if found is None else 200 if refusal is None else 400,
        progress=found,
        planned=planned if isinstance(planned, PlannedAction) else None,
        refusal=refusal,
        groups_max=GROUPS_SHOWN,
        browsable=is_browsable(context),
        shown=shown_in(context.settings),
    )


ROUTES: Sequence[BaseRoute] = [
    Route(PLAN_PAGE, show_plan),
    action(PLAN_PAGE, start_plan),
    action("/dead/plan/cancel", cancel_plan),
    action("/dead/replay", start_replay),
    action("/dead/purge", start_purge),
]
