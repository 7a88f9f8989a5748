"""A delivery describes the previous one: when, where, and how it ended."""

import pytest
from tests.conformance.broker_harnesses import LEASE, BrokerHarness, outgoing, receive

from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.death import death_of
from penstock.messaging.delivery import AttemptEnd, PreviousAttempt
from penstock.messaging.settlement import DeadLetter, Release

REASON_BYTES_MAX = 4 * 1024


@pytest.fixture
def broker(harness: BrokerHarness) -> Broker:
    broker = harness.broker("w1")
    if not broker.capabilities.remembers_attempts:
        pytest.skip("not applicable: this broker does not remember attempts")
    return broker


def test_the_first_delivery_has_no_previous_one(harness: BrokerHarness, broker: Broker) -> None:
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    assert delivery.previous is None


@pytest.mark.parametrize("uncounted", [False, True])
def test_a_release_is_reported_with_its_reason(harness: BrokerHarness, broker: Broker, uncounted: bool) -> None:
    if uncounted and not broker.capabilities.releases_uncounted:
        pytest.skip("not applicable: every release of this broker counts as an attempt")
    broker.send("q", outgoing("a", "b"))
    (delivery,) = receive(broker, 1)
    started_at = harness.clock.now()
    harness.advance(7)
    broker.settle([(delivery, Release(delay_seconds=50, uncounted=uncounted, reason="no löck \ud800"))])
    harness.advance(50)
    by_body = {d.message.body: d.previous for d in receive(harness.broker("w2"))}
    assert by_body == {
        b"a": PreviousAttempt(
            started_at=started_at,
            ended_at=started_at + 7,
            worker="w1",
            end=AttemptEnd.RELEASED if uncounted else AttemptEnd.FAILED,
            reason="no löck \\ud800",  # a lone surrogate is not valid Unicode; it is escaped
        ),
        b"b": None,
    }


def test_an_expired_lease_ended_at_its_deadline(harness: BrokerHarness, broker: Broker) -> None:
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    started_at = harness.clock.now()
    harness.advance(10)
    broker.extend([delivery], lease_seconds=LEASE)
    harness.advance(1_000)
    (delivery,) = receive(harness.broker("w2"))
    assert delivery.previous == PreviousAttempt(
        started_at=started_at, ended_at=started_at + 10 + LEASE, worker="w1", end=AttemptEnd.EXPIRED
    )


def test_a_lease_of_a_dead_worker_ended_when_its_death_was_found(harness: BrokerHarness, broker: Broker) -> None:
    broker.send("q", outgoing("short", "long"))
    receive(broker, 1, lease=5)
    receive(broker, 1, lease=LEASE)
    started_at = harness.clock.now()
    harness.advance(8)
    other = harness.broker("w2")
    assert other.release_holder("w1") == 2  # type: ignore[attr-defined]  # of these brokers, not of the Protocol
    deliveries = receive(other)
    assert [delivery.attempt for delivery in deliveries] == [2, 2]
    ended_at = {delivery.message.body: delivery.previous and delivery.previous.ended_at for delivery in deliveries}
    assert ended_at == {b"short": started_at + 5, b"long": started_at + 8}
    assert {delivery.previous and delivery.previous.end for delivery in deliveries} == {AttemptEnd.EXPIRED}


def test_only_the_last_delivery_is_reported(harness: BrokerHarness, broker: Broker) -> None:
    broker.send("q", outgoing("a"))
    (first,) = receive(broker)
    broker.settle([(first, Release(reason="the first"))])
    (second,) = receive(harness.broker("w2"))
    harness.advance(LEASE)
    (third,) = receive(broker)
    assert third.previous is not None
    assert (third.previous.worker, third.previous.end, third.previous.reason) == ("w2", AttemptEnd.EXPIRED, None)
    assert third.previous.started_at == second.received_at


@pytest.mark.parametrize("text", ["x" * 100_000, "ö" * 100_000, "\U0001f600" * 100_000])
def test_a_long_reason_is_truncated_between_two_characters(harness: BrokerHarness, broker: Broker, text: str) -> None:
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    broker.settle([(delivery, Release(reason=text))])
    (delivery,) = receive(broker)
    assert delivery.previous is not None
    assert delivery.previous.reason is not None
    assert text.startswith(delivery.previous.reason)
    assert REASON_BYTES_MAX - 4 < len(delivery.previous.reason.encode()) <= REASON_BYTES_MAX


def test_a_dead_letter_starts_with_no_attempts_and_keeps_its_death(harness: BrokerHarness) -> None:
    broker = harness.broker(queues=[QueueSettings(name="q", receives_max=2)])
    broker.send("q", outgoing("given up on", "exhausted"))
    given_up, exhausted = receive(broker)
    broker.settle([(given_up, Release(reason="once")), (exhausted, Release(reason="once"))])
    given_up, exhausted = receive(broker)
    broker.settle([(given_up, DeadLetter(reason="twice")), (exhausted, Release(reason="twice"))])
    assert receive(broker) == []
    dead = receive(broker, queue="q-dlq")
    if not broker.capabilities.explains_deaths:
        by_body = {delivery.message.body: delivery for delivery in dead}
        assert by_body[b"given up on"].attempt == 1
        assert by_body[b"exhausted"].attempt > 2  # a message moved by the broker keeps its receive count
        return
    assert [(delivery.attempt, delivery.previous) for delivery in dead] == [(1, None), (1, None)]
    deaths = [death_of(delivery.message.attributes) for delivery in dead]
    assert [death and death.attempts for death in deaths] == [2, 2]
