"""Every page as people look at it: both themes and languages, on a desk and on phones, with all states and with none.

Axe finds no violation, texts fit their boxes, the page does not scroll sideways, the keyboard reaches every control,
and neither the console nor another host gets anything. The everyday run looks at each page three times, in each width,
theme and language; the long matrix has all combinations.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page
from tests.web.browser.chromium import Language, Look, Tab, Theme
from tests.web.browser.conftest import OpenTab, Served
from tests.web.browser.pages import QUERIES, Example, examples, paths, plain_pages

CHECKS = (Path(__file__).parent / "checks.js").read_text()
SIZES = ((1_280, 800), (390, 844), (360, 640))
THEMES: Sequence[Theme] = ("light", "dark")
LANGUAGES: Sequence[Language] = ("en", "ja")
EXAMPLES = [*examples()]
EMPTY = [*plain_pages()]
TABS_MAX = 400  # presses of the key


def looks_at(number: int) -> Iterator[Look]:
    """Yield three looks: each width, both themes and both languages, paired differently for the next page."""
    for turn, (width, height) in enumerate(SIZES):
        theme, language = THEMES[(number + turn) % 2], LANGUAGES[(number // 2 + turn) % 2]
        yield Look(theme=theme, language=language, width=width, height=height)


ALL_LOOKS = [
    Look(theme=theme, language=language, width=width, height=height)
    for theme, language, (width, height) in product(THEMES, LANGUAGES, SIZES)
]


def problems_of(tab: Tab, address: str) -> list[str]:
    """Open a page and return everything that is wrong with it, each with the look."""
    page = tab.open(address)
    page.evaluate(CHECKS)
    found = [*page.evaluate("pageChecks.layout()"), *axe_violations(page), *keyboard_problems(page)]
    if "broken" in page.title():
        found.append("a script from outside ran")
    if page.locator("html").get_attribute("lang") != tab.look.language:
        found.append("the page is in another language")
    return [f"{tab.look}: {problem}" for problem in (*found, *tab.take_problems())]


def axe_violations(page: Page) -> list[str]:
    violations = Axe().run(page).response["violations"]
    return [
        f"axe {one['id']}: {node['html'][:200]} {json.dumps(node['any'][:1])[:300]}"
        for one in violations
        for node in one["nodes"][:3]
    ]


def keyboard_problems(page: Page) -> list[str]:
    """Press Tab through the page and return the controls that it misses, or on which the focus cannot be seen."""
    count = page.evaluate("pageChecks.watchFocus()")
    for _ in range(min(count + 10, TABS_MAX)):
        page.keyboard.press("Tab")
    return page.evaluate("pageChecks.focusProblems()") if count + 10 <= TABS_MAX else []


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=lambda number: str(EXAMPLES[number]))
def test_a_page_in_every_state(full: Served, looking: OpenTab, number: int) -> None:
    address, problems = EXAMPLES[number].address(full.seed), list[str]()
    for look in looks_at(number):
        with looking(full, look) as tab:
            problems += problems_of(tab, address)
    assert problems == []


@pytest.mark.parametrize("number", range(len(EMPTY)), ids=lambda number: str(EMPTY[number]))
def test_a_page_without_any_data(bare: Served, looking: OpenTab, number: int) -> None:
    problems = list[str]()
    for look in [*looks_at(number)][number % 3 :][:1]:
        with looking(bare, look) as tab:
            problems += problems_of(tab, EMPTY[number].path)
    assert problems == []


@pytest.mark.slow
@pytest.mark.parametrize("look", ALL_LOOKS, ids=str)
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_a_page_in_every_state_and_look(full: Served, looking: OpenTab, example: Example, look: Look) -> None:
    with looking(full, look) as tab:
        assert problems_of(tab, example.address(full.seed)) == []


@pytest.mark.slow
@pytest.mark.parametrize("look", ALL_LOOKS, ids=str)
@pytest.mark.parametrize("example", EMPTY, ids=str)
def test_a_page_without_any_data_in_every_look(bare: Served, looking: OpenTab, example: Example, look: Look) -> None:
    with looking(bare, look) as tab:
        assert problems_of(tab, example.path) == []


def test_every_address_names_a_page() -> None:
    assert set(QUERIES) <= set(paths())
