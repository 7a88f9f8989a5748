"""Clients of a dashboard: a browser whose forms carry the token of a page, and dashboards with a user."""

import re
from collections.abc import Mapping
from typing import Any

from httpx2 import Response
from starlette.testclient import TestClient

from penstock import App
from penstock.app.scope import Scope
from penstock.web import dashboard

ADDRESS = "http://127.0.0.1"
_TOKEN = re.compile(r'name="csrf" value="([^"]*)"')


def token_in(page: str) -> str:
    """Return the token of the first form of a page."""
    found = _TOKEN.search(page)
    assert found is not None, page
    return found[1]


class FormClient(TestClient):
    """A client that sends forms as a browser does: with the token of a page, and the cookie that belongs to it."""

    def request(self, method: str, url: Any, *, data: Mapping[str, Any] | None = None, **options: Any) -> Response:
        if method == "POST":
            data = {"csrf": self.token(), **(data or {})}
        return super().request(method, url, data=data, **options)

    def token(self) -> str:
        """Return a token of this client."""
        return token_in(self.get("/").text)


def client_of(app: App | Scope, *, user: str | None = "ann", **options: Any) -> FormClient:
    """Return a client of the app's dashboard, as a user who may act; without a user, it is read-only."""
    named = None if user is None else (lambda _: user)
    return FormClient(dashboard(app, user=named, **options), base_url=ADDRESS)
