"""To which queue a letter goes back."""

import pytest

from penstock.dead_letters.policy import MoveToFinal, ReplayPolicy, ReplayTarget, ReplayTargets
from penstock.messaging.death import DEATH_ATTRIBUTE, Death, encode_death
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
ARN = "arn:aws:sqs:eu-west-1:123456789012:orders"


def sources(*queues: str) -> ReplayTargets:
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
@pytest.mark.parametrize("said", ["orders", URL, ARN])
def test_a_queue_is_known_by_its_name_url_or_arn(served: str, said: str) -> None:
    for one in (dead_letter(died_in=said), dead_letter(moved_from=said)):
        found = sources("mails", served).of(one)
        assert isinstance(found, ReplayTarget)
        assert found.queue == served  # by the name that it is served by


def test_the_broker_says_it_before_a_death_does_that_its_sender_may_have_written() -> None:
    found = sources("a", "b").of(dead_letter(died_in="a", moved_from="b"))
    assert isinstance(found, ReplayTarget)
    assert found.queue == "b"
    assert isinstance(sources("a").of(dead_letter(died_in="a", moved_from="b")), MoveToFinal)
    back = sources("a", "b").of(dead_letter(died_in="a", moved_from="a-dlq"))  # from tier to tier: its death is its own
    assert isinstance(back, ReplayTarget)
    assert back.queue == "a"


def test_where_nothing_says_it_only_one_is_possible_or_nobody_knows() -> None:
    found = sources("only").of(dead_letter())
    assert isinstance(found, ReplayTarget)
    assert sources("a", "b").of(dead_letter()) == MoveToFinal(
        reason="nothing says which queue it died in: a, b share this one"
    )


def test_a_forged_death_opens_no_other_queue() -> None:
    found = sources("only").of(dead_letter(died_in="salaries"))
    assert found == MoveToFinal(reason="it failed in the queue salaries, whose dead letters are not replayed from here")
