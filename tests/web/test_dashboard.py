"""The dashboard as an application: its first page, its error pages, preferences and the event stream."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from tests.web.clients import client_of

from penstock import App
from penstock.config import Settings
from penstock.web import dashboard


def settings_in(folder: Path) -> Settings:
    return Settings(broker=f"sqlite:///{folder}/queue.db", ledger=f"sqlite:///{folder}/ledger.db", data_dir=str(folder))


@pytest.fixture
def app(tmp_path: Path) -> App:
    app = App(name="shop", settings=settings_in(tmp_path))

    @app.handler(queue="orders")
    def order(body: dict[str, int]) -> None: ...

    return app


@pytest.fixture
def client(app: App) -> Iterator[TestClient]:
    with client_of(app) as client:
        yield client


def test_the_first_page_has_the_health_and_the_queues(app: App, client: TestClient) -> None:
    assert "all well" in client.get("/").text
    app.send("orders", {"n": 1})
    client.app.state.context.sampler.refresh()  # type: ignore[attr-defined]
    assert "orders" in client.get("/").text


def test_a_page_that_is_none_says_so(client: TestClient) -> None:
    response = client.get("/nothing")
    assert response.status_code == 404
    assert "There is no such page" in response.text


def test_preferences_are_remembered_and_lead_back(client: TestClient) -> None:
    response = client.post(
        "/preferences", data={"language": "ja", "theme": "dark", "next": "/?a=1"}, follow_redirects=False
    )
    assert (response.status_code, response.headers["location"]) == (303, "/?a=1")
    page = client.get("/").text
    assert '<html lang="ja" data-theme="dark">' in page


@pytest.mark.parametrize("elsewhere", ["//example.test/", "https://example.test/", "/\\example.test", "x"])
def test_preferences_lead_to_no_other_site(client: TestClient, elsewhere: str) -> None:
    response = client.post("/preferences", data={"next": elsewhere}, follow_redirects=False)
    assert response.headers["location"] == "/"


def test_it_can_be_mounted_below_a_path(app: App) -> None:
    pages = dashboard(app)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with pages.router.lifespan_context(pages):
            yield

    parent = Starlette(routes=[Mount("/penstock", pages)], lifespan=lifespan)
    with TestClient(parent) as client:
        page = client.get("/penstock/").text
    assert 'href="/penstock/dead"' in page
    assert 'src="/penstock/static/app.js?v=' in page
    assert 'sse-connect="/penstock/events"' in page
