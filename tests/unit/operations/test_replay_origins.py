"""A dead letter is replayed only to a queue that the broker names as its origin."""

import pytest

from penstock.brokers.memory.broker import MemoryBroker
from penstock.dead_letters.reader import DeadLetteredMessage
from penstock.messaging.broker import QueueSettings
from penstock.messaging.death import Death, with_death
from penstock.messaging.message import NO_ATTRIBUTES, Message, Outgoing
from penstock.operations.dead_letters.selection import OriginQueues


def origins() -> OriginQueues:
    broker = MemoryBroker(queues=[QueueSettings(name="mails", dead_letter_queue="undelivered")])
    for queue in ("orders", "secrets", "mails"):
        broker.send(queue, [Outgoing(body=b"1")])
    return OriginQueues(broker)


def dead_letter(queue: str, *, died_in: str | None, moved_from: str | None = None) -> DeadLetteredMessage:
    death = Death(
        reason="r", attempts=1, last_failed_at=2.0, worker="w", queue=died_in or "", message_id="m", enqueued_at=1.0
    )
    attributes = NO_ATTRIBUTES if died_in is None else with_death({}, death)
    return DeadLetteredMessage(
        queue=queue, message=Message(id="l", body=b"1", enqueued_at=3.0, attributes=attributes), moved_from=moved_from
    )


@pytest.mark.parametrize(
    ("dead_lettered", "origin"),
    [
        (dead_letter("orders-dlq", died_in="orders"), "orders"),
        (dead_letter("orders-dead", died_in="orders"), "orders"),
        (dead_letter("orders-dlq", died_in=None), "orders"),
        (dead_letter("undelivered", died_in="mails"), "mails"),
        (dead_letter("undelivered-dead", died_in="mails"), "mails"),
        (dead_letter("undelivered", died_in=None, moved_from="mails"), "mails"),
    ],
)
def test_the_origin_is_the_queue_that_the_broker_confirms(dead_lettered: DeadLetteredMessage, origin: str) -> None:
    assert origins().of(dead_lettered) == origin


def test_a_death_in_a_queue_with_another_dlq_is_not_trusted() -> None:
    assert origins().of(dead_letter("orders-dlq", died_in="secrets")) == "orders", (
        "the origin follows from the name of the DLQ, not from the death"
    )
    assert origins().of(dead_letter("undelivered", died_in="secrets")) is None


@pytest.mark.parametrize("died_in", ["missing", "\ud800", "arn:aws:sqs:eu-west-1:1:other", ""])
def test_a_missing_queue_is_not_an_origin(died_in: str) -> None:
    assert origins().of(dead_letter("undelivered", died_in=died_in)) is None
