"""Every text of the dashboard has its Japanese, with the same values in it."""

import ast
import json
import string
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from jinja2 import nodes

from penstock.web import audit, dead_forms, messages, object_states, queues, rendering, texts

WEB = Path(str(files("penstock.web")))
FUNCTIONS = {
    "_": (0,),
    "texts": (0,),
    "counted": (1, 2),
    "count": (1, 2),
    "sentence": (0,),
    "counted_sentence": (1, 2),
}  # the positions of their texts


def texts_of_templates() -> Iterator[str]:
    environment = rendering.environment()
    for file in sorted((WEB / "templates").rglob("*.html")):
        tree = environment.parse(file.read_text(encoding="utf-8"))
        for call in tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name in FUNCTIONS:
                for position in FUNCTIONS[call.node.name]:
                    argument = call.args[position]
                    if isinstance(argument, nodes.Const):
                        yield argument.value


def texts_of_code() -> Iterator[str]:
    for file in sorted(WEB.rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            for position in FUNCTIONS.get(name, ()):
                argument = call.args[position] if position < len(call.args) else None
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value


def values_in(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def texts_chosen_by_value() -> Iterator[str]:
    yield from audit.ACTIONS.values()
    for named in (dead_forms.FILTERS, dead_forms.OPTIONS, dead_forms.TIERS, rendering.NAVIGATION, rendering.THEMES):
        yield from named.values()
    yield from (*messages.STATES.values(), *object_states.WORDS.values(), *queues.RANGES.values())
    for chart in queues.CHARTS:
        yield from (chart.title, *chart.values.values())


USED = sorted({*texts_of_templates(), *texts_of_code(), *texts_chosen_by_value()})


@pytest.mark.parametrize("text", USED)
def test_each_text_has_its_japanese_with_the_same_values(text: str) -> None:
    japanese = texts.texts_in("ja").translations
    assert text in japanese
    assert values_in(japanese[text]) == values_in(text)


def test_no_text_is_translated_twice_in_two_ways() -> None:
    found: dict[str, str] = {}
    for file in sorted((WEB / "texts" / "ja").glob("*.json")):
        for text, japanese in json.loads(file.read_text(encoding="utf-8")).items():
            assert found.setdefault(text, japanese) == japanese, f"{file.name}: {text}"


@pytest.mark.parametrize(
    ("header", "language"),
    [("ja", "ja"), ("ja-JP,en;q=0.8", "ja"), ("en,ja;q=0.9", "en"), ("fr, ja;q=0.3", "ja"), ("", "en"), (";q=x", "en")],
)
def test_the_language_is_the_browsers(header: str, language: str) -> None:
    assert texts.best_language(header) == language


def test_values_in_a_text_are_escaped_and_visible() -> None:
    shown = texts.texts_in("en")("{count} messages in {queue}", count=3, queue="<b>\x1b[31m\u202eq")
    assert shown == "3 messages in &lt;b&gt;\\x1b[31m\\u202eq"
