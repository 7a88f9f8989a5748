"""Every page as people look at it: both themes and languages, on a desk and on phones, with all states and with none.

Axe finds no violation, texts fit their boxes, the page does not scroll sideways, the keyboard reaches every control,
and neither the console nor another host gets anything. The everyday run looks at each page three times, in each width,
theme and language, and once at each of its further addresses; the long matrix has all combinations.
"""

from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from tests.web.browser.chromium import Language, Look, Tab, Theme
from tests.web.browser.conftest import OpenTab, Served
from tests.web.browser.inspecting import problems_here
from tests.web.browser.pages import QUERIES, Example, examples, paths, plain_pages

SIZES = ((1_280, 800), (390, 844), (360, 640))
THEMES: Sequence[Theme] = ("light", "dark")
LANGUAGES: Sequence[Language] = ("en", "ja")
EXAMPLES = [*examples()]
EMPTY = [*plain_pages()]


def looks_at(number: int) -> Iterator[Look]:
    """Yield three looks: each width, both themes and both languages, paired differently for the next page."""
    for turn, (width, height) in enumerate(SIZES):
        theme, language = THEMES[(number + turn) % 2], LANGUAGES[(number // 2 + turn) % 2]
        yield Look(theme=theme, language=language, width=width, height=height)


def is_first(number: int) -> bool:
    """Return True for the first address of a page."""
    return EXAMPLES[number].path not in {example.path for example in EXAMPLES[:number]}


ALL_LOOKS = [
    Look(theme=theme, language=language, width=width, height=height)
    for theme, language, (width, height) in product(THEMES, LANGUAGES, SIZES)
]


def problems_of(tab: Tab, address: str, *, deep: bool = True) -> list[str]:
    """Open a page and return everything that is wrong with it, each with the look."""
    tab.open(address)
    return problems_here(tab, deep=deep)


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=lambda number: str(EXAMPLES[number]))
def test_a_page_in_every_state(full: Served, looking: OpenTab, number: int) -> None:
    address, problems = EXAMPLES[number].address(full.seed), list[str]()
    looks = [*looks_at(number)]
    if not is_first(number):
        looks = looks[number % len(SIZES) :][:1]
    for turn, look in enumerate(looks):
        with looking(full, look) as tab:
            # The first two looks have both themes and both languages; the third one has the narrowest window.
            problems += problems_of(tab, address, deep=turn < 2)
    assert problems == []


@pytest.mark.parametrize("number", range(len(EMPTY)), ids=lambda number: str(EMPTY[number]))
def test_a_page_without_any_data(bare: Served, looking: OpenTab, number: int) -> None:
    look = [*looks_at(number)][number % len(SIZES)]
    with looking(bare, look) as tab:
        assert problems_of(tab, EMPTY[number].path) == []


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
