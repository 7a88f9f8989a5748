"""Numbers with their nouns."""

import pytest

from penstock.messaging.wording import counted, worded


@pytest.mark.parametrize(("number", "text"), [(0, "0 lines"), (1, "1 line"), (2, "2 lines"), (12_000, "12,000 lines")])
def test_a_noun_is_singular_only_for_one(number: int, text: str) -> None:
    assert counted(number, "line") == text


def test_an_irregular_plural_is_given() -> None:
    assert [counted(number, "entry", "entries") for number in (1, 2)] == ["1 entry", "2 entries"]


def test_a_sentence_has_a_form_for_one() -> None:
    assert worded(1, "{} message waits", "{} messages wait") == "1 message waits"
    assert worded(3_000, "{} message waits", "{} messages wait") == "3,000 messages wait"
