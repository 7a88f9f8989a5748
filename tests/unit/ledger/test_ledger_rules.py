"""Pure rules and conversions of the ledger."""

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


FAILED = FailedObjectState(
    original_message=OriginalMessage(message_id="m", enqueued_at=100.0, replay_id="r-1"),
    dead_at=200.0,
    replay_ids=frozenset({"r-1"}),
)


@pytest.mark.parametrize(
    ("original_message", "expected"),
    [
        (OriginalMessage(message_id="m", enqueued_at=100.0, replay_id="r-1"), False),
        (OriginalMessage(message_id="other", enqueued_at=200.0), False),  # not after the failure
        (OriginalMessage(message_id="other", enqueued_at=200.1), True),
        (OriginalMessage(message_id="m", enqueued_at=200.1, replay_id="r-1"), True),  # a spent replay, redriven by hand
        (OriginalMessage(message_id="other", enqueued_at=0.0, replay_id="r-2"), True),
    ],
)
def test_only_a_later_message_or_a_new_replay_revives_a_failed_object(
    original_message: OriginalMessage, expected: bool
) -> None:
    assert revives(original_message, FAILED) is expected


def test_a_redelivery_revives_nothing_if_the_brokers_clock_is_ahead() -> None:
    ahead = OriginalMessage(message_id="m", enqueued_at=900.0)
    assert not revives(ahead, FailedObjectState(original_message=ahead, dead_at=200.0, replay_ids=frozenset()))


@pytest.mark.parametrize(
    ("text", "kept"), [("plain", "plain"), ("日本語 😀", "日本語 😀"), ("a\0b", "a\\x00b"), ("a\udcffb", "a\\udcffb")]
)
def test_text_is_made_storable(text: str, kept: str) -> None:
    assert storable(text) == kept


def test_reasons_are_bounded() -> None:
    assert stored_reason("x" * 100_000) == "x" * REASON_CHARS_MAX
