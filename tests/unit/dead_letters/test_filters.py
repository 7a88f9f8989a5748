"""Filters of dead-lettered messages, and their queues of origin."""

import json
from typing import Any

import pytest

from penstock.dead_letters.filters import DeadLetterFilter, origins_of, source_of
from penstock.dead_letters.groups import Grouping, group_id
from penstock.dead_letters.reader import DeadLetteredMessage
from penstock.messaging.death import DEATH_ATTRIBUTE, SET_ASIDE_ATTRIBUTE, Death, encode_death, move_death_to_history
from penstock.messaging.message import Message

NOW = 1_000.0
BODY = json.dumps(
    {
        "Records": [
            {
                "eventVersion": "2.1",
                "eventSource": "aws:s3",
                "eventName": "ObjectCreated:Put",
                "s3": {"bucket": {"name": "landing"}, "object": {"key": "a+b%2Fc", "size": 1, "eTag": "e"}},
            }
        ]
    }
).encode()


def dead_letter(
    *, queue: str = "orders-dlq", body: bytes = b"1", at: float = NOW - 60, moved_from: str | None = None, **fields: Any
) -> DeadLetteredMessage:
    """Return a dead-lettered message whose death has the given fields; without any, it has no death."""
    attributes: dict[str, str | bytes] = dict(fields.pop("attributes", {}))
    if fields:
        given = {"reason": "r", "attempts": 1, "worker": "w", "queue": "orders", "message_id": "m", **fields}
        attributes[DEATH_ATTRIBUTE] = encode_death(Death(**given, last_failed_at=1.0, enqueued_at=1.0))
    message = Message(id="l", body=body, enqueued_at=at, attributes=attributes)
    return DeadLetteredMessage(queue=queue, message=message, moved_from=moved_from)


KNOWN = dead_letter(
    reason="KeyError: 7",
    exception="KeyError: 'Seven'",
    handler="bill",
    fingerprint="bill|KeyError|shop.py:f",
    body=BODY,
    attributes={
        **move_death_to_history(dead_letter(message_id="earlier").message.attributes),
        "tenant": "7",
        "raw": b"\xff",
        SET_ASIDE_ATTRIBUTE: "replayed often",
    },
)


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (DeadLetterFilter(), True),
        (DeadLetterFilter(handler="bill"), True),
        (DeadLetterFilter(handler="ship"), False),
        (DeadLetterFilter(error="keyerror"), True),
        (DeadLetterFilter(error="SEVEN"), True),
        (DeadLetterFilter(error="shop.py"), True),
        (DeadLetterFilter(error="Replayed Often"), True),
        (DeadLetterFilter(error="bill|KeyError|shop.py:f"), True),
        (DeadLetterFilter(group=group_id("bill|KeyError|shop.py:f")), True),
        (DeadLetterFilter(group=group_id("KeyError")), False),
        (DeadLetterFilter(group=group_id("bill|KeyError|shop.py:f"), handler="ship"), False),
        (DeadLetterFilter(error="timeout"), False),
        (DeadLetterFilter(older_than_seconds=59.0), True),
        (DeadLetterFilter(older_than_seconds=61.0), False),
        (DeadLetterFilter(younger_than_seconds=61.0), True),
        (DeadLetterFilter(younger_than_seconds=59.0), False),
        (DeadLetterFilter(attributes={"tenant": "7"}), True),
        (DeadLetterFilter(attributes={"tenant": "7", "raw": "\\xff"}), True),
        (DeadLetterFilter(attributes={"tenant": "8"}), False),
        (DeadLetterFilter(attributes={"nothing": ""}), False),
        (DeadLetterFilter(ids=frozenset({"l"})), True),
        (DeadLetterFilter(ids=frozenset({"m"})), True),
        (DeadLetterFilter(ids=frozenset({"earlier"})), True),
        (DeadLetterFilter(ids=frozenset({"ear"})), False),
        (DeadLetterFilter(ids=frozenset({"x"})), False),
        (DeadLetterFilter(object_uri="s3://landing/a b/c"), True),
        (DeadLetterFilter(object_uri="s3://landing/a"), False),
        (DeadLetterFilter(handler="bill", error="timeout"), False),
    ],
)
def test_a_filter_matches_if_all_its_conditions_do(wanted: DeadLetterFilter, matches: bool) -> None:
    assert wanted.matches(KNOWN, now=NOW) is matches
    assert wanted.is_empty is (wanted == DeadLetterFilter())


@pytest.mark.parametrize(
    "wanted", [DeadLetterFilter(handler="bill"), DeadLetterFilter(error="r"), DeadLetterFilter(ids=frozenset({"m"}))]
)
def test_a_message_without_a_death_matches_no_filter_on_its_death(wanted: DeadLetterFilter) -> None:
    assert not wanted.matches(dead_letter(), now=NOW)
    assert not DeadLetterFilter(object_uri="s3://b/k").matches(dead_letter(body=b"no notification"), now=NOW)


@pytest.mark.parametrize(
    ("error", "matches"),
    [
        ('no "x" in it', True),
        ("über", True),
        ("ÜBER", True),
        ("a\nb", True),
        ("back\\slash", True),
        ("reason", False),
        ("traceback", False),
        ("no <text> in it über a b back\\slash", True),
    ],
)
def test_the_error_filter_searches_the_text_and_not_its_encoding(error: str, matches: bool) -> None:
    found = dead_letter(reason='no "x" in it über a\nb back\\slash')
    assert DeadLetterFilter(error=error).matches(found, now=NOW) is matches


def test_the_name_of_the_group_without_a_reason_matches_its_messages() -> None:
    assert DeadLetterFilter(error="no reason was recorded").matches(dead_letter(), now=NOW)


@pytest.mark.parametrize(
    "found",
    [
        dead_letter(),
        dead_letter(reason="order 17 is unknown"),
        dead_letter(reason='said "x"', fingerprint="bill|KeyError|shop.py:<lambda>"),
        dead_letter(attributes={DEATH_ATTRIBUTE: "{}"}),
    ],
)
def test_a_message_matches_the_id_of_its_group(found: DeadLetteredMessage) -> None:
    key = Grouping().add_one(found)
    assert key is not None
    assert DeadLetterFilter(group=group_id(key)).matches(found, now=NOW)
    assert not DeadLetterFilter(group=group_id(f"{key} ")).matches(found, now=NOW)


@pytest.mark.parametrize(
    ("found", "origin"),
    [
        (dead_letter(reason="r"), "orders"),
        (dead_letter(reason="r", queue="mails-dlq"), "orders"),
        (dead_letter(), "orders"),
        (dead_letter(queue="orders-dead"), "orders"),
        (dead_letter(queue="line-dlq.fifo"), "line.fifo"),
        (dead_letter(queue="lost", moved_from="mails"), "mails"),
        (dead_letter(queue="lost"), None),
        (dead_letter(queue="lost", moved_from="mails-dlq"), None),
    ],
)
def test_the_first_origin_is_the_queue_that_dead_lettered_the_message(
    found: DeadLetteredMessage, origin: str | None
) -> None:
    assert next(iter(origins_of(found)), None) == origin


def test_the_origin_of_a_message_that_died_again_in_its_dlq_is_its_first_queue() -> None:
    first = dead_letter(reason="r", queue="lost").message.attributes
    again = Death(
        reason="handed over",
        attempts=9,
        worker="w",
        queue="orders-dlq",
        message_id="l",
        last_failed_at=2,
        enqueued_at=1,
    )
    attributes = {**move_death_to_history(first), DEATH_ATTRIBUTE: encode_death(again)}
    assert origins_of(dead_letter(queue="lost", attributes=attributes)) == ["orders"]


@pytest.mark.parametrize("queue", ["orders", "-dlq", "-dead", "dlq"])
def test_a_queue_name_without_the_dlq_convention_has_no_source(queue: str) -> None:
    assert source_of(queue) is None
