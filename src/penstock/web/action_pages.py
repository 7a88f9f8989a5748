"""The pages of actions: what runs, what has ended, and how far one is. Other pages start plans and actions here."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.web.actions import ActionDescription, ActionFunction, ActionRunsAlready
from penstock.web.context import context_of
from penstock.web.rendering import render, url
from penstock.web.security import action, form_of, user_name

PLAN_WAIT_SECONDS = 0.1  # a short plan is shown at once, a longer one with its progress


def show_all(request: Request) -> Response:
    """Show the actions that this dashboard remembers, newest first."""
    return render(request, "actions.html", actions=context_of(request).actions.latest())


def show(request: Request) -> Response:
    """Show one action with its progress."""
    found = context_of(request).actions.find(request.query_params.get("id", ""))
    refused = request.query_params.get("refused") == "1"
    return render(request, "action.html", status=404 if found is None else 200, action=found, refused=refused)


def abort(request: Request) -> Response:
    """Ask an action to stop after its current chunk."""
    action_id = str(form_of(request).get("id", ""))
    context_of(request).actions.abort(action_id, user=user_name(request))
    return _to_action(request, action_id)


def start_action(request: Request, kind: str, described: ActionDescription, run: ActionFunction) -> Response:
    """Start an action, and redirect to its page; or to that of an equal one that has not ended."""
    try:
        return _to_action(request, context_of(request).actions.start(kind, user_name(request), described, run))
    except ActionRunsAlready as error:
        return _to_action(request, error.action_id, refused=True)


def start_plan(request: Request, page: str, described: ActionDescription, run: ActionFunction) -> Response:
    """Start a plan, and redirect to its page, whose path is ``page``."""
    plans = context_of(request).plans
    plan_id = plans.start("plan", user_name(request), described, run)
    plans.wait(plan_id, PLAN_WAIT_SECONDS)
    return RedirectResponse(url(request, page, id=plan_id), status_code=303)


def cancel_plan(request: Request, page: str) -> Response:
    """Stop the plan that the form names, and redirect to its page, whose path is ``page``."""
    plan_id = str(form_of(request).get("id", ""))
    context_of(request).plans.abort(plan_id, user=user_name(request))
    return RedirectResponse(url(request, page, id=plan_id), status_code=303)


def _to_action(request: Request, action_id: str, *, refused: bool = False) -> Response:
    """Redirect to the page of an action. ``refused``: it is shown instead of an equal one that was not started."""
    address = url(request, "/actions/show", id=action_id, refused="1" if refused else None)
    return RedirectResponse(address, status_code=303)


ROUTES: Sequence[BaseRoute] = [
    Route("/actions", show_all),
    Route("/actions/show", show),
    action("/actions/abort", abort),
]
