"""The age of the oldest message, as measured on SQS, and that of the oldest visible message.

The three experiments are those of the article that measured it: a message that always fails, alone, beside healthy
ones, and without a dead-letter queue. One receive at a time, and a lease of 120 s.
"""

from itertools import islice

import pytest
from scripts.ages_table import EXPERIMENTS, MINUTE, MINUTES, run, series
from tests.conformance.broker_harnesses import LEASE, BrokerHarness, bodies, outgoing, receive

from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.settlement import Ack, DeadLetter, Release


def broker_with_ages(harness: BrokerHarness, *queues: QueueSettings) -> Broker:
    """Return a broker with exact ages; skip the test for other brokers."""
    broker = harness.broker(queues=queues)
    if not broker.capabilities.exact_stats:
        pytest.skip("not applicable: this broker reports no ages")
    return broker


def age(broker: Broker, queue: str = "q") -> float | None:
    return broker.stats(queue).oldest_message_age_seconds


@pytest.mark.parametrize("name", ["a", "b"])
def test_with_redrive_the_age_resets_at_the_third_failure_and_ends_at_the_sixth(
    harness: BrokerHarness, name: str
) -> None:
    experiment = EXPERIMENTS[name]
    broker = broker_with_ages(harness, experiment.queue)
    for sample in islice(run(experiment, broker, harness.advance), 15):
        minute, oldest = sample.minute, sample.queue.oldest_message_age_seconds
        if minute < 6:
            assert oldest == minute * MINUTE
        elif minute < 12:
            assert oldest == (minute - 6) * MINUTE
        else:  # only healthy messages, all done by now
            assert oldest == 0
        # it is in flight for two minutes, and counted all the time
        assert sample.queue.in_flight == (minute < 12 and minute % 2)
        assert sample.queue.visible == (minute < 12 and not minute % 2)
        assert sample.begun == min((minute + 1) // 2, 6)
        assert sample.dlq.visible == (minute >= 12)
        assert sample.dlq.oldest_message_age_seconds == (None if minute < 12 else (minute - 12) * MINUTE)


def test_without_redrive_the_age_resets_at_every_third_failure(harness: BrokerHarness) -> None:
    experiment = EXPERIMENTS["c"]
    broker = broker_with_ages(harness, experiment.queue)
    for sample in islice(run(experiment, broker, harness.advance), 40):
        assert sample.queue.oldest_message_age_seconds == sample.minute % 6 * MINUTE
        assert sample.queue.in_flight + sample.queue.visible == 1
        assert sample.begun == (sample.minute + 1) // 2
        assert sample.dlq.visible == 0


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_broker_with_ages_has_the_documented_series(harness: BrokerHarness, name: str) -> None:
    experiment = EXPERIMENTS[name]
    broker = broker_with_ages(harness, experiment.queue)
    assert list(islice(run(experiment, broker, harness.advance), MINUTES)) == series()[name]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_broker_without_ages_dead_letters_the_poison_message_too(harness: BrokerHarness, name: str) -> None:
    experiment = EXPERIMENTS[name]
    broker = harness.broker(queues=[experiment.queue])
    if broker.capabilities.exact_stats:
        pytest.skip("not applicable: this broker reports ages")
    for sample in islice(run(experiment, broker, harness.advance), 60):  # not every server keeps the order
        assert sample.queue.oldest_message_age_seconds is None
        assert sample.queue.oldest_visible_message_age_seconds is None
        dead = sample.dlq.visible + sample.dlq.in_flight
        assert sample.queue.visible + sample.queue.in_flight + dead == 1  # counted while in flight, and in one place
        if dead:
            break
    assert dead == (experiment.receives_max is not None)
    assert sample.begun == 6 if dead else sample.begun > 6


def test_the_age_resets_when_the_third_lease_ends(harness: BrokerHarness) -> None:
    broker = broker_with_ages(harness)
    broker.send("q", outgoing("a"))
    for _ in range(2):
        receive(broker)
        harness.advance(LEASE)
    receive(broker)
    harness.advance(LEASE - 1)
    assert age(broker) == 3 * LEASE - 1
    harness.advance(1 + 100)  # no receive happens: the reset counts from the end of the lease
    assert age(broker) == 100


def test_every_release_resets_the_age_counted_or_not(harness: BrokerHarness) -> None:
    broker = broker_with_ages(harness)
    if not broker.capabilities.releases_uncounted:
        pytest.skip("not applicable: every release of this broker counts as an attempt")
    broker.send("q", outgoing("a"))
    for uncounted in (True, False, True):
        (delivery,) = receive(broker)
        harness.advance(10)
        assert age(broker) is not None
        broker.settle([(delivery, Release(uncounted=uncounted, delay_seconds=5))])
        harness.advance(5)
    assert age(broker) == 5


def test_only_the_age_of_the_failed_message_is_reset(harness: BrokerHarness) -> None:
    broker = broker_with_ages(harness)
    broker.send("q", outgoing("poison"))
    harness.advance(10)
    broker.send("q", outgoing("waits"))
    for _ in range(3):
        (delivery,) = receive(broker, 1)
        broker.settle([(delivery, Release())])
        harness.advance(1)
    assert age(broker) == 3  # of the other message
    harness.advance(10)
    (_, other) = receive(broker)
    assert bodies([other]) == ["waits"]
    broker.settle([(other, Ack())])
    assert age(broker) == 11  # of the poison message, from its reset


def test_the_oldest_age_includes_in_flight_and_delayed_messages_and_the_visible_age_does_not(
    harness: BrokerHarness,
) -> None:
    broker = broker_with_ages(harness)
    broker.send("q", outgoing("in flight"))
    receive(broker, lease=100)
    harness.advance(10)
    broker.send("q", outgoing("delayed", delay_seconds=100))
    harness.advance(10)
    stats = broker.stats("q")
    assert (stats.oldest_visible_message_age_seconds, stats.oldest_message_age_seconds) == (None, 20)
    broker.send("q", outgoing("visible"))
    harness.advance(10)
    stats = broker.stats("q")
    assert (stats.oldest_visible_message_age_seconds, stats.oldest_message_age_seconds) == (10, 30)


def test_an_empty_queue_has_age_0_and_an_unknown_queue_has_none(harness: BrokerHarness) -> None:
    broker = broker_with_ages(harness)
    assert age(broker) is None
    broker.send("q", outgoing("a", "b"))
    harness.advance(10)
    (delivery,) = receive(broker, 1)
    broker.settle([(delivery, Ack())])
    assert age(broker) == 10
    assert broker.purge("q") == 1
    assert age(broker) == 0


def test_the_age_and_the_failures_of_a_dead_letter_count_from_its_death(harness: BrokerHarness) -> None:
    broker = broker_with_ages(harness)
    broker.send("q", outgoing("a"))
    for _ in range(4):  # one reset and one more
        (delivery,) = receive(broker)
        broker.settle([(delivery, Release())])
        harness.advance(10)
    (delivery,) = receive(broker)
    broker.settle([(delivery, DeadLetter(reason="bad"))])
    assert age(broker) == 0
    for n in range(2):
        (delivery,) = receive(broker, queue="q-dlq")
        harness.advance(10)
        broker.settle([(delivery, Release())])
        # counted with the earlier ones this would be the sixth, and would reset the age
        assert age(broker, "q-dlq") == 10 * (n + 1)
    (delivery,) = receive(broker, queue="q-dlq")
    harness.advance(10)
    broker.settle([(delivery, Release())])
    assert age(broker, "q-dlq") == 0


def test_enqueued_ages_ignore_resets_and_start_at_the_death_for_dead_letters(harness: BrokerHarness) -> None:
    broker = broker_with_ages(harness)
    broker.send("q", outgoing("a"))
    for _ in range(4):
        (delivery,) = receive(broker)
        harness.advance(10)
        broker.settle([(delivery, Release())])
    assert (age(broker), broker.stats("q").oldest_enqueued_age_seconds) == (10, 40)
    (delivery,) = receive(broker)
    broker.settle([(delivery, DeadLetter(reason="bad"))])
    assert broker.stats("q").oldest_enqueued_age_seconds is None
    for n in range(4):
        (delivery,) = receive(broker, queue="q-dlq")
        harness.advance(10)
        broker.settle([(delivery, Release(delay_seconds=5))])  # as a replayer does while a message waits
        harness.advance(5)
        assert broker.stats("q-dlq").oldest_enqueued_age_seconds == 15 * (n + 1)
