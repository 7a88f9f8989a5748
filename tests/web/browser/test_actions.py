"""Actions in the browser, with scripts and without: a replay and a retry, from the list to the result and the audit."""

from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect
from tests.web.browser.chromium import WAIT_MS_MAX, Look, Tab
from tests.web.browser.conftest import OpenTab, Served
from tests.web.browser.inspecting import problems_here
from tests.web.shop import THUMBNAILS

from penstock.ledger.records import ObjectState

RELOADS_MAX = 50


def wait_for_end(tab: Tab, badge: str, *, scripts: bool) -> None:
    """Wait until the page of an action shows its end. Without scripts, people reload it."""
    state = tab.page.locator("main [role='status']").first
    for _ in range(0 if scripts else RELOADS_MAX):
        if badge in state.inner_text():
            return
        tab.page.reload()
    expect(state).to_contain_text(badge, timeout=WAIT_MS_MAX)


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name).click()


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
def test_all_dead_letters_of_one_error_are_replayed(own: Served, looking: OpenTab, scripts: bool) -> None:
    broker = own.seed.app.broker
    before = broker.stats("orders-dlq").visible
    with looking(own, Look(theme="dark", width=390, height=844), scripts=scripts) as tab:
        page = tab.open("/dead")
        page.locator("#main table a", has_text="TimeoutError").first.click()
        expect(page.locator("h1")).to_have_text("Dead letters of one error")
        assert not scripts or problems_here(tab) == []
        press(page, "Plan a replay")
        expect(page.locator("#live")).to_contain_text("57 dead letters would be sent back")
        assert not scripts or problems_here(tab) == []
        assert broker.stats("orders-dlq").visible == before
        press(page, "Send 57 dead letters back")
        wait_for_end(tab, "done", scripts=scripts)
        assert not scripts or problems_here(tab) == []
        assert broker.stats("orders-dlq").visible == before - 57
        page.get_by_role("link", name="Audit log").first.click()
        entry = page.locator("#main table tbody tr").first
        expect(entry).to_contain_text("replay")
        expect(entry).to_contain_text("57")


def test_a_failed_object_is_retried(own: Served, looking: OpenTab) -> None:
    (failed,) = own.seed.app.ledger.objects(THUMBNAILS, state=ObjectState.DEAD)
    with looking(own) as tab:
        page = tab.open(f"/object?{urlencode({'address': failed.uri})}")
        press(page, "Retry this object")
        expect(page.locator("#live")).to_contain_text("1 object would be enqueued again")
        assert problems_here(tab) == []
        press(page, "Retry 1 object")
        wait_for_end(tab, "done", scripts=True)
        assert problems_here(tab) == []
    assert own.seed.app.broker.stats(f"{THUMBNAILS}-files").visible == 1
