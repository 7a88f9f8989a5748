"""The ledger's pure rules and conversions."""

import pytest

from penstock.ledger.records import OriginalMessage
from penstock.ledger.rules import REASON_CHARS_MAX, FailedObjectState, is_later, revives, storable, stored_reason


@pytest.mark.parametrize(
    ("sequencer", "than", "later"),
    [
        ("2", "1", True),
        ("1", "2", False),
        ("1", "1", False),
        ("10", "1", False),  # padded to equal
        ("11", "1", True),
        ("1", "0FFF", True),  # text, not number: the left-most difference decides
        ("005F2D6A7A", "005F2D6A79FFFF", True),
        ("0055", "005500", False),
        ("9", "10", True),
        ("a", "A", True),  # as given
        ("", "0", False),
    ],
)
def test_sequencers_compare_as_text_padded_on_the_right(sequencer: str, than: str, later: bool) -> None:
    assert is_later(sequencer, than) is later


DEAD = FailedObjectState(
    original_message=OriginalMessage(message_id="m", enqueued_at=100.0, replay_id="r-1"),
    dead_at=200.0,
    replay_ids=frozenset({"r-1"}),
)


@pytest.mark.parametrize(
    ("original_message", "life"),
    [
        (OriginalMessage(message_id="m", enqueued_at=100.0, replay_id="r-1"), False),
        (OriginalMessage(message_id="other", enqueued_at=200.0), False),  # not after the death
        (OriginalMessage(message_id="other", enqueued_at=200.1), True),
        (OriginalMessage(message_id="m", enqueued_at=200.1, replay_id="r-1"), True),  # a spent replay, redriven by hand
        (OriginalMessage(message_id="other", enqueued_at=0.0, replay_id="r-2"), True),
    ],
)
def test_who_revives(original_message: OriginalMessage, life: bool) -> None:
    assert revives(original_message, DEAD) is life


def test_a_broker_ahead_of_the_database_does_not_revive_by_redelivery() -> None:
    ahead = OriginalMessage(message_id="m", enqueued_at=900.0)
    assert not revives(ahead, FailedObjectState(original_message=ahead, dead_at=200.0, replay_ids=frozenset()))


@pytest.mark.parametrize(
    ("text", "kept"), [("plain", "plain"), ("日本語 😀", "日本語 😀"), ("a\0b", "a\\x00b"), ("a\udcffb", "a\\udcffb")]
)
def test_text_is_made_storable(text: str, kept: str) -> None:
    assert storable(text) == kept


def test_reasons_are_bounded() -> None:
    assert stored_reason("x" * 100_000) == "x" * REASON_CHARS_MAX
