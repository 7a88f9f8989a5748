"""The dashboard as a Starlette application: its routes, its error pages, and its life."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from penstock.app.app import App
from penstock.app.brokers import capabilities_of
from penstock.app.history.history import HistoryReader
from penstock.app.scope import Scope, scope_of
from penstock.config import Settings
from penstock.errors import TemporaryError, UserError
from penstock.events import Listener, ignore
from penstock.messaging.clock import Clock, SystemClock
from penstock.operations.status.watch import StatusWatch
from penstock.web import (
    action_pages,
    audit,
    batches,
    dead,
    dead_actions,
    messages,
    object_retry,
    objects,
    overview,
    queues,
    reconcile,
    workers,
)
from penstock.web.access import AccessControl, Authenticator, MountedAccess, Roles, UserFunction
from penstock.web.actions import ActionRunner
from penstock.web.charts import ChartSource, Sparklines
from penstock.web.context import DashboardContext, ViewPool, context_of
from penstock.web.dead_letter_watch import CountingTurn, DeadLetterWatch
from penstock.web.headers import BodyLimit, SecurityHeaders
from penstock.web.prometheus import PrometheusCharts
from penstock.web.queue_details import QueueDetailReader
from penstock.web.recording import FrameRecorder
from penstock.web.rendering import LANGUAGE_COOKIE, THEME_COOKIE, THEMES, render, render_alone, url
from penstock.web.sampling import Sampler
from penstock.web.security import AccessRefused, CsrfTokens, form_of, form_route
from penstock.web.texts import LANGUAGES

EVERY_SECONDS = 2.0  # between two readings
EVERY_SECONDS_BILLED = 15.0  # if each reading is billed
PREFERENCE_SECONDS = 365 * 86_400
PING_SECONDS = 15
STREAMS_MAX = 200
STREAM_RETRY_SECONDS = 30
PLANS_RUNNING_MAX, PLANS_MAX = 2, 20


class Dashboard(Starlette):
    """The ASGI application. Every response has the security headers, also those of its outermost error page."""

    def build_middleware_stack(self) -> ASGIApp:
        return SecurityHeaders(super().build_middleware_stack())


def dashboard(
    target: App | Scope,
    *,
    user: UserFunction | None = None,
    access: Authenticator | None = None,
    title: str | None = None,
    clock: Clock | None = None,
    emit: Listener = ignore,
) -> Starlette:
    """Return the dashboard of an app as an ASGI application, to be served or mounted.

    ``user`` returns the user of a request: a name, a `WebUser`, or None to refuse it. Without it the dashboard is
    read-only for everyone who reaches it. ``access`` replaces it, for servers. ``emit`` receives events of the
    dashboard itself.

    A parent application has to run its lifespan; Starlette and FastAPI do not do that for mounted applications:

        @asynccontextmanager
        async def lifespan(parent):
            async with pages.router.lifespan_context(pages):
                yield

        pages = dashboard(shop.app, user=lambda request: request.session.get("user"))
        parent = FastAPI(lifespan=lifespan)
        parent.mount("/penstock", pages)
    """
    scope = scope_of(target) if isinstance(target, App) else target
    clock = clock or SystemClock()
    context = _context(scope, title=title or target.name, clock=clock, emit=emit)
    control = Middleware(
        AccessControl,
        access=access or MountedAccess(user),
        roles=Roles.of(scope.settings),
        tokens=CsrfTokens(clock=clock),
        refuse=_refuse,
    )
    application = Dashboard(
        routes=routes(),
        middleware=[control, Middleware(BodyLimit)],
        exception_handlers={
            HTTPException: _show_http_error,
            UserError: _show_user_error,
            TemporaryError: _show_unavailable,
            Exception: _show_failure,
        },
        lifespan=_lifespan,
    )
    application.state.context = context
    return application


def routes() -> Sequence[BaseRoute]:
    """Return the routes of all pages."""
    return [
        *overview.ROUTES,
        *queues.ROUTES,
        *messages.ROUTES,
        *workers.ROUTES,
        *audit.ROUTES,
        *objects.ROUTES,
        *object_retry.ROUTES,
        *batches.ROUTES,
        *reconcile.ROUTES,
        *dead.ROUTES,
        *dead_actions.ROUTES,
        *action_pages.ROUTES,
        Route("/events", _events),
        form_route("/preferences", _set_preferences),
        Mount("/static", StaticFiles(directory=str(files("penstock.web") / "static")), name="static"),
    ]


def _context(scope: Scope, *, title: str, clock: Clock, emit: Listener) -> DashboardContext:
    settings = scope.settings
    billed = capabilities_of(settings).stats_are_billed
    watch = StatusWatch(scope, clock=clock)
    sampler = Sampler(
        watch.read,
        every_seconds=EVERY_SECONDS_BILLED if billed else EVERY_SECONDS,
        clock=clock,
        on_frame=[FrameRecorder(settings.data_dir, emit=emit)],
    )
    history = HistoryReader(settings.data_dir, measured_every_seconds=settings.metrics_monitor_every)
    charts = _charts(settings, clock=clock) or history
    views = ViewPool(scope, clock=clock)
    counting = CountingTurn(browsable=capabilities_of(settings).browsable)
    actions, dead_letters = ActionRunner(clock=clock), DeadLetterWatch(views.borrowed, clock=clock, turn=counting)
    actions.when_ended(sampler.refresh)
    actions.when_ended(dead_letters.expire)
    return DashboardContext(
        title=title,
        scope=scope,
        clock=clock,
        sampler=sampler,
        views=views,
        actions=actions,
        plans=ActionRunner(clock=clock, running_max=PLANS_RUNNING_MAX, finished_max=PLANS_MAX),
        dead_letters=dead_letters,
        counting=counting,
        charts=charts,
        sparklines=Sparklines(charts, clock=clock),
        queue_details=QueueDetailReader(history, clock=clock),
    )


def _charts(settings: Settings, *, clock: Clock) -> ChartSource | None:
    """Return the Prometheus of the settings; None if they name none."""
    url = settings.web_prometheus_url
    every_seconds = settings.metrics_monitor_every
    return None if url is None else PrometheusCharts(url, measured_every_seconds=every_seconds, clock=clock)


@asynccontextmanager
async def _lifespan(application: Starlette) -> AsyncIterator[None]:
    context: DashboardContext = application.state.context
    context.sampler.start()
    try:
        yield
    finally:
        context.close()


async def _events(request: Request) -> EventSourceResponse:
    """Stream an event for each new reading; the page then fetches its live part."""
    if context_of(request).sampler.streams >= STREAMS_MAX:
        raise HTTPException(503, "Too many pages are open.", {"Retry-After": str(STREAM_RETRY_SECONDS)})

    async def events() -> AsyncIterator[ServerSentEvent]:
        async with context_of(request).sampler.changes() as changes:
            async for at in changes:
                yield ServerSentEvent(event="changed", data=f"{at:.3f}")

    return EventSourceResponse(events(), ping=PING_SECONDS)


def _set_preferences(request: Request) -> Response:
    """Remember the language and the theme in cookies, and return to the page."""
    form = form_of(request)
    response = RedirectResponse(_safe_path(request, str(form.get("next", ""))), status_code=303)
    path = request.scope.get("root_path", "") or "/"
    for cookie, value, allowed in (
        (LANGUAGE_COOKIE, form.get("language"), LANGUAGES),
        (THEME_COOKIE, form.get("theme"), THEMES),
    ):
        if isinstance(value, str) and value in allowed:
            response.set_cookie(cookie, value, max_age=PREFERENCE_SECONDS, path=path, httponly=True, samesite="strict")
    return response


def _safe_path(request: Request, path: str) -> str:
    """Return the path if it is one of this dashboard, else that of its first page."""
    root = request.scope.get("root_path", "") + "/"
    is_own = path.startswith(root) and not path.startswith("//") and "\\" not in path
    return path if is_own else url(request, "/")


def _show_http_error(request: Request, error: Exception) -> HTMLResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    kind = {404: "not_found", 405: "not_allowed"}.get(status, "refused")
    if isinstance(error, AccessRefused):
        kind = error.kind
    detail = error.detail if isinstance(error, HTTPException) else ""
    page = render(request, "error.html", status=status, kind=kind, message=detail)
    page.headers.update((isinstance(error, HTTPException) and error.headers) or {})
    return page


def _show_user_error(request: Request, error: Exception) -> HTMLResponse:
    return render(request, "error.html", status=400, kind="refused", message=str(error))


def _show_unavailable(request: Request, error: Exception) -> HTMLResponse:
    return render(request, "error.html", status=503, kind="unavailable", message=str(error))


def _show_failure(request: Request, _: Exception) -> HTMLResponse:
    """Return the page of a bug. The server logs its traceback."""
    return render_alone(request, "refused.html", status=500, kind="failed", message="")


def _refuse(request: Request, error: HTTPException) -> HTMLResponse:
    """Return the page of a request without a user. It has no link, and tells nothing of the app."""
    kind = error.kind if isinstance(error, AccessRefused) else "refused"
    page = render_alone(request, "refused.html", status=error.status_code, kind=kind, message=error.detail)
    page.headers.update(error.headers or {})
    return page
