"""Objects: where is this file? A search, lists by state, and the page of one object."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.errors import UsageError
from penstock.ledger.object_lists import ObjectFilter
from penstock.ledger.records import ObjectState, QuarantineRow, QuarantineState
from penstock.messaging.broker import names_dead_letters
from penstock.operations.advice import RetryCommands, retry_commands
from penstock.operations.inspection import ScopeView
from penstock.operations.objects.history import ObjectHistory, ObjectVersion, history_of
from penstock.operations.objects.retry import RETRIED
from penstock.operations.objects.search import SEARCH_SECONDS, SearchPosition, known_address, search
from penstock.operations.shown_bodies import shown_text
from penstock.web.context import DashboardContext, context_of
from penstock.web.object_states import KINDS, OPEN, state_counts, state_words
from penstock.web.reconcile import ReconcileSummary, summaries_of
from penstock.web.rendering import render, texts_of, url

PAGE_OBJECTS = 100
BAD_OBJECTS = 20  # objects with many bad lines on the first page
TEXT_CHARS_MAX = 4_200  # longer than any address
EVERY = "all"


def show_list(request: Request) -> Response:
    """Show the objects that a search or a filter selects; by default those that failed, wait or are processed."""
    asked = request.query_params
    text, chosen = asked.get("q", "")[:TEXT_CHARS_MAX], asked.get("state", "")
    with context_of(request).view() as seen:
        names = seen.pipelines()
        meant = _pipelines_meant(names, asked.get("pipeline", ""))
        if text and "after" not in asked and (address := _exact(seen, meant, text)) is not None:
            return RedirectResponse(url(request, "/object", address=address), status_code=303)
        wanted = ObjectFilter(
            pipelines=meant, states=_states(chosen, is_search=bool(text.strip())), uri_contains=text.strip() or None
        )
        found = search(
            seen.ledger,
            wanted,
            after=SearchPosition.decode(asked["after"]) if asked.get("after") else None,
            limit=PAGE_OBJECTS,
            clock=context_of(request).clock,
            seconds=SEARCH_SECONDS,
        )
        bad = () if text or chosen else _with_bad_lines(seen, meant)
        archived = sum(seen.ledger.archives.count(name) for name in meant) if text else 0
    texts = texts_of(request)
    counts = state_counts(context_of(request).sampler.frame(), texts, pipelines=meant)
    totals = [one.count for one in counts if one.state in wanted.states]
    next_query = dict(asked) | {"after": found.after.encode()} if found.after is not None else None
    return render(
        request,
        "objects.html",
        text=text,
        chosen=chosen,
        pipeline=asked.get("pipeline", ""),
        pipelines=names,
        found=found,
        bad=bad,
        total=None if None in totals else sum(total or 0 for total in totals),
        counts=counts,
        words=state_words(texts),
        kinds=KINDS,
        error_text=_error_text(request),
        archived=archived,
        next_address=None if next_query is None else url(request, "/objects", **next_query),
        first_address=url(request, "/objects", **{name: asked[name] for name in asked if name != "after"}),
        is_continued="after" in asked,
        may_retry=chosen in RETRIED or chosen == "",
    )


def show_object(request: Request) -> HTMLResponse:
    """Show all versions of one object, with all attempts, and what to do next."""
    address = request.query_params.get("address", "")[:TEXT_CHARS_MAX]
    if not address:
        raise UsageError("Which object? The address of this page has to name one; search it on the page Objects.")
    context = context_of(request)
    with context.view() as seen:
        history = history_of(seen, address)
        now = seen.ledger.now()
        queues = {one.pipeline: _queue_of(seen, one.pipeline) for one in history.versions}
    texts = texts_of(request)
    if not history.is_known:
        return render(request, "object_unknown.html", address=address, sources=_sources(request, address))
    return render(
        request,
        "object.html",
        history=history,
        versions=[_shown_version(context, one, now, queue=queues[one.pipeline]) for one in _newest_first(history)],
        words=state_words(texts),
        kinds=KINDS,
        error_text=_error_text(request),
        options=context.scope.options,
        retried=RETRIED,
    )


def _error_text(request: Request) -> Callable[[str], str]:
    """Return the function that takes the secrets out of error texts."""
    settings = context_of(request).settings
    return lambda text: shown_text(text, settings).text


def _pipelines_meant(names: Sequence[str], chosen: str) -> Sequence[str]:
    if not chosen:
        return names
    if chosen not in names:
        raise UsageError(f"The ledger knows no pipeline {chosen}; its pipelines: {', '.join(names) or 'none'}.")
    return [chosen]


def _states(chosen: str, *, is_search: bool) -> frozenset[ObjectState]:
    if chosen == EVERY or (is_search and not chosen):
        return frozenset(ObjectState)
    if not chosen:
        return OPEN
    try:
        return frozenset({ObjectState(chosen)})
    except ValueError:
        raise UsageError(f"There is no state {chosen}; the states: {', '.join(ObjectState)}.") from None


def _exact(seen: ScopeView, meant: Sequence[str], text: str) -> str | None:
    """Return the address that the text names exactly, as it is or without blanks around it."""
    found = known_address(seen.ledger, meant, text)
    return found if found is not None or text == text.strip() else known_address(seen.ledger, meant, text.strip())


def _with_bad_lines(seen: ScopeView, pipelines: Sequence[str]) -> Sequence[QuarantineRow]:
    """Return the first objects with too many bad lines that were neither replayed nor dismissed."""
    rows = (
        row
        for pipeline in pipelines
        for row in seen.ledger.quarantines.rows(
            pipeline, state=QuarantineState.OPEN, only_warnings=True, uri_contains=None, limit=BAD_OBJECTS, after=None
        )
    )
    return list(islice(rows, BAD_OBJECTS))


def _newest_first(history: ObjectHistory) -> Sequence[ObjectVersion]:
    return sorted(history.versions, key=lambda one: (one.pipeline, -one.row.first_seen_at))


def _sources(request: Request, address: str) -> Sequence[tuple[ReconcileSummary, bool]]:
    """Return the latest reconcile of each pipeline, and whether it compared the place of this address."""
    return [(one, one.covers(address)) for one in summaries_of(request)]


def _queue_of(seen: ScopeView, pipeline: str) -> str | None:
    """Return the queue of a pipeline: from the app's code, or the only one of a table."""
    if seen.scope.table is None:
        return seen.scope.served.get(pipeline)
    names = [name for name in seen.broker.queue_names() if not names_dead_letters(name)]
    return names[0] if len(names) == 1 else None


def _shown_version(
    context: DashboardContext, version: ObjectVersion, now: float, *, queue: str | None
) -> "ShownVersion":
    since = version.waiting_since
    overdue_after = context.settings.objects_overdue_after
    row = version.row
    return ShownVersion(
        version=version,
        queue=queue,
        overdue_seconds=now - since if since is not None and now - since > overdue_after else None,
        commands=retry_commands(context.scope, pipeline=version.pipeline, uri=row.uri),
        quarantine_command=f"penstock quarantine show{context.scope.options} {shlex.quote(row.uri)}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownVersion:
    """One version of an object, with what its page adds."""

    version: ObjectVersion
    queue: str | None  # of its pipeline; None: not known
    overdue_seconds: float | None  # since when it waits, if that is longer than allowed
    commands: RetryCommands
    quarantine_command: str


ROUTES: Sequence[BaseRoute] = [Route("/objects", show_list), Route("/object", show_object)]
