"""The pages of actions: what runs, what has ended, and how far one is."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.web.context import context_of
from penstock.web.rendering import render, url
from penstock.web.security import acting_user, action, form_of, user_of


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
    return to_action(request, action_id)


def to_action(request: Request, action_id: str, *, refused: bool = False) -> Response:
    """Redirect to the page of an action. ``refused``: it is shown instead of an equal one that was not started."""
    address = url(request, "/actions/show", id=action_id, refused="1" if refused else None)
    return RedirectResponse(address, status_code=303)


def user_name(request: Request) -> str:
    """Return the name of the user, as pages show it."""
    user = user_of(request)
    return "" if user is None else user.name


def audit_name(request: Request) -> str:
    """Return the name of the user for the audit log, in a handler of `action`."""
    return acting_user(request)


ROUTES: Sequence[BaseRoute] = [
    Route("/actions", show_all),
    Route("/actions/show", show),
    action("/actions/abort", abort),
]
