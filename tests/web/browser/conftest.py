"""Fixtures: one Chromium, and dashboards of the seeded shop and of an empty one."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.web.browser.chromium import Look, Tab, chromium, tab, why_not_here
from tests.web.seeds import Seed, empty, seeded

from penstock.messaging.clock import SystemClock
from penstock.monitoring.endpoint import Address
from penstock.web import dashboard
from penstock.web.access import authenticator
from penstock.web.server import WebServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A shop and the address of its dashboard, without a slash at the end."""

    seed: Seed
    url: str


@contextmanager
def serve(seed: Seed, *, port: int = 0) -> Iterator[Served]:
    """Serve the dashboard of a shop over HTTP."""
    clock = SystemClock()
    pages = dashboard(seed.app, access=authenticator(seed.app.settings, clock=clock), clock=clock)
    server = WebServer(pages, address=Address(host="127.0.0.1", port=port), setting="web.address")
    server.open()
    try:
        yield Served(seed=seed, url=server.url.rstrip("/"))
    finally:
        server.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for the tests of one file: while it runs, no other test of this process can use `asyncio.run`."""
    if (missing := why_not_here()) is not None:
        pytest.skip(missing)
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The dashboard of a shop in every state. Tests only look at it."""
    with seeded(tmp_path_factory.mktemp("full")) as seed, serve(seed) as served:
        yield served


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The dashboard of a shop before its first message."""
    with empty(tmp_path_factory.mktemp("bare")) as seed, serve(seed) as served:
        yield served


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Served]:
    """The dashboard of a shop in every state, which this test may change."""
    with seeded(tmp_path) as seed, serve(seed) as served:
        yield served


OpenTab = Callable[..., AbstractContextManager[Tab]]


@pytest.fixture
def looking(browser: Browser) -> OpenTab:
    """Open a tab; at its end the test fails if a page broke a rule that holds for all pages."""

    @contextmanager
    def opened(served: Served, look: Look | None = None, *, scripts: bool = True) -> Iterator[Tab]:
        with tab(browser, served.url, look or Look(), scripts=scripts) as one:
            yield one
            assert one.take_problems() == []

    return opened
