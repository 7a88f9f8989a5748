"""The pages of dead letters: groups by error, a list of those that match a filter, and a single one.

None of them receives a message. The counts and groups are those of the last survey; lists read the broker.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.app.brokers import capabilities_of
from penstock.config import Settings
from penstock.dead_letters.filters import objects_of
from penstock.dead_letters.groups import NO_REASON, FailureGroup, group_id, group_of
from penstock.dead_letters.reader import DeadLetteredMessage
from penstock.messaging.death import earlier_deaths_of, set_aside_reason
from penstock.messaging.replay import replays_so_far
from penstock.operations.dead_letters.listing import (
    DeadLetterCursor,
    DeadLetterPage,
    find_dead_letter,
    list_dead_letters,
    queues_in,
)
from penstock.operations.dead_letters.selection import OriginQueues, history_for
from penstock.operations.dead_letters.survey import DeadLetterSurvey
from penstock.operations.shown_bodies import shown_attributes, shown_body, shown_text
from penstock.web.context import DashboardContext, context_of
from penstock.web.dead_forms import FILTERS, TIERS, DeadLetterQuery, count_in, dead_letter_query
from penstock.web.dead_letter_watch import KnownDeadLetters
from penstock.web.rendering import render, url
from penstock.web.security import action

GROUPS_SHOWN = 100
ERRORS_SHOWN = 10  # above the list of one queue
ROWS_SHOWN = 50  # of a list; each may need its own call of the broker
REASON_CHARS_MAX = 300  # in lists
PREVIEW_CHARS_MAX = 160  # of a body in lists
OBJECTS_BYTES_MAX = 64 * 1024  # a longer body is not searched for objects in lists
FIRST_WAIT_SECONDS = 0.1  # for the first survey; a small one is complete by then


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRow:
    """A row of a list. All texts are without secrets."""

    dead_letter: DeadLetteredMessage
    tier: str
    error: str
    handler: str | None
    age_seconds: float
    text: str
    objects: Sequence[str]


def show(request: Request) -> Response:
    """Show the groups, or the dead letters that match a filter."""
    context = context_of(request)
    query = dead_letter_query(request.query_params)
    listed = query.is_filtered or "list" in request.query_params
    known = context.dead_letters.known(
        browsable=is_browsable(context), wait_seconds=FIRST_WAIT_SECONDS, needs_queues=listed
    )
    return _show_list(request, query, known) if listed else _show_groups(request, known)


def _show_groups(request: Request, known: KnownDeadLetters) -> Response:
    groups = () if known.survey is None else known.survey.groups
    first = count_in(request.query_params, "from") or 0
    rest = first + GROUPS_SHOWN < len(groups)
    return render(
        request,
        "dead.html",
        known=known,
        groups=groups[first : first + GROUPS_SHOWN],
        first=first,
        following=url(request, "/dead", **{"from": first + GROUPS_SHOWN}) if rest else None,
        browsable=is_browsable(context_of(request)),
        now=context_of(request).clock.now(),
        shown=shown_in(context_of(request).settings),
        given={},
        filters=FILTERS,
        tiers=TIERS,
    )


def _show_list(request: Request, query: DeadLetterQuery, known: KnownDeadLetters) -> Response:
    context = context_of(request)
    after = _cursor_in(request)
    page = DeadLetterPage(dead_letters=(), inspected=0, following=None)
    rows: Sequence[DeadLetterRow] = ()
    errors: Sequence[FailureGroup] = ()
    if known.survey is not None:
        with context.view() as seen:
            page = list_dead_letters(
                seen.broker, known.survey, query.selection, after=after, rows_max=ROWS_SHOWN, clock=context.clock
            )
            if query.given.keys() == {"queue"} and after is None:
                errors = _errors_in(known.survey, queues_in(seen.broker, known.survey, query.selection))
        rows = [_row(dead_letter, known.survey, context) for dead_letter in page.dead_letters]
    return render(
        request,
        "dead_list.html",
        known=known,
        query=query,
        group=group_in(known.survey, query.selection.wanted.group),
        rows=rows,
        errors=errors,
        page=page,
        first=url(request, "/dead", list=1, **query.given) if after is not None else None,
        following=_following(request, query, page),
        browsable=is_browsable(context),
        now=context.clock.now(),
        shown=shown_in(context.settings),
        given=query.given,
        filters=FILTERS,
        tiers=TIERS,
    )


def show_message(request: Request) -> Response:
    """Show one dead letter."""
    context = context_of(request)
    queue, id = request.query_params.get("queue", ""), request.query_params.get("id", "")
    survey = context.dead_letters.last_survey()
    settings = context.settings
    with context.view() as seen:
        found = find_dead_letter(seen.broker, survey, queue, id) if queue and id else None
        if found is None:
            return render(request, "dead_missing.html", status=404, queue=queue, browsable=is_browsable(context))
        history = history_for(seen, found)
        origins = OriginQueues(seen.broker)
        destination = origins.of(found)
    attributes = found.message.attributes
    return render(
        request,
        "dead_message.html",
        dead_letter=found,
        death=found.death,
        group=group_id(group_of(found)),
        earlier=earlier_deaths_of(attributes),
        set_aside=set_aside_reason(attributes),
        replays=replays_so_far(attributes),
        history=history,
        destination=destination,
        attributes=shown_attributes(attributes, settings),
        body=shown_body(found.message, settings),
        age_seconds=max(0.0, context.clock.now() - found.message.enqueued_at),
        shown=shown_in(settings),
        traceback=None if found.death is None else shown_text(found.death.traceback or "", settings),
    )


def count(request: Request) -> Response:
    """Count all dead letters now. On a broker that cannot be browsed this receives them."""
    context_of(request).dead_letters.count()
    return RedirectResponse(url(request, "/dead"), status_code=303)


def is_browsable(context: DashboardContext) -> bool:
    """Return True if reading dead letters does not receive them."""
    return capabilities_of(context.settings).browsable


def _row(dead_letter: DeadLetteredMessage, survey: DeadLetterSurvey, context: DashboardContext) -> DeadLetterRow:
    message, death, settings = dead_letter.message, dead_letter.death, context.settings
    reason = NO_REASON if death is None else death.reason
    return DeadLetterRow(
        dead_letter=dead_letter,
        tier=survey.tiers.get(dead_letter.queue, ""),
        error=_beginning(settings, reason),
        handler=None if death is None else death.handler,
        age_seconds=max(0.0, context.clock.now() - message.enqueued_at),
        text=" ".join(shown_body(message, settings, chars_max=PREVIEW_CHARS_MAX).text.split()),
        objects=sorted(objects_of(message)) if len(message.body) <= OBJECTS_BYTES_MAX else (),
    )


def shown_in(settings: Settings) -> Callable[[str], str]:
    """Return the function that shortens error texts for pages, without secrets."""
    return partial(_beginning, settings)


def _beginning(settings: Settings, text: str) -> str:
    """Return the beginning of an error text, without secrets."""
    shown = shown_text(text, settings).text
    return shown if len(shown) <= REASON_CHARS_MAX else shown[: REASON_CHARS_MAX - 1] + "…"


def group_in(survey: DeadLetterSurvey | None, id: str | None) -> FailureGroup | None:
    """Return the group with this id; None if the survey has none."""
    if survey is None or id is None:
        return None
    return next((group for group in survey.groups if group.id == id), None)


def _errors_in(survey: DeadLetterSurvey, queues: Sequence[str]) -> Sequence[FailureGroup]:
    """Return the largest groups with dead letters in these DLQs; none if there is only one."""
    found = [group for group in survey.groups if not set(queues).isdisjoint(group.queues)]
    return found[:ERRORS_SHOWN] if len(found) > 1 else ()


def _cursor_in(request: Request) -> DeadLetterCursor | None:
    queue, id = request.query_params.get("after_queue"), request.query_params.get("after")
    return DeadLetterCursor(queue=queue, id=id) if queue and id else None


def _following(request: Request, query: DeadLetterQuery, page: DeadLetterPage) -> str | None:
    if page.following is None:
        return None
    after = {"after_queue": page.following.queue, "after": page.following.id}
    return url(request, "/dead", list=1, **query.given, **after)


ROUTES: Sequence[BaseRoute] = [
    Route("/dead", show),
    Route("/dead/message", show_message),
    action("/dead/count", count),
]
