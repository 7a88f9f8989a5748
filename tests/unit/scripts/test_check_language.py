"""The language check of `make lint` finds dialect in prose and ignores code."""

import ast
from pathlib import Path

import pytest
from scripts.check_language import Text, findings_in, names_of, paragraphs_of, strings_of, texts_of
from scripts.measure_code import Module


def _phrases(text: str, *, is_docstring: bool = False, is_name: bool = False) -> list[str]:
    found = findings_in(Text(path="x.py", text=text, is_docstring=is_docstring, is_name=is_name))
    return [finding.phrase for finding in found]


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


@pytest.mark.parametrize(
    ("name", "phrase"),
    [
        ("test_what_takes_it_again", "what"),
        ("test_a_slow_hook_holds_nobody_up", "nobody"),
        ("test_it_is_for_somebody", "somebody"),
        ("test_who_waits", "who"),
        ("test_it_serves_whoever", "whoever"),
        ("test_a_worker_is_told", "told"),
        ("test_it_tells_the_worker", "tells"),
        ("test_a_letter_waits", "letter"),
        ("test_letters_wait", "letters"),
    ],
)
def test_a_forbidden_word_is_found_in_the_name_of_a_test(name: str, phrase: str) -> None:
    assert _phrases(name, is_name=True) == [phrase]


@pytest.mark.parametrize(
    "name",
    [
        "test_a_dead_letter_waits",
        "test_dead_letters_wait",
        "test_a_message_is_dead_lettered",
        "test_the_whole_file_is_read",
        "test_somewhat_slow",
    ],
)
def test_other_words_in_the_name_of_a_test_are_left_alone(name: str) -> None:
    assert _phrases(name, is_name=True) == []


def test_only_test_functions_and_test_classes_have_their_names_checked() -> None:
    code = "class TestA:\n    async def test_b(self): ...\nclass Helper: ...\ndef told(): ...\ndef test_c(): ...\n"
    module = Module(name="x", path="x.py", text=code, tree=ast.parse(code))
    assert {(text.text, text.is_name) for text in names_of(module)} == {
        ("TestA", True),
        ("test_b", True),
        ("test_c", True),
    }


def test_prose_and_names_of_tests_are_read(tmp_path: Path) -> None:
    for page in ("README.md", "CONTRIBUTING.md"):
        (tmp_path / page).touch()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text('"""What it does."""\n\n\ndef test_who() -> None: ...  # nobody\n')
    texts = list(texts_of(tmp_path, []))
    assert {(finding.path, finding.phrase) for text in texts for finding in findings_in(text)} == {
        ("tests/test_x.py", "What"),
        ("tests/test_x.py", "nobody"),
        ("tests/test_x.py", "who"),
    }
