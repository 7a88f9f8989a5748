"""Replays: their ids and counters, and the message that a dead letter becomes."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from penstock.dead_letters.jsonl import line_of, read_line
from penstock.dead_letters.reader import DeadLetteredMessage
from penstock.messaging.death import (
    DEATH_ATTRIBUTE,
    EARLIER_DEATHS_ATTRIBUTE,
    EARLIER_DEATHS_MAX,
    SET_ASIDE_ATTRIBUTE,
    Death,
    buried,
    death_of,
    earlier_deaths_of,
)
from penstock.messaging.message import ORIGIN_ATTRIBUTE, Message
from penstock.messaging.replay import (
    COUNT_MAX,
    COUNTER_ATTRIBUTE,
    REPLAY_ID_ATTRIBUTE,
    NoLog,
    Replay,
    dead_letter_replay_id,
    replay_id_of,
    replayed,
    replays_so_far,
)
from penstock.messaging.settlement import DeadLetter

USERS: Mapping[str, str | bytes] = {"tenant": "a", "sealed": b"\x00\xff", "traceparent": "00-1-2-03"}
REPLAY = Replay(
    replay_id=replay_id_of("q-dlq", "l1"),
    dead_letter_queue="q-dlq",
    dead_letter_id="l1",
    queue="q",
    count=2,
    due_at=9.0,
)


def death(number: int = 0) -> Death:
    return Death(
        reason=f"reason {number}",
        attempts=4,
        last_failed_at=float(number),
        worker="w1",
        queue="q",
        message_id=f"m{number}",
        enqueued_at=float(number),
    )


def dead_letter(**attributes: str | bytes) -> Message:
    attributes_at_death = buried({**USERS, **attributes}, DeadLetter(reason="reason 0"), death())
    return Message(id="l1", body=b"\x00{", attributes=attributes_at_death, group="g", enqueued_at=5.0)


def test_a_replay_id_is_a_stable_hash_of_queue_and_message_id() -> None:
    assert replay_id_of("q-dlq", "l1") == "1a2cd7d89eaad50f3aa46fd679e7ce39"
    others = {replay_id_of("q-dlq", "l2"), replay_id_of("q-dl", "ql1"), replay_id_of("other-dlq", "l1")}
    assert len(others | {REPLAY.replay_id}) == 4
    assert len(replay_id_of("q\udcff", "l")) == 32, "also for names that are not UTF-8"


def test_the_replay_id_of_a_dead_letter_includes_its_time_since_ids_may_repeat() -> None:
    one = dead_letter()
    ids = {dead_letter_replay_id("q-dlq", replace(one, enqueued_at=at)) for at in (5.0, 5.001, 6.0)}
    assert len(ids) == 3
    assert dead_letter_replay_id("arn:aws:sqs:eu-west-1:1:q-dlq", one) == dead_letter_replay_id("q-dlq", one) in ids


@pytest.mark.parametrize(
    ("counter", "count"),
    [
        ("0", 0),
        ("3", 3),
        ("007", 7),
        (str(COUNT_MAX), COUNT_MAX),
        (str(COUNT_MAX + 1), 0),
        ("-1", 0),
        ("+1", 0),
        (" 1", 0),
        ("1.0", 0),
        ("1e2", 0),
        ("abc", 0),
        ("", 0),
        ("٣", 0),
        ("²", 0),
        ("9" * 5_000, 0),
        (b"3", 0),
    ],
)
def test_an_invalid_counter_counts_as_zero(counter: str | bytes, count: int) -> None:
    assert replays_so_far({COUNTER_ATTRIBUTE: counter}) == count


def test_a_missing_counter_counts_as_zero() -> None:
    assert replays_so_far(USERS) == 0


def test_a_replayed_message_has_the_body_group_and_attributes_of_the_dead_letter() -> None:
    message = replayed(dead_letter(), REPLAY, delay_seconds=7.5)
    assert (message.body, message.group, message.delay_seconds) == (b"\x00{", "g", 7.5)
    assert message.deduplication_id == REPLAY.replay_id
    added = {COUNTER_ATTRIBUTE: "2", REPLAY_ID_ATTRIBUTE: REPLAY.replay_id, ORIGIN_ATTRIBUTE: "m0"}
    rest = {name: value for name, value in message.attributes.items() if name != EARLIER_DEATHS_ATTRIBUTE}
    assert rest == {**USERS, **added}


def test_a_message_keeps_its_first_id_across_repeated_deaths() -> None:
    again = replayed(dead_letter(), REPLAY, delay_seconds=0.0)
    second = Message(
        id="l2", body=b"", attributes=buried(again.attributes, DeadLetter(reason=""), death(2)), enqueued_at=6.0
    )
    assert replayed(second, REPLAY, delay_seconds=0.0).attributes[ORIGIN_ATTRIBUTE] == "m0"


def test_a_dead_letter_moved_by_sqs_has_the_id_of_its_message() -> None:
    moved = Message(id="m7", body=b"", attributes=USERS, enqueued_at=6.0)
    assert replayed(moved, REPLAY, delay_seconds=0.0).attributes[ORIGIN_ATTRIBUTE] == "m7"
    set_aside = buried(USERS, DeadLetter(reason="", set_aside=True), replace(death(), message_id="m7"))
    in_final_dlq = Message(id="l2", body=b"", attributes=set_aside, enqueued_at=7.0)  # another id than "m7"
    assert replayed(in_final_dlq, REPLAY, delay_seconds=0.0).attributes[ORIGIN_ATTRIBUTE] == "m7"
    line = read_line(line_of(DeadLetteredMessage(queue="q-dlq", message=moved)), number=1, file="f")
    imported = Message(id="l3", body=b"", attributes=line.outgoing(REPLAY).attributes, enqueued_at=8.0)
    assert replayed(imported, REPLAY, delay_seconds=0.0).attributes[ORIGIN_ATTRIBUTE] == "m7"


def test_the_death_of_a_replayed_message_is_an_earlier_death() -> None:
    message = replayed(dead_letter(), REPLAY, delay_seconds=0.0)
    assert death_of(message.attributes) is None
    (before,) = earlier_deaths_of(message.attributes)
    assert (before.reason, before.message_id, before.attempts) == ("reason 0", "m0", 4)


def test_a_message_replayed_from_the_final_dlq_is_no_longer_set_aside() -> None:
    first = dead_letter()
    set_aside = buried(first.attributes, DeadLetter(reason="replayed 3 times", set_aside=True), death(1))
    assert set_aside[DEATH_ATTRIBUTE] == first.attributes[DEATH_ATTRIBUTE], "it died once"
    message = replayed(
        Message(id="l2", body=b"", attributes=set_aside, group=None, enqueued_at=6.0), REPLAY, delay_seconds=0
    )
    assert SET_ASIDE_ATTRIBUTE not in message.attributes


def test_a_replay_replaces_the_counter_and_id_of_the_previous_one() -> None:
    message = replayed(dead_letter(**{COUNTER_ATTRIBUTE: "1", REPLAY_ID_ATTRIBUTE: "older"}), REPLAY, delay_seconds=0.0)
    assert (message.attributes[COUNTER_ATTRIBUTE], message.attributes[REPLAY_ID_ATTRIBUTE]) == ("2", REPLAY.replay_id)


@pytest.mark.parametrize("forged", ["not JSON", "{}", "[" * 10_000, '{"reason": 1}', b"\xff"])
def test_an_unreadable_death_is_dropped_by_a_replay(forged: str | bytes) -> None:
    garbled = Message(id="l1", body=b"", attributes={**USERS, DEATH_ATTRIBUTE: forged}, group=None, enqueued_at=5.0)
    message = replayed(garbled, REPLAY, delay_seconds=0.0)
    assert DEATH_ATTRIBUTE not in message.attributes
    assert earlier_deaths_of(message.attributes) == ()
    assert message.attributes.items() >= USERS.items()


def test_of_many_deaths_the_first_and_the_last_ones_are_kept() -> None:
    attributes = dict(USERS)
    for number in range(EARLIER_DEATHS_MAX + 5):
        dead = buried(attributes, DeadLetter(reason=""), death(number))
        attributes = dict(
            replayed(
                Message(id="l", body=b"", attributes=dead, group=None, enqueued_at=0.0), REPLAY, delay_seconds=0.0
            ).attributes
        )
    earlier = earlier_deaths_of(attributes)
    assert [each.message_id for each in earlier] == ["m0", *(f"m{n}" for n in range(6, EARLIER_DEATHS_MAX + 5))]


@pytest.mark.parametrize(
    "forged",
    [
        "[",
        "5",
        "{}",
        '"text"',
        "[1]",
        "[{}]",
        "[" * 10_000,
        json.dumps([{**dict.fromkeys(["reason", "queue", "message_id", "worker"], "x"), "attempts": True}]),
        "x" * 140_000,
    ],
)
def test_a_forged_history_is_empty(forged: str) -> None:
    assert earlier_deaths_of({EARLIER_DEATHS_ATTRIBUTE: forged}) == ()


def test_without_a_log_planned_replays_are_returned_unchanged() -> None:
    log = NoLog()
    log.mark_sent([REPLAY.replay_id])
    assert log.open([REPLAY]) == {REPLAY.replay_id: REPLAY}


@pytest.mark.parametrize(
    "queue", ["https://sqs.eu-west-1.amazonaws.com/1/orders-dlq", "arn:aws:sqs:eu-west-1:1:orders-dlq"]
)
def test_a_replay_has_one_id_for_each_form_of_the_queue_name(queue: str) -> None:
    assert replay_id_of(queue, "id-1") == replay_id_of("orders-dlq", "id-1")
