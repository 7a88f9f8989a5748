"""A dead letter is replayed only to a queue that the broker names as its origin."""

import pytest

from penstock.brokers.memory.broker import MemoryBroker
from penstock.dead_letters.reader import DeadLetteredMessage
from penstock.messaging.broker import QueueSettings
from penstock.messaging.death import Death, with_death
from penstock.messaging.message import NO_ATTRIBUTES, Message, Outgoing
from penstock.operations.dead_letters.selection import OriginQueues


def homes() -> OriginQueues:
    broker = MemoryBroker(queues=[QueueSettings(name="mails", dead_letter_queue="graves")])
    for queue in ("orders", "secrets", "mails"):
        broker.send(queue, [Outgoing(body=b"1")])
    return OriginQueues(broker)


def dead_letter(queue: str, *, says: str | None, moved_from: str | None = None) -> DeadLetteredMessage:
    death = Death(
        reason="r", attempts=1, last_failed_at=2.0, worker="w", queue=says or "", message_id="m", enqueued_at=1.0
    )
    attributes = NO_ATTRIBUTES if says is None else with_death({}, death)
    return DeadLetteredMessage(
        queue=queue, message=Message(id="l", body=b"1", enqueued_at=3.0, attributes=attributes), moved_from=moved_from
    )


@pytest.mark.parametrize(
    ("found", "home"),
    [
        (dead_letter("orders-dlq", says="orders"), "orders"),
        (dead_letter("orders-dead", says="orders"), "orders"),
        (dead_letter("orders-dlq", says=None), "orders"),
        (dead_letter("graves", says="mails"), "mails"),
        (dead_letter("graves-dead", says="mails"), "mails"),
        (dead_letter("graves", says=None, moved_from="mails"), "mails"),
    ],
)
def test_where_it_came_from(found: DeadLetteredMessage, home: str) -> None:
    assert homes().of(found) == home


def test_a_death_that_names_a_queue_whose_dead_letters_lie_elsewhere_is_not_believed() -> None:
    assert homes().of(dead_letter("orders-dlq", says="secrets")) == "orders", "by its name, not by what it says"
    assert homes().of(dead_letter("graves", says="secrets")) is None


@pytest.mark.parametrize("says", ["not there", "\ud800", "arn:aws:sqs:eu-west-1:1:other", ""])
def test_a_queue_that_is_not_there_is_no_home(says: str) -> None:
    assert homes().of(dead_letter("graves", says=says)) is None
