"""Actions in the browser, with scripts and without: a replay and a retry, from the list to the result and the audit."""

import threading
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect
from tests.web.browser.chromium import WAIT_MS_MAX, Look, Tab
from tests.web.browser.conftest import OpenTab, Served
from tests.web.browser.inspecting import problems_here
from tests.web.shop import THUMBNAILS

from penstock.ledger.records import ObjectState
from penstock.operations.dead_letters.survey import DeadLetterSurvey, take_survey
from penstock.web import dead_letter_watch


def wait_for_end(tab: Tab, badge: str) -> None:
    """Wait until the page of an action shows its end. Without scripts, the browser loads it again."""
    expect(tab.page.locator("main [role='status']").first).to_contain_text(badge, timeout=WAIT_MS_MAX)


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
        wait_for_end(tab, "done")
        assert not scripts or problems_here(tab) == []
        assert broker.stats("orders-dlq").visible == before - 57
        page.get_by_role("link", name="Audit log").first.click()
        entry = page.locator("#main table tbody tr").first
        expect(entry).to_contain_text("replay")
        expect(entry).to_contain_text("57")


def test_a_page_that_waits_is_loaded_again_without_scripts(
    own: Served, looking: OpenTab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = threading.Event()

    def survey_when_shown(*given: Any, **named: Any) -> DeadLetterSurvey:
        assert shown.wait(WAIT_MS_MAX / 1_000)
        return take_survey(*given, **named)

    monkeypatch.setattr(dead_letter_watch, "take_survey", survey_when_shown)
    with looking(own, scripts=False) as tab:
        page = tab.open("/dead")
        expect(page.locator("#live")).to_contain_text("The dead letters are being counted.")
        shown.set()
        expect(page.locator("#main table a", has_text="TimeoutError").first).to_be_visible()


def test_a_failed_object_is_retried(own: Served, looking: OpenTab) -> None:
    (failed,) = own.seed.app.ledger.objects(THUMBNAILS, state=ObjectState.DEAD)
    with looking(own) as tab:
        page = tab.open(f"/object?{urlencode({'address': failed.uri})}")
        press(page, "Retry this object")
        expect(page.locator("#live")).to_contain_text("1 object would be enqueued again")
        assert problems_here(tab) == []
        press(page, "Retry 1 object")
        wait_for_end(tab, "done")
        assert problems_here(tab) == []
    assert own.seed.app.broker.stats(f"{THUMBNAILS}-files").visible == 1
