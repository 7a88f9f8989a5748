"""The first page: one health line, then a row per queue and per pipeline."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import BaseRoute, Route

from penstock.web.context import context_of
from penstock.web.rendering import render


def show(request: Request) -> HTMLResponse:
    """Show the overview."""
    frame = context_of(request).sampler.frame()
    return render(request, "overview.html", frame=frame)


ROUTES: Sequence[BaseRoute] = [Route("/", show)]
