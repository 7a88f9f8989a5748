"""The pages of messages: those of a queue by state, and one message with its body.

They show messages without receiving them. On a broker on which that is impossible, a person may receive some with a
button that says what it costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.config import Settings
from penstock.errors import UsageError
from penstock.messaging.queued import QueuedMessage, QueuedPage, QueuedState
from penstock.operations.inspection import ScopeView
from penstock.operations.queued_messages import (
    PEEK_LEASE_SECONDS,
    PEEK_MESSAGES_MAX,
    RECEIVES_MIN,
    details_of,
    known_queue,
    peek_cost,
    receive_to_peek,
)
from penstock.operations.shown_bodies import (
    DOWNLOAD_NAME,
    BodyForm,
    download,
    shown_attributes,
    shown_body,
    shown_text,
)
from penstock.web.context import context_of
from penstock.web.rendering import render, url
from penstock.web.security import action, audit_name

PAGE = 100
BEGINNING_CHARS = 120  # of each body in a list
BEGINNING_BYTES = 16  # of one that is not text
STATES = {
    QueuedState.WAITING: "visible",
    QueuedState.IN_FLIGHT: "in flight",
    QueuedState.DELAYED: "delayed",
}
_GONE = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """A message in a list."""

    queued: QueuedMessage
    beginning: Markup  # of its body; empty if that is hidden
    hidden: bool
    address: str


def show_messages(request: Request) -> HTMLResponse:
    """Show the messages of a queue in one state, or those that were received to look at them."""
    queue, state = _queue(request), _state(request)
    context = context_of(request)
    with context.view() as seen:
        queue = known_queue(seen, queue)
        browsable = seen.broker.capabilities.browsable
        now = seen.broker.now()
        cost = None if browsable else peek_cost(seen, queue)
        page = seen.broker.peek(queue, state, messages_max=PAGE, after=_after(request)) if browsable else QueuedPage()
    key = request.query_params.get("received", "")
    received = None if browsable else context.received.page(key, queue)
    found = page.messages if received is None else received.messages
    return render(
        request,
        "messages.html",
        queue=queue,
        state=state.value,
        states=STATES,
        counts=_counts(request, queue),
        now=now,
        rows=[_row(request, queue, one, key, context.settings) for one in found],
        next_address=None if page.next is None else _list_address(request, queue, state, page.next),
        first_address=None if _after(request) is None else _list_address(request, queue, state),
        is_first=_after(request) is None,
        browsable=browsable,
        received=received,
        was_received=bool(key),
        cost=cost,
        receives_min=RECEIVES_MIN,
        peek_max=PEEK_MESSAGES_MAX,
        peek_lease_seconds=PEEK_LEASE_SECONDS,
    )


def receive(request: Request) -> Response:
    """Receive messages to look at them, and show them."""
    context = context_of(request)
    with context.view() as seen:
        peeked = receive_to_peek(seen, _queue(request), who=audit_name(request))
    context.sampler.refresh()
    return RedirectResponse(url(request, "/messages", queue=peeked.queue, received=context.received.keep(peeked)), 303)


def show_message(request: Request) -> HTMLResponse:
    """Show one message."""
    queue, id = _queue(request), request.query_params.get("id", "")
    settings = context_of(request).settings
    with context_of(request).view() as seen:
        queue = known_queue(seen, queue)
        found = _find(request, seen, queue, id)
        now = seen.broker.now()
        dead_letter_queue = None if found is not None else _dead_letter_queue(seen, queue)
        details = None if found is None else details_of(seen, queue, found)
    if found is None or details is None:
        return render(request, "message_gone.html", status=_GONE, queue=queue, id=id, dlq=dead_letter_queue)
    shown = shown_body(found.message, settings)
    death = details.death
    return render(
        request,
        "message.html",
        queue=queue,
        found=found,
        state=STATES[found.state],
        details=details,
        now=now,
        body=shown,
        attributes=shown_attributes(found.message.attributes, settings),
        error=None if death is None else shown_text(death.reason, settings).text,
        exception=None if death is None or death.exception is None else shown_text(death.exception, settings).text,
        traceback=None if death is None or death.traceback is None else shown_text(death.traceback, settings),
        shown_text=lambda text: shown_text(text, settings).text,
        was_received="received" in request.query_params,
        download_address=url(request, "/message/body", **_identity(request, queue, id)) if shown.downloadable else None,
    )


def download_body(request: Request) -> Response:
    """Send the body of a message as a file, without secrets, if it may be seen."""
    queue, id = _queue(request), request.query_params.get("id", "")
    with context_of(request).view() as seen:
        queue = known_queue(seen, queue)
        found = _find(request, seen, queue, id)
    if found is None:
        return render(request, "message_gone.html", status=_GONE, queue=queue, id=id, dlq=None)
    body = download(found.message, context_of(request).settings)
    if body is None:
        raise UsageError("The settings of the dashboard do not allow to download this body, or it may hold a secret.")
    return Response(
        body,
        media_type="application/octet-stream",
        headers={
            "content-disposition": f'attachment; filename="{DOWNLOAD_NAME}"',
            "x-content-type-options": "nosniff",
            "cache-control": "no-store",
            "content-security-policy": "sandbox",
        },
    )


def _queue(request: Request) -> str:
    queue = request.query_params.get("queue", "")
    if not queue:
        raise UsageError("The address names no queue.")
    return queue


def _state(request: Request) -> QueuedState:
    try:
        return QueuedState(request.query_params.get("state", QueuedState.WAITING))
    except ValueError:
        raise UsageError(f"There is no such state; the states are {', '.join(QueuedState)}.") from None


def _after(request: Request) -> str | None:
    return request.query_params.get("after")


def _find(request: Request, seen: ScopeView, queue: str, id: str) -> QueuedMessage | None:
    if seen.broker.capabilities.browsable:
        return seen.broker.find(queue, id, near=request.query_params.get("near"))
    return context_of(request).received.message(request.query_params.get("received", ""), queue, id)


def _identity(request: Request, queue: str, id: str) -> dict[str, str | None]:
    given = request.query_params
    return {"queue": queue, "id": id, "near": given.get("near"), "received": given.get("received")}


def _dead_letter_queue(seen: ScopeView, queue: str) -> str | None:
    dlq = seen.broker.dead_letter_queue(queue)
    return None if dlq == queue else dlq


def _row(request: Request, queue: str, queued: QueuedMessage, key: str, settings: Settings) -> MessageRow:
    shown = shown_body(queued.message, settings, chars_max=BEGINNING_CHARS)
    address = url(
        request, "/message", queue=queue, id=queued.message.id, near=queued.near or None, received=key or None
    )
    is_hex = shown.form is BodyForm.HEX
    beginning = queued.message.body[:BEGINNING_BYTES].hex(" ") if is_hex else " ".join(shown.text.split())
    return MessageRow(
        queued=queued, beginning=Markup(escape(beginning)), hidden=shown.hidden is not None, address=address
    )


def _list_address(request: Request, queue: str, state: QueuedState, after: str | None = None) -> str:
    return url(request, "/messages", queue=queue, state=state.value, after=after)


def _counts(request: Request, queue: str) -> dict[QueuedState, int]:
    """Return the numbers of messages by state in the newest reading; empty if it has none of this queue."""
    found = context_of(request).sampler.frame().queue(queue)
    if found is None:
        return {}
    return {
        QueuedState.WAITING: found.visible,
        QueuedState.IN_FLIGHT: found.in_flight,
        QueuedState.DELAYED: found.delayed,
    }


ROUTES: Sequence[BaseRoute] = [
    Route("/messages", show_messages),
    action("/messages/receive", receive),
    Route("/message", show_message),
    Route("/message/body", download_body),
]
