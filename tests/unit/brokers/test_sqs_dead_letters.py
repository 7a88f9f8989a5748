"""Dead letters in the DLQ and the final DLQ on SQS: what is kept if space is short, and the longest delay."""

from dataclasses import replace

import pytest
from tests.unit.brokers.sqs_doubles import NOW, SettlerSetup, received

from penstock.brokers.sqs.client import QueueRef
from penstock.brokers.sqs.envelope import SqsDelivery, opened, sealed, size_bytes
from penstock.brokers.sqs.leases import CHANGE
from penstock.brokers.sqs.limits import LEASE_SECONDS_MAX
from penstock.brokers.sqs.send import SEND
from penstock.messaging.death import (
    DEATH_ATTRIBUTE,
    DIED,
    Death,
    death_of,
    earlier_deaths_of,
    set_aside_reason,
    with_death,
)
from penstock.messaging.message import Attributes
from penstock.messaging.settlement import DeadLetter, Release

BAD = DeadLetter(reason="bad", exception="ValueError: x", traceback="Traceback ...")
SET_ASIDE = DeadLetter(reason="r" * 1_000, set_aside=True)
DEATH = Death(
    reason="first",
    attempts=2,
    last_failed_at=NOW,
    worker="w",
    queue="q",
    message_id="m0",
    enqueued_at=NOW,
    traceback="t" * 500,
)
DEAD_LETTERED_ATTRIBUTES = with_death(
    with_death({"a": b"\xff", "b": "text"}, DEATH), replace(DEATH, reason="second")
)  # "first" is an earlier death


def sent_attributes(setup: SettlerSetup) -> Attributes:
    """Return the attributes of the dead-lettered message that was sent."""
    (sent,) = setup.api.entries(SEND)[0]
    _, attributes, _ = opened({"Body": sent["MessageBody"], "MessageAttributes": sent.get("MessageAttributes", {})})
    return attributes


def dead_lettered_with_room(free_bytes: int, setup: SettlerSetup) -> SqsDelivery:
    """Return a dead-lettered message that leaves this many bytes of the largest size the queue accepts."""
    room = (
        setup.queues.message_bytes_max
        - size_bytes(sealed(b"", DEAD_LETTERED_ATTRIBUTES, None, fifo=False))
        - free_bytes
    )
    return received(1, queue="q-dlq", body=b"x" * room, attributes=DEAD_LETTERED_ATTRIBUTES)


@pytest.mark.parametrize(
    ("free_bytes", "reason_chars", "keeps_earlier_deaths"),
    [(5_000, 1_000, True), (600, 200, True), (50, 200, False), (-2_000, None, True)],
)
def test_a_set_aside_message_keeps_its_death_and_as_much_else_as_fits(
    free_bytes: int, reason_chars: int | None, keeps_earlier_deaths: bool
) -> None:
    setup = SettlerSetup()
    assert not setup.settle((dead_lettered_with_room(free_bytes, setup), SET_ASIDE))
    attributes = sent_attributes(setup)
    reason = set_aside_reason(attributes)
    assert (None if reason is None else len(reason)) == reason_chars
    assert attributes[DEATH_ATTRIBUTE] == DEAD_LETTERED_ATTRIBUTES[DEATH_ATTRIBUTE]
    assert ([each.reason for each in earlier_deaths_of(attributes)] == ["first"]) is keeps_earlier_deaths
    assert {name: attributes[name] for name in ("a", "b")} == {"a": b"\xff", "b": "text"}


@pytest.mark.parametrize(
    ("free_bytes", "reason", "traceback", "earlier_deaths"),
    [
        (10_000, "new", "T" * 3_000, ["first", "second"]),
        (1_000, "new", None, ["first", "second"]),
        (-500, "new", None, []),
        (-2_000, "second", "t" * 500, ["first"]),  # unchanged
    ],
)
def test_earlier_deaths_are_dropped_before_the_latest_one(
    free_bytes: int, reason: str, traceback: str | None, earlier_deaths: list[str]
) -> None:
    setup = SettlerSetup()
    settlement = DeadLetter(reason="new", traceback="T" * 3_000)
    assert not setup.settle((dead_lettered_with_room(free_bytes, setup), settlement))
    attributes = sent_attributes(setup)
    death = death_of(attributes)
    assert death is not None
    assert (death.reason, death.traceback) == (reason, traceback)
    assert [each.reason for each in earlier_deaths_of(attributes)] == earlier_deaths


def test_a_death_records_the_last_attempt() -> None:
    setup = SettlerSetup()
    setup.settle((received(1, attempt=3), BAD))
    death = death_of(sent_attributes(setup))
    assert death is not None
    (last,) = death.tries
    assert (last.worker, last.end, last.reason, last.ended_at) == ("worker-7", DIED, "bad", NOW)


def test_a_message_dead_lettered_in_the_final_dlq_is_hidden_and_not_sent() -> None:
    setup = SettlerSetup(dead_letters=QueueRef(name="q-dead", url="http://sqs/1/q-dead"))
    assert not setup.settle((received(1, queue="q-dead"), SET_ASIDE), (received(2, queue="q-dead"), BAD))
    assert setup.api.operations() == [CHANGE]
    assert [entry["VisibilityTimeout"] for entry in setup.api.entries(CHANGE)[0]] == [900, 900]


@pytest.mark.parametrize(("held_seconds", "hidden_seconds"), [(0, 43_198), (10_000, 33_198), (43_199, 0)])
def test_a_release_hides_for_no_longer_than_sqs_holds_a_message_from_its_receive(
    held_seconds: float, hidden_seconds: int
) -> None:
    setup = SettlerSetup()
    setup.clock.advance(held_seconds)
    assert not setup.settle((received(1, began_at=0.0), Release(delay_seconds=LEASE_SECONDS_MAX)))
    assert [entry["VisibilityTimeout"] for entry in setup.api.entries(CHANGE)[0]] == [hidden_seconds]
