"""The age of the oldest message, as SQS was measured to report it, and that of the oldest visible one.

The three experiments are those of the article that measured it: a message nobody can process, alone, beside healthy
ones, and without a dead-letter queue. One receive at a time, and a lease of 120 s.
"""

from collections.abc import Iterator

import pytest
from tests.conformance.broker_stands import LEASE, Stand, bodies, outgoing, receive

from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.settlement import Ack, DeadLetter, Release

EXPERIMENT_LEASE = 120.0
MINUTE = 60.0
REDRIVE = QueueSettings(name="q", receives_max=6)
NO_REDRIVE = QueueSettings(name="q")


def ageing(stand: Stand, *queues: QueueSettings) -> Broker:
    """A broker that tells ages; with others the test ends here."""
    broker = stand.broker(queues=queues)
    if not broker.capabilities.exact_stats:
        pytest.skip("not applicable: this broker tells no ages")
    return broker


def age(broker: Broker, queue: str = "q") -> float | None:
    return broker.stats(queue).oldest_message_age_seconds


def minutes_with_a_poison_message(stand: Stand, broker: Broker, *, healthy: bool) -> Iterator[tuple[int, float | None]]:
    """Each minute a healthy message is sent, if wanted, and one message received: a healthy one is done within the
    minute, the poison is never acked. Answers minute and age, when the minute's healthy message is acked."""
    broker.send("q", outgoing("poison"))
    minute = 0
    while True:
        if healthy:
            broker.send("q", outgoing("healthy"))
        held = receive(broker, 1, lease=EXPERIMENT_LEASE)
        while bodies(held) == ["poison"]:  # it fails at once, and the next is received
            held = receive(broker, 1, lease=EXPERIMENT_LEASE)
        stand.advance(MINUTE)
        minute += 1
        assert not broker.settle([(delivery, Ack()) for delivery in held])
        yield minute, age(broker)


@pytest.mark.parametrize("healthy", [False, True], ids=["alone", "beside healthy ones"])
def test_with_redrive_the_age_resets_at_the_third_failure_and_the_sixth_takes_it_away(
    stand: Stand, healthy: bool
) -> None:
    broker = ageing(stand, REDRIVE)
    ages = minutes_with_a_poison_message(stand, broker, healthy=healthy)
    for minute, oldest in (next(ages) for _ in range(15)):
        if minute < 6:
            assert oldest == minute * MINUTE
        elif minute < 12:
            assert oldest == (minute - 6) * MINUTE
        else:  # nothing but healthy messages, each done by now
            assert oldest == 0
        poison = broker.stats("q-dlq")
        assert poison.visible == (minute >= 12)
        assert poison.oldest_message_age_seconds == (None if minute < 12 else (minute - 12) * MINUTE)


def test_without_redrive_the_age_resets_at_every_third_failure_and_never_leaves(stand: Stand) -> None:
    broker = ageing(stand, NO_REDRIVE)
    ages = minutes_with_a_poison_message(stand, broker, healthy=True)
    for minute, oldest in (next(ages) for _ in range(40)):
        assert oldest == minute % 6 * MINUTE
        assert broker.stats("q").in_flight + broker.stats("q").visible == 1


def test_the_reset_is_at_the_end_of_the_third_and_not_before(stand: Stand) -> None:
    broker = ageing(stand)
    broker.send("q", outgoing("a"))
    for _ in range(2):
        receive(broker)
        stand.advance(LEASE)
    receive(broker)
    stand.advance(LEASE - 1)
    assert age(broker) == 3 * LEASE - 1
    stand.advance(1 + 100)  # nobody looks: the reset counts from where the lease ended
    assert age(broker) == 100


def test_releases_count_refunded_or_not_and_reset_where_they_happen(stand: Stand) -> None:
    broker = ageing(stand)
    if not broker.capabilities.refunds:
        pytest.skip("not applicable: this broker has no refunds")
    broker.send("q", outgoing("a"))
    for refund in (True, False, True):
        (delivery,) = receive(broker)
        stand.advance(10)
        assert age(broker) is not None
        broker.settle([(delivery, Release(refund=refund, delay_seconds=5))])
        stand.advance(5)
    assert age(broker) == 5


def test_only_the_message_that_failed_is_reset(stand: Stand) -> None:
    broker = ageing(stand)
    broker.send("q", outgoing("poison"))
    stand.advance(10)
    broker.send("q", outgoing("waits"))
    for _ in range(3):
        (delivery,) = receive(broker, 1)
        broker.settle([(delivery, Release())])
        stand.advance(1)
    assert age(broker) == 3  # the other's
    stand.advance(10)
    (_, other) = receive(broker)
    assert bodies([other]) == ["waits"]
    broker.settle([(other, Ack())])
    assert age(broker) == 11  # of the poison, from its reset


def test_in_flight_and_delayed_messages_count_and_only_visible_ones_for_the_visible_age(stand: Stand) -> None:
    broker = ageing(stand)
    broker.send("q", outgoing("in flight"))
    receive(broker, lease=100)
    stand.advance(10)
    broker.send("q", outgoing("delayed", delay_seconds=100))
    stand.advance(10)
    stats = broker.stats("q")
    assert (stats.oldest_visible_message_age_seconds, stats.oldest_message_age_seconds) == (None, 20)
    broker.send("q", outgoing("visible"))
    stand.advance(10)
    stats = broker.stats("q")
    assert (stats.oldest_visible_message_age_seconds, stats.oldest_message_age_seconds) == (10, 30)


def test_an_empty_queue_has_age_0_and_one_never_heard_of_has_none(stand: Stand) -> None:
    broker = ageing(stand)
    assert age(broker) is None
    broker.send("q", outgoing("a", "b"))
    stand.advance(10)
    (delivery,) = receive(broker, 1)
    broker.settle([(delivery, Ack())])
    assert age(broker) == 10
    assert broker.purge("q") == 1
    assert age(broker) == 0


def test_a_dead_letter_counts_from_its_death_and_its_failures_anew(stand: Stand) -> None:
    broker = ageing(stand)
    broker.send("q", outgoing("a"))
    for _ in range(4):  # one reset and one more
        (delivery,) = receive(broker)
        broker.settle([(delivery, Release())])
        stand.advance(10)
    (delivery,) = receive(broker)
    broker.settle([(delivery, DeadLetter(reason="bad"))])
    assert age(broker) == 0
    for n in range(2):
        (delivery,) = receive(broker, queue="q-dlq")
        stand.advance(10)
        broker.settle([(delivery, Release())])
        assert age(broker, "q-dlq") == 10 * (n + 1)  # with those before it is the sixth, and resets nothing
    (delivery,) = receive(broker, queue="q-dlq")
    stand.advance(10)
    broker.settle([(delivery, Release())])
    assert age(broker, "q-dlq") == 0
