"""The pages of the dashboard, with addresses that show each of them in the seeded shop."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.routing import Route
from tests.web.seeds import BUSY, DRAINING, STUCK, Seed
from tests.web.shop import CLICKS, JAPANESE_QUEUE, LONG_PIPELINE, LONG_QUEUE, THUMBNAILS

from penstock.app.scope import scope_of
from penstock.ledger.records import ObjectState
from penstock.operations.inspection import ScopeView, view
from penstock.web.dashboard import routes

Query = Mapping[str, object]
NO_PAGES = frozenset({"/events", "/history.json", "/message/body"})  # answer programs


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One address of a page: `query` reads the seeded shop."""

    name: str
    path: str
    query: Callable[[ScopeView], Query] = lambda _: {}

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"

    def address(self, seed: Seed) -> str:
        """Return the path and query."""
        with view(scope_of(seed.app)) as seen:
            query = urlencode(self.query(seen), errors="surrogatepass")
        return f"{self.path}?{query}" if query else self.path


def paths() -> Sequence[str]:
    """Return the paths of all pages that the dashboard routes."""
    return [
        route.path
        for route in routes()
        if isinstance(route, Route) and "GET" in (route.methods or ()) and route.path not in NO_PAGES
    ]


def plain_pages() -> Sequence[Example]:
    """Return the pages that need no query, which also a shop without any data has."""
    return [Example(name="empty", path=path) for path in paths() if path not in QUERIES or "" in QUERIES[path]]


def examples() -> Iterator[Example]:
    """Yield the addresses of every page. A page without an entry in `QUERIES` is shown without a query."""
    for path in paths():
        for name, query in QUERIES.get(path, {"": _nothing}).items():
            yield Example(name=name or "plain", path=path, query=query)


def _nothing(_: ScopeView) -> Query:
    return {}


def _fixed(**query: object) -> Callable[[ScopeView], Query]:
    return lambda _: query


def _message(queue: str, *, number: int = 0) -> Callable[[ScopeView], Query]:
    return lambda seen: {"queue": queue, "id": seen.broker.browse(queue, messages_max=number + 1)[number].id}


def _object(pipeline: str, state: ObjectState, contains: str | None = None) -> Callable[[ScopeView], Query]:
    def query(seen: ScopeView) -> Query:
        (row, *_) = seen.ledger.objects(pipeline, state=state, uri_contains=contains, limit=1)
        return {"address": row.uri}

    return query


# By path: a name and a query for each address to look at. A page that can be opened without a query has the name "".
QUERIES: Mapping[str, Mapping[str, Callable[[ScopeView], Query]]] = {
    "/queue": {
        "flooded": _fixed(name="orders"),
        "lagging": _fixed(name="invoices"),
        "broken": _fixed(name="payments"),
        "japanese": _fixed(name=JAPANESE_QUEUE),
        "long": _fixed(name=LONG_QUEUE),
        "idle": _fixed(name="idle"),
    },
    "/messages": {
        "flooded": _fixed(queue="orders"),
        "in flight": _fixed(queue="orders", state="in_flight"),
        "hostile": _fixed(queue=LONG_QUEUE),
        "none": _fixed(queue="idle"),
    },
    "/message": {
        "failed": _message("payments"),
        "hostile": _message(LONG_QUEUE, number=5),
        "nested": _message(LONG_QUEUE, number=19),
        "japanese": _message(JAPANESE_QUEUE),
    },
    "/dead": {
        "": _nothing,
        "one queue": _fixed(queue="orders"),
        "one error": _fixed(error="TimeoutError"),
    },
    "/dead/message": {
        "crashed": _message("orders-dlq"),
        "final": _message("orders-dead"),
        "unreadable": _message("invoices-dlq"),
        "hostile": _message(f"{LONG_QUEUE}-dlq"),
    },
    "/dead/plan": {},  # this and the other empty ones are reached through forms: test_actions.py
    "/actions/show": {},
    "/objects": {"": _nothing, "failed": _fixed(state="dead"), "one pipeline": _fixed(pipeline=CLICKS)},
    "/objects/retry": {},
    "/object": {
        "processed": _object(CLICKS, ObjectState.PROCESSED, "plain"),
        "failed": _object(THUMBNAILS, ObjectState.DEAD),
        "replaced": _object(CLICKS, ObjectState.PROCESSED, "2026-11-24/replaced"),
        "hostile": _object(CLICKS, ObjectState.PROCESSED, "<script>"),
    },
    "/batches": {"": _nothing, "one pipeline": _fixed(pipeline=CLICKS), "huge": _fixed(pipeline=LONG_PIPELINE)},
    "/batch": {
        "many": _fixed(pipeline=CLICKS, seq=3),
        "huge": _fixed(pipeline=LONG_PIPELINE, seq=1),
        "hostile": _fixed(pipeline=LONG_PIPELINE, seq=2),
    },
    "/worker": {"busy": _fixed(id=BUSY), "stuck": _fixed(id=STUCK), "draining": _fixed(id=DRAINING)},
}
