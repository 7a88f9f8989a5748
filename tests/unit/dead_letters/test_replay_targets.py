"""Choice of the queue to which a dead-lettered message is replayed."""

import pytest

from penstock.dead_letters.policy import MoveToFinal, ReplayPolicy, ReplayTarget, ReplayTargets
from penstock.messaging.death import DEATH_ATTRIBUTE, Death, encode_death
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
ARN = "arn:aws:sqs:eu-west-1:123456789012:orders"


def targets(*queues: str) -> ReplayTargets:
    return ReplayTargets([ReplayTarget(queue=queue, policy=ReplayPolicy()) for queue in queues])


def dead_letter(*, died_in: str | None = None, moved_from: str | None = None) -> Delivery:
    attributes: dict[str, str | bytes] = {}
    if died_in is not None:
        death = Death(
            reason="r", attempts=1, last_failed_at=1.0, worker="w", queue=died_in, message_id="m", enqueued_at=1.0
        )
        attributes[DEATH_ATTRIBUTE] = encode_death(death)
    message = Message(id="m", body=b"", enqueued_at=1.0, attributes=attributes)
    return Delivery(message=message, queue="dlq", receipt="r", attempt=1, received_at=1.0, moved_from=moved_from)


@pytest.mark.parametrize("served", ["orders", URL, ARN])
@pytest.mark.parametrize("recorded", ["orders", URL, ARN])
def test_a_target_is_found_by_name_url_or_arn(served: str, recorded: str) -> None:
    for one in (dead_letter(died_in=recorded), dead_letter(moved_from=recorded)):
        found = targets("mails", served).of(one)
        assert isinstance(found, ReplayTarget)
        assert found.queue == served  # as it was configured


def test_the_source_queue_from_the_broker_takes_precedence_over_the_death() -> None:
    found = targets("a", "b").of(dead_letter(died_in="a", moved_from="b"))
    assert isinstance(found, ReplayTarget)
    assert found.queue == "b"
    assert isinstance(targets("a").of(dead_letter(died_in="a", moved_from="b")), MoveToFinal)
    back = targets("a", "b").of(dead_letter(died_in="a", moved_from="a-dlq"))  # moved within the DLQs: its death counts
    assert isinstance(back, ReplayTarget)
    assert back.queue == "a"


def test_a_message_of_unknown_source_is_replayed_only_if_there_is_one_target() -> None:
    found = targets("only").of(dead_letter())
    assert isinstance(found, ReplayTarget)
    assert targets("a", "b").of(dead_letter()) == MoveToFinal(
        reason="the queue where it failed is not recorded, and several queues share this DLQ: a, b"
    )


def test_a_forged_death_does_not_select_another_queue() -> None:
    found = targets("only").of(dead_letter(died_in="salaries"))
    assert found == MoveToFinal(reason="it failed in the queue salaries, whose dead letters are not replayed from here")
