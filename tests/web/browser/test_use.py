"""The dashboard in use: numbers that change under one's eyes, the keyboard, and a browser without scripts."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect
from tests.web.browser.chromium import WAIT_MS_MAX, Look
from tests.web.browser.conftest import OpenTab, Served, serve
from tests.web.seeds import empty

MARK = "window.loadedAt = performance.now()"
DETAILS = "<details id='more'><summary>More</summary><p>hidden at first</p></details>"


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Served]:
    """The dashboard of a shop with one message."""
    with empty(tmp_path) as seed:
        seed.app.send("orders", {"order": 1})
        with serve(seed) as served:
            yield served


def with_details(route: Route) -> None:
    """Pass a page on with an element in its live part that people can open."""
    response = route.fetch()
    route.fulfill(response=response, body=response.text().replace("</section>", f"{DETAILS}</section>", 1))


def test_numbers_change_without_a_reload_and_nothing_is_lost(idle: Served, looking: OpenTab) -> None:
    with looking(idle) as tab:
        tab.page.route(f"{idle.url}/", with_details)
        page = tab.open("/")
        page.evaluate(MARK)
        row = page.locator("#live tr", has_text="orders").first
        before = row.inner_text()
        page.locator("#more summary").click()
        box = page.locator("#live [tabindex='0'], #live a").first
        box.focus()
        focused = page.evaluate_handle("document.activeElement")
        idle.seed.app.send_many("orders", [{"order": number} for number in range(2, 778)])
        expect(row).to_contain_text("777")
        assert row.inner_text() != before
        assert page.evaluate("window.loadedAt") is not None
        assert page.evaluate("element => element === document.activeElement", focused)
        assert page.locator("#more").get_attribute("open") is not None


def test_a_lost_connection_is_shown_and_found_again(tmp_path: Path, looking: OpenTab) -> None:
    with empty(tmp_path) as seed, ExitStack() as first:
        seed.app.send("orders", {"order": 1})
        served = first.enter_context(serve(seed))
        with looking(served) as tab:
            page = tab.open("/")
            expect(page.locator("#live")).to_contain_text("orders")
            first.close()
            expect(page.locator("#connection")).to_contain_text("Connection lost")
            seed.app.send("mails", {"to": "ann"})
            with serve(seed, port=int(served.url.rpartition(":")[2])):
                expect(page.locator("#live")).to_contain_text("mails", timeout=WAIT_MS_MAX)
                expect(page.locator("#connection")).to_have_text("")
                expected = ("net::ERR_", "htmx:sseError", "[object Event]")
                assert [one for one in tab.take_problems() if not any(text in one for text in expected)] == []


def test_the_first_key_skips_to_the_content(idle: Served, looking: OpenTab) -> None:
    with looking(idle) as tab:
        page = tab.open("/")
        page.keyboard.press("Tab")
        skip = page.locator(":focus")
        expect(skip).to_have_attribute("href", "#main")
        expect(skip).to_be_in_viewport()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"


def test_preferences_work_by_keyboard(idle: Served, looking: OpenTab) -> None:
    with looking(idle) as tab:
        page = tab.open("/")
        page.get_by_label("Language").select_option("ja")
        expect(page.locator("html")).to_have_attribute("lang", "ja")
        page.get_by_label("配色").select_option("dark")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        assert background(page) != "rgb(246, 247, 248)"


def test_without_scripts_pages_and_preferences_work(idle: Served, looking: OpenTab) -> None:
    with looking(idle, Look(width=390, height=844), scripts=False) as tab:
        page = tab.open("/")
        expect(page.locator("h1")).to_have_text("Overview")
        expect(page.locator("#live")).to_contain_text("orders")
        page.get_by_label("Language").select_option("ja")
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("html")).to_have_attribute("lang", "ja")


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))
