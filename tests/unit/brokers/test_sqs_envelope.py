"""Encoding of messages for SQS: what is sent, and that it decodes to the same message."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.brokers.sqs.envelope import NOTES, deduplication_id, opened, sealed, size_bytes
from penstock.brokers.sqs.limits import ATTRIBUTES_MAX

XML_CHARS = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")

names = st.text(max_size=12) | st.sampled_from(["penstock", "penstock-death", "a", "a.b", "AWS.x", ".a", "a..b", "ok"])
values = st.text(max_size=12) | st.binary(max_size=12)
groups = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def as_received(entry: Mapping[str, Any], *, loses_group: bool = False) -> Mapping[str, Any]:
    """Return the sent entry as `ReceiveMessage` returns it."""
    group = entry.get("MessageGroupId")
    return {
        "Body": entry["MessageBody"],
        "MessageAttributes": entry.get("MessageAttributes", {}),
        "Attributes": {"MessageGroupId": group} if group is not None and not loses_group else {},
    }


@given(st.binary(max_size=30), st.dictionaries(names, values, max_size=14), groups, st.booleans(), st.booleans())
def test_any_message_is_valid_for_sqs_and_survives_a_round_trip(
    body: bytes, attributes: dict[str, str | bytes], group: str | None, fifo: bool, loses_group: bool
) -> None:
    entry = sealed(body, attributes, group, fifo=fifo)
    assert opened(as_received(entry, loses_group=loses_group and not fifo)) == (body, attributes, group)
    assert XML_CHARS.fullmatch(entry["MessageBody"])
    written = entry.get("MessageAttributes", {})
    assert len(written) <= ATTRIBUTES_MAX
    for name, value in written.items():
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,256}", name)
        assert not name.lower().startswith(("aws.", "amazon."))
        assert value.get("BinaryValue") or XML_CHARS.fullmatch(value["StringValue"])
    if "MessageGroupId" in entry:
        assert re.fullmatch(r"[!-~]{1,128}", entry["MessageGroupId"])
    assert ("MessageGroupId" in entry) is (fifo or group is not None) or group == ""


def test_plain_text_and_its_attributes_are_sent_unchanged() -> None:
    assert sealed(b'{"a": 1}', {"k": "v", "b": b"\0"}, None, fifo=False) == {
        "MessageBody": '{"a": 1}',
        "MessageAttributes": {
            "k": {"DataType": "String", "StringValue": "v"},
            "b": {"DataType": "Binary", "BinaryValue": b"\0"},
        },
    }


def test_more_than_ten_attributes_are_packed_our_own_first() -> None:
    ten = {f"a{n}": "x" for n in range(10)}
    assert sealed(b"x", ten, None, fifo=False)["MessageAttributes"].keys() == ten.keys()
    eleven = sealed(b"x", {"penstock-death": "d", **ten}, None, fifo=False)["MessageAttributes"]
    assert eleven.keys() == {*(f"a{n}" for n in range(9)), NOTES}
    assert json.loads(eleven[NOTES]["StringValue"]) == {"attributes": {"a9": "x", "penstock-death": "d"}}


def test_a_group_uses_one_of_the_ten_attributes() -> None:
    written = sealed(b"x", {f"a{n}": "x" for n in range(10)}, "tenant", fifo=False)["MessageAttributes"]
    assert written.keys() == {*(f"a{n}" for n in range(9)), NOTES}


def test_row_83_ten_attributes_and_a_group_lose_none() -> None:
    ten: dict[str, str | bytes] = {f"a{n}": b"\xff" if n % 2 else "x" for n in range(10)}
    entry = sealed(b"x", {**ten, "penstock-death": "{}"}, "tenant", fifo=False)
    assert entry["MessageGroupId"] == "tenant"
    assert opened(as_received(entry)) == (b"x", {**ten, "penstock-death": "{}"}, "tenant")


def test_a_message_of_another_sender_is_received_unchanged() -> None:
    raw = {
        "Body": "plain",
        "MessageAttributes": {
            "n": {"DataType": "Number", "StringValue": "12"},
            "s": {"DataType": "String.kind", "StringValue": "x"},
            "b": {"DataType": "Binary.gzip", "BinaryValue": b"\x1f"},
        },
        "Attributes": {"MessageGroupId": "theirs"},
    }
    assert opened(raw) == (b"plain", {"n": "12", "s": "x", "b": b"\x1f"}, "theirs")
    assert opened({"Body": "bare"}) == (b"bare", {}, None)
    assert opened({"Body": "half \ud800"})[0] == b"half \xed\xa0\x80"


@pytest.mark.parametrize(
    "notes",
    [
        "no JSON",
        "[]",
        "[" * 100_000,
        '{"more": 1}',
        '{"group": 1}',
        '{"group": "\\ud800"}',
        '{"body": "gzip"}',
        '{"body": "base64"}',
        '{"body": "empty"}',
        '{"attributes": []}',
        '{"attributes": {"a": 1}}',
        '{"attributes": {"a": ["!"]}}',
        '{"attributes": {"a": ["YQ==", "YQ=="]}}',
        '{"attributes": {"a": [1]}}',
    ],
)
def test_malformed_notes_are_an_ordinary_attribute(notes: str) -> None:
    raw = {"Body": "not base64!", "MessageAttributes": {NOTES: {"DataType": "String", "StringValue": notes}}}
    assert opened(raw) == (b"not base64!", {NOTES: notes}, None)
    binary = {"Body": "x", "MessageAttributes": {NOTES: {"DataType": "Binary", "BinaryValue": b"{}"}}}
    assert opened(binary) == (b"x", {NOTES: b"{}"}, None)


def test_an_attribute_named_like_our_notes_is_packed() -> None:
    entry = sealed(b"x", {NOTES: '{"group": "forged"}'}, None, fifo=False)
    assert opened(as_received(entry)) == (b"x", {NOTES: '{"group": "forged"}'}, None)


def test_groups_that_sqs_rejects_are_replaced_by_distinct_digests() -> None:
    ids = [sealed(b"x", {}, group, fifo=True)["MessageGroupId"] for group in ("a b", "a  b", "", None, "ä")]
    assert len(set(ids)) == 5
    assert ids[0].startswith("sha256-")
    assert deduplication_id("x" * 129) != deduplication_id("x" * 130)
    assert deduplication_id("tick-1") == "tick-1"


def test_size_bytes_counts_as_sqs_does() -> None:
    assert size_bytes({"MessageBody": "ä"}) == 2
    text = {"DataType": "String", "StringValue": "ö"}
    assert size_bytes({"MessageBody": "a", "MessageAttributes": {"name": text}}) == 1 + 4 + 6 + 2
    binary = {"DataType": "Binary", "BinaryValue": b"123"}
    assert size_bytes({"MessageBody": "a", "MessageAttributes": {"n": binary}}) == 1 + 1 + 6 + 4
