"""Groups of dead-lettered messages by cause."""

import json
from typing import Any

import pytest

from penstock.dead_letters.groups import NO_REASON, Grouping, key_of, normalised
from penstock.dead_letters.reader import DeadLetteredMessage
from penstock.messaging.death import DEATH_ATTRIBUTE, Death, death_of, encode_death
from penstock.messaging.message import Message


def death(**fields: Any) -> Death:
    given: dict[str, Any] = {
        "reason": "KeyError: 7",
        "attempts": 4,
        "worker": "w",
        "queue": "orders",
        "message_id": "m",
    }
    return Death(**{**given, "last_failed_at": 2.0, "enqueued_at": 1.0, **fields})


def dead_letter(
    value: str | bytes | None, *, at: float = 5.0, id: str = "l", queue: str = "orders-dlq"
) -> DeadLetteredMessage:
    attributes = {} if value is None else {DEATH_ATTRIBUTE: value}
    return DeadLetteredMessage(queue=queue, message=Message(id=id, body=b"", enqueued_at=at, attributes=attributes))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 12 is unknown", "order 9,817 is unknown"),
        ("took 1.5 s", "took 30.25 s"),
        ("order free0 has none", "order free17 has none"),
        ("ord-12 of shop_3b", "ord-7 of shop_41b"),
        ("no 01KAPX4T9Z6W2M8QJ5V3C7B1DE", "no 01KAPX5000R7W1N9ZJ6V2C8H3F"),
        ("no column 'a' in it", "no column 'long name' in it"),
        ('KeyError: "x"', 'KeyError: "y z"'),
        ("no file /srv/in/a.csv here", "no file /b here"),
        ("s3://lake/a b", "s3://lake/c b"),
        ("request 6f1b1c8e-7c0a-4a4e-9df2-0b1f0a7f3c11 failed", "request 00000000-7c0a-4a4e-9df2-0b1f0a7f3c11 failed"),
        ("object at 0x7f00aa", "object at 0x8"),
        ("commit deadbeef01 is gone", "commit 0123456789abcdef is gone"),
        ("a\n  b", "a b"),
    ],
)
def test_the_variable_parts_of_a_reason_are_normalised(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)
    assert normalised(one) != normalised("something else")


@pytest.mark.parametrize("text", ["it doesn't fit, won't do", "facade", "and/or"])
def test_text_that_only_resembles_a_variable_part_is_kept(text: str) -> None:
    assert normalised(text) == text


def test_an_empty_reason_has_a_name_and_a_long_one_is_cut() -> None:
    assert normalised("  ") == NO_REASON
    assert len(normalised("word " * 10_000)) <= 200


def test_messages_are_grouped_by_fingerprint_or_else_by_reason() -> None:
    grouping = Grouping()
    grouping.add(
        dead_letter(encode_death(death(reason=f"r{n}", fingerprint="f|g|h")), at=n, id=str(n)) for n in (3, 1, 2)
    )
    grouping.add([dead_letter(encode_death(death(reason="order 7")), queue="b-dlq", at=9.0)])
    grouping.add([dead_letter(encode_death(death(reason="order 8")), queue="c-dlq", at=10.0), dead_letter(None)])
    one, two, three = grouping.groups()
    assert (one.key, one.count, one.first_at, one.last_at, one.reason) == ("f|g|h", 3, 1.0, 3.0, "r3")
    assert (one.example_id, one.queues) == ("3", ("orders-dlq",))
    assert (two.key, two.count, two.queues, two.reason) == ("order <n>", 2, ("b-dlq", "c-dlq"), "order 7")
    assert (three.key, three.count) == (NO_REASON, 1)
    assert grouping.dead_letters == 6


HOSTILE = 'said "fingerprint": "forged", and {"reason": "other"} \\" \n \u2028 \ud800'


@pytest.mark.parametrize(
    "value",
    [
        encode_death(death(reason=HOSTILE, traceback=HOSTILE, exception=HOSTILE)),
        encode_death(death(reason="r", traceback=HOSTILE, fingerprint=HOSTILE)),
        json.dumps({"fingerprint": "forged, and nothing else"}),
        '{"reason": "\x01", "fingerprint": null',
        '{"reason": "garbled", "fingerprint": "x"',
        '"fingerprint": "\x01"',
        "",
        b"bytes",
        None,
    ],
)
def test_the_text_search_groups_like_the_decoded_death(value: str | bytes | None) -> None:
    grouping = Grouping()
    one = dead_letter(value)
    grouping.add([one, one])
    (group,) = grouping.groups()
    found = death_of(one.message.attributes)
    assert (group.key, group.count) == (key_of(found), 2)


def test_messages_beyond_the_group_limit_are_counted_together() -> None:
    grouping = Grouping(groups_max=2)
    grouping.add(dead_letter(encode_death(death(fingerprint=f"f{n}"))) for n in (1, 2, 3, 1, 4))
    assert [(group.key, group.count) for group in grouping.groups()] == [("f1", 2), ("f2", 1)]
    assert (grouping.dead_letters, grouping.others) == (5, 2)
