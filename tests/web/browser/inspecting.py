"""The rules that hold for every page, applied to the one that a tab shows."""

import json
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page
from tests.web.browser.chromium import Tab

CHECKS = (Path(__file__).parent / "checks.js").read_text()
TABS_MAX = 400  # presses of the key; a page with more controls is left out
NODES_SHOWN = 3  # of each violation


def problems_here(tab: Tab, *, deep: bool = True) -> list[str]:
    """Return everything that is wrong with the page, each with the look. Without `deep`, leave out the slow checks."""
    page = tab.page
    page.evaluate(CHECKS)
    found = list[str](page.evaluate("pageChecks.layout()"))
    if deep:
        found += [*axe_violations(page), *keyboard_problems(page)]
    if "broken" in page.title():
        found.append("a script from outside ran")
    if page.locator("html").get_attribute("lang") != tab.look.language:
        found.append("the page is in another language")
    return [f"{tab.look}: {problem}" for problem in (*found, *tab.take_problems())]


def axe_violations(page: Page) -> list[str]:
    """Return a line for each node that breaks a rule of axe."""
    violations = Axe().run(page).response["violations"]
    return [
        f"axe {one['id']}: {node['html'][:200]} {json.dumps(node['any'][:1])[:300]}"
        for one in violations
        for node in one["nodes"][:NODES_SHOWN]
    ]


def keyboard_problems(page: Page) -> list[str]:
    """Press Tab through the page and return the controls that it misses, or on which the focus cannot be seen."""
    count = int(page.evaluate("pageChecks.watchFocus()"))
    if count + 10 > TABS_MAX:
        return []
    for _ in range(count + 10):
        page.keyboard.press("Tab")
    return list(page.evaluate("pageChecks.focusProblems()"))
