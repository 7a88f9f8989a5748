"""The age of the oldest message, as SQS was measured to report it, and that of the oldest visible one.

The three experiments are those of the article that measured it: a message nobody can process, alone, beside healthy
ones, and without a dead-letter queue. One receive at a time, and a lease of 120 s.
"""

from itertools import islice

import pytest
from scripts.ages_table import EXPERIMENTS, MINUTE, MINUTES, run, series
from tests.conformance.broker_stands import LEASE, Stand, bodies, outgoing, receive

from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.settlement import Ack, DeadLetter, Release


def ageing(stand: Stand, *queues: QueueSettings) -> Broker:
    """A broker with exact ages; with others the test ends here."""
    broker = stand.broker(queues=queues)
    if not broker.capabilities.exact_stats:
        pytest.skip("not applicable: this broker tells no ages")
    return broker


def age(broker: Broker, queue: str = "q") -> float | None:
    return broker.stats(queue).oldest_message_age_seconds


@pytest.mark.parametrize("name", ["a", "b"])
def test_with_redrive_the_age_resets_at_the_third_failure_and_the_sixth_takes_it_away(stand: Stand, name: str) -> None:
    experiment = EXPERIMENTS[name]
    broker = ageing(stand, experiment.queue)
    for at in islice(run(experiment, broker, stand.advance), 15):
        minute, oldest = at.minute, at.queue.oldest_message_age_seconds
        if minute < 6:
            assert oldest == minute * MINUTE
        elif minute < 12:
            assert oldest == (minute - 6) * MINUTE
        else:  # nothing but healthy messages, each done by now
            assert oldest == 0
        assert at.queue.in_flight == (minute < 12 and minute % 2)  # in flight for two minutes, it is counted all along
        assert at.queue.visible == (minute < 12 and not minute % 2)
        assert at.begun == min((minute + 1) // 2, 6)
        assert at.dlq.visible == (minute >= 12)
        assert at.dlq.oldest_message_age_seconds == (None if minute < 12 else (minute - 12) * MINUTE)


def test_without_redrive_the_age_resets_at_every_third_failure_and_never_leaves(stand: Stand) -> None:
    experiment = EXPERIMENTS["c"]
    broker = ageing(stand, experiment.queue)
    for at in islice(run(experiment, broker, stand.advance), 40):
        assert at.queue.oldest_message_age_seconds == at.minute % 6 * MINUTE
        assert at.queue.in_flight + at.queue.visible == 1
        assert at.begun == (at.minute + 1) // 2
        assert at.dlq.visible == 0


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_broker_with_ages_has_the_series_of_the_page(stand: Stand, name: str) -> None:
    experiment = EXPERIMENTS[name]
    broker = ageing(stand, experiment.queue)
    assert list(islice(run(experiment, broker, stand.advance), MINUTES)) == series()[name]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_without_ages_the_poison_message_is_dead_lettered_just_the_same(stand: Stand, name: str) -> None:
    experiment = EXPERIMENTS[name]
    broker = stand.broker(queues=[experiment.queue])
    if broker.capabilities.exact_stats:
        pytest.skip("not applicable: this broker tells ages")
    for at in islice(run(experiment, broker, stand.advance), 60):  # not every server keeps to the order
        assert at.queue.oldest_message_age_seconds is None
        assert at.queue.oldest_visible_message_age_seconds is None
        dead = at.dlq.visible + at.dlq.in_flight
        assert at.queue.visible + at.queue.in_flight + dead == 1  # counted while in flight, and in one place
        if dead:
            break
    assert dead == (experiment.receives_max is not None)
    assert at.begun == 6 if dead else at.begun > 6


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


def test_every_release_resets_the_age_counted_or_not(stand: Stand) -> None:
    broker = ageing(stand)
    if not broker.capabilities.releases_uncounted:
        pytest.skip("not applicable: every release of this broker counts as an attempt")
    broker.send("q", outgoing("a"))
    for uncounted in (True, False, True):
        (delivery,) = receive(broker)
        stand.advance(10)
        assert age(broker) is not None
        broker.settle([(delivery, Release(uncounted=uncounted, delay_seconds=5))])
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


def test_the_age_and_the_failures_of_a_dead_letter_count_from_its_death(stand: Stand) -> None:
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


def test_without_resets_ages_start_at_the_enqueueing_and_those_of_dead_letters_at_the_death(stand: Stand) -> None:
    broker = ageing(stand)
    broker.send("q", outgoing("a"))
    for _ in range(4):
        (delivery,) = receive(broker)
        stand.advance(10)
        broker.settle([(delivery, Release())])
    assert (age(broker), broker.stats("q").oldest_enqueued_age_seconds) == (10, 40)
    (delivery,) = receive(broker)
    broker.settle([(delivery, DeadLetter(reason="bad"))])
    assert broker.stats("q").oldest_enqueued_age_seconds is None
    for n in range(4):
        (delivery,) = receive(broker, queue="q-dlq")
        stand.advance(10)
        broker.settle([(delivery, Release(delay_seconds=5))])  # as a replayer does that waits
        stand.advance(5)
        assert broker.stats("q-dlq").oldest_enqueued_age_seconds == 15 * (n + 1)
