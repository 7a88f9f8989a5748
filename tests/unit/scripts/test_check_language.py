"""The language check of `make lint` finds dialect in prose and ignores code."""

import ast

import pytest
from scripts.check_language import Text, findings_in, paragraphs_of, strings_of


def _phrases(text: str, *, is_docstring: bool = False) -> list[str]:
    return [found.phrase for found in findings_in(Text(path="x.py", text=text, is_docstring=is_docstring))]


@pytest.mark.parametrize("first", ["What", "Whether", "Whoever", "Of", "Where"])
def test_a_docstring_has_to_begin_with_a_verb_or_a_noun(first: str) -> None:
    text = f"{first} the queue holds."
    assert first in _phrases(text, is_docstring=True)[0]
    assert _phrases("Return what the queue holds.", is_docstring=True) == []
    assert [phrase for phrase in _phrases(f"the field {first}", is_docstring=False) if phrase != "Whoever"] == []


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("The worker is told to stop.", "is told"),
        ("A letter waits.", "letter"),
        ("The message is given back.", "given back"),
        ("It starts again by itself.", "by itself"),
        ("Nobody reads it.", "Nobody"),
        ("nobody reads it", "nobody"),
        ("The queue is empty. Of a queue the oldest message counts.", "Of a"),
    ],
)
def test_a_phrase_is_found_in_any_text(text: str, phrase: str) -> None:
    assert _phrases(text) == [phrase]


@pytest.mark.parametrize(
    "text", ["A dead letter waits.", "capital letters", "the dead-letter queue", "`letter` is a name"]
)
def test_standard_terms_and_code_are_accepted(text: str) -> None:
    assert _phrases(text) == []


def test_strings_of_the_code_are_read_without_their_values() -> None:
    code = (
        'KEY = "a key"\ndef f(n):\n    """A docstring is no text."""\n'
        '    raise ValueError(f"The queue {n} is told nothing.")\n'
    )
    assert list(strings_of(ast.parse(code))) == ["The queue _ is told nothing."]


def test_fenced_blocks_of_a_page_are_not_prose() -> None:
    page = "One paragraph.\n\n```bash\nnobody reads this\n```\n\nAnother one.\n"
    assert [paragraph.strip() for paragraph in paragraphs_of(page)] == ["One paragraph.", "Another one."]
