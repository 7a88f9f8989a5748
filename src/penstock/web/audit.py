"""The page of the audit log: changes by people, each with its user, time, extent and outcome."""

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import BaseRoute, Route

from penstock.web.context import context_of
from penstock.web.rendering import render, url

ROWS_MAX = 100
FILTER_CHARACTERS_MAX = 200
DETAIL_CHARACTERS_MAX = 300

ACTIONS: Mapping[str, str] = MappingProxyType(
    {
        "dismiss lines": "dismiss bad lines",
        "drain": "drain a worker",
        "export": "export dead letters",
        "import": "import dead letters",
        "move": "move dead letters",
        "pause": "pause a queue",
        "peek": "look at messages",
        "purge": "delete messages",
        "replay": "replay dead letters",
        "replay lines": "replay bad lines",
        "reprocess": "reprocess objects",
        "resume": "resume a queue",
        "retract": "retract objects",
        "retry": "retry objects",
        "schema set": "set a schema",
        "schema transform": "set a transform",
    }
)
"""The names of actions for people; others are shown as they are."""

_KEY = re.compile(r"[0-9A-Z]{26}")  # a ULID


def show(request: Request) -> HTMLResponse:
    """List the entries, the newest first."""
    query = request.query_params
    filters = {name: query.get(name, "").strip()[:FILTER_CHARACTERS_MAX] for name in ("who", "action", "queue")}
    wanted = {name: value or None for name, value in filters.items()}
    before = query.get("before", "")
    with context_of(request).view() as seen:
        rows = seen.ledger.audits.latest(
            limit=ROWS_MAX + 1,
            before=before if _KEY.fullmatch(before) else None,
            who_contains=wanted["who"],
            queue_contains=wanted["queue"],
            action=wanted["action"],
        )
        actions = seen.ledger.audits.actions()
    has_more = len(rows) > ROWS_MAX
    rows = rows[:ROWS_MAX]
    return render(
        request,
        "audit.html",
        entries=[(row, detail_texts(row.details)) for row in rows],
        actions=actions,
        names=ACTIONS,
        filters=filters,
        is_filtered=any(filters.values()),
        next_address=url(request, "/audit", **wanted, before=rows[-1].id) if has_more else None,
        first_address=url(request, "/audit", **wanted) if before else None,
        now=context_of(request).clock.now(),
    )


def detail_texts(details: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the details of an entry as names and short texts. Those that are unset are left out."""
    return [(name, _short(value)) for name, value in details.items() if value not in (None, "", [], {})]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= DETAIL_CHARACTERS_MAX else f"{text[:DETAIL_CHARACTERS_MAX]}..."


ROUTES: Sequence[BaseRoute] = [Route("/audit", show)]
