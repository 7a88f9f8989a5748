"""Export of dead-lettered messages as lines of JSON, and reading them again."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dead_letters.jsonl import line_of, read_line
from penstock.dead_letters.reader import DeadLetteredMessage
from penstock.errors import UsageError
from penstock.messaging.message import Message

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
TEXT = st.text(max_size=40)
MESSAGES = st.builds(
    Message,
    id=TEXT,
    body=st.binary(max_size=60) | TEXT.map(str.encode),
    enqueued_at=st.floats(min_value=0, max_value=1e11),
    attributes=st.dictionaries(TEXT, ANY_TEXT | st.binary(max_size=40), max_size=4),
    group=st.none() | TEXT,
)


@given(queue=TEXT, message=MESSAGES)
def test_a_line_survives_a_round_trip(queue: str, message: Message) -> None:
    line = line_of(DeadLetteredMessage(queue=queue, message=message))
    assert line.endswith(b"\n")
    assert line.isascii()
    assert len(line.splitlines()) == 1
    kept = read_line(line, number=1, file="letters")
    assert (kept.queue, kept.message) == (queue, message)


def test_text_is_written_as_text_and_bytes_in_base64() -> None:
    message = Message(id="l", body=b"\xff", enqueued_at=1.0, attributes={"a": b"\x00", "b": '{"base64": "AA=="}'})
    fields = json.loads(line_of(DeadLetteredMessage(queue="q", message=message)))
    assert fields["body_base64"] == base64.b64encode(b"\xff").decode()
    assert fields["attributes"] == {"a": {"base64": "AA=="}, "b": '{"base64": "AA=="}'}


def test_a_message_has_one_replay_id_for_any_line_ending_and_destination() -> None:
    line = line_of(DeadLetteredMessage(queue="q", message=Message(id="l", body=b"1", enqueued_at=1.0)))
    other = line_of(DeadLetteredMessage(queue="q", message=Message(id="m", body=b"1", enqueued_at=1.0)))
    once, again = read_line(line, number=1, file="letters"), read_line(line.strip() + b"\r\n", number=7, file="letters")
    assert once.intent("q") == again.intent("q")
    assert once.intent("q").replay_id == once.intent("elsewhere").replay_id
    assert once.intent("q").replay_id != read_line(other, number=1, file="letters").intent("q").replay_id
    assert once.outgoing(once.intent("q")).deduplication_id == once.intent("q").replay_id


GOOD: dict[str, Any] = {
    "penstock_letter": 1,
    "queue": "q",
    "id": "l",
    "enqueued_at": 1.0,
    "group": None,
    "body": "1",
    "attributes": {},
}


@pytest.mark.parametrize(
    "change",
    [
        {"penstock_letter": 2},
        {"queue": None},
        {"id": 7},
        {"enqueued_at": "soon"},
        {"group": 7},
        {"body": 1},
        {"attributes": []},
        {"attributes": {"a": 7}},
        {"attributes": {"a": {"base64": "?"}}},
    ],
)
def test_a_line_with_an_invalid_field_is_rejected_with_its_number(change: dict[str, Any]) -> None:
    assert read_line(json.dumps(GOOD).encode(), number=1, file="letters").queue == "q"
    with pytest.raises(UsageError, match="Line 12 of letters is not an exported dead letter"):
        read_line(json.dumps({**GOOD, **change}).encode(), number=12, file="letters")


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b"1", b"\xff", b"[" * 100_000, b'{"penstock_letter": 1}'])
def test_a_line_that_is_not_an_exported_message_is_rejected(line: bytes) -> None:
    with pytest.raises(UsageError, match="Line 1 of letters is not an exported dead letter"):
        read_line(line, number=1, file="letters")
