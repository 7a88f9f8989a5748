"""A dashboard of an app with dead letters, on any broker."""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from httpx2 import Response
from tests.cli.dead_letter_scene import DLQ, QUEUE, DeadLetterScene
from tests.web.clients import client_of
from tests.web.markup import Markup, harmless

from penstock import App
from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.config import Settings
from penstock.ledger import Ledger
from penstock.ledger.dead_letters import AuditRow
from penstock.messaging.broker import Broker
from penstock.web.actions import ActionSnapshot
from penstock.web.context import DashboardContext

DEADLINE_SECONDS = 60.0


class DeadSite(AbstractContextManager["DeadSite"]):
    """The dashboard of the app `shop`, whose queue `orders` has dead letters. Its user is ann."""

    def __init__(self, folder: Path, broker: Broker, address: str, **settings: Any) -> None:
        self.broker = broker
        self.scene = DeadLetterScene(folder=folder, broker=broker)
        self.ledger_file = folder / "ledger.db"
        values = {"broker": address, "ledger": f"sqlite:///{self.ledger_file}", "data_dir": str(folder), **settings}
        self.app = App(name="shop", settings=Settings(**values))
        self.app.handler(queue=QUEUE, name="order")(lambda body: None)
        self.client = client_of(self.app)

    def __enter__(self) -> "DeadSite":
        self.client.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.client.__exit__(None, None, None)
        self.broker.close()

    @property
    def context(self) -> DashboardContext:
        context: DashboardContext = self.client.app.state.context  # type: ignore[attr-defined]
        return context

    def dead_letter(self, *bodies: str, **fields: Any) -> None:
        self.scene.dead_letter(*bodies, **fields)

    def count(self, queue: str = DLQ) -> int:
        return self.broker.stats(queue).messages

    def get(self, path: str, *, status: int = 200, **query: Any) -> Markup:
        """Return a page, after the checks that hold for each."""
        response = self.client.get(path, params=query)
        assert response.status_code == status, response.text
        return harmless(response.text)

    def groups(self) -> Markup:
        """Return the page of groups, once all dead letters are counted."""
        self.context.dead_letters.expire()
        self.client.get("/dead")
        self.await_that(lambda: not self.context.dead_letters.known(browsable=False).is_counting)
        return self.get("/dead")

    def post(self, path: str, data: Mapping[str, object], *, status: int = 303) -> Response:
        """Send a form with the token of a page."""
        response = self.client.post(path, data=data, follow_redirects=False)
        assert response.status_code == status, response.text
        return response

    def plan(self, goal: str = "replay", **fields: object) -> Markup:
        """Make a plan, wait for its end, and return its page."""
        plan_id = id_in(self.post("/dead/plan", {"goal": goal, **fields}))
        self.context.plans.wait(plan_id, DEADLINE_SECONDS)
        return self.get("/dead/plan", id=plan_id)

    def confirm(self, plan: Markup, **fields: object) -> str:
        """Send the confirmation of a plan; return the id of the action that it starts."""
        path, given = form_of(plan, "planned")
        return id_in(self.post(path, {**given, **fields}))

    def ended(self, action_id: str) -> ActionSnapshot:
        found = self.context.actions.wait(action_id, DEADLINE_SECONDS)
        assert found is not None
        assert found.ended
        return found

    def audit(self) -> list[AuditRow]:
        """Return the audit's entries, newest first."""
        with closing(Ledger.open(f"sqlite:///{self.ledger_file}")) as ledger:
            return list(ledger.audits.latest(limit=100))

    @staticmethod
    def await_that(condition: Callable[[], bool]) -> None:
        end_at = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < end_at
            threading.Event().wait(0.01)


@contextmanager
def opened_site(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[DeadSite]:
    """Open the dashboard on this kind of broker."""
    if kind == "sqlite":
        file = folder / "queue.db"
        with DeadSite(folder, SqliteBroker(file, holder="test"), f"sqlite:///{file}") as site:
            yield site
        return
    server = request.getfixturevalue("servers").redis("7.0")
    try:
        with DeadSite(folder, RedisStreamsBroker(server.url, holder="test"), server.url) as site:
            yield site
    finally:
        server.clean()


def id_in(response: Response) -> str:
    """Return the id in the address that a response redirects to."""
    return parse_qs(urlsplit(response.headers["location"]).query)["id"][0]


def form_of(page: Markup, field: str) -> tuple[str, dict[str, str]]:
    """Return the address and the hidden inputs of the form that has this field."""
    for form in re.findall(r"<form\b.*?</form>", page.page, re.DOTALL):
        found = Markup(form)
        inputs = {
            attributes["name"]: attributes.get("value", "")
            for tag, attributes in found.elements
            if tag == "input" and attributes.get("type") == "hidden"
        }
        if field in inputs:
            return found.values("form", "action")[0], inputs
    raise AssertionError(f"no form has {field}")
