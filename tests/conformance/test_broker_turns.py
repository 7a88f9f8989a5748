"""A turn settles and receives in one call, and a listener is notified of arrivals: the contract of all brokers."""

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.conformance.broker_harnesses import LEASE, BrokerHarness, WaitingReceiver, bodies, outgoing, receive

from penstock.errors import ConfigurationError, TemporaryError
from penstock.messaging.broker import Broker, Listening, ReceiveRequest, TurnResult
from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement

DEADLINE_SECONDS = 180.0


@pytest.fixture
def broker(harness: BrokerHarness) -> Broker:
    return harness.broker()


def turn(broker: Broker, settlements: Sequence[tuple[Delivery, Settlement]] = (), **counts: int) -> TurnResult:
    requests = [ReceiveRequest(queue=queue, messages_max=count) for queue, count in counts.items()]
    return broker.turn(settlements, requests, lease_seconds=LEASE)


# --- turns


def test_a_turn_settles_and_receives(broker: Broker) -> None:
    broker.send("q", outgoing("a", "b", "c", "d"))
    first, second = receive(broker, 2)
    result = turn(broker, [(first, Ack()), (second, DeadLetter(reason="no use"))], q=10)
    assert bodies(result.deliveries) == ["c", "d"]
    assert not result.failures
    assert (result.settle_error, result.receive_error) == (None, None)
    assert broker.stats("q").in_flight == 2
    assert broker.stats("q-dlq").visible == 1


def test_a_turn_settles_first_and_redelivers_a_released_message(broker: Broker) -> None:
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    (again,) = turn(broker, [(delivery, Release(reason="not yet"))], q=1).deliveries
    assert (again.message.id, again.attempt) == (delivery.message.id, 2)
    assert again.receipt != delivery.receipt


def test_deliveries_of_a_turn_are_leased_like_any_others(harness: BrokerHarness, broker: Broker) -> None:
    broker.send("q", outgoing("a"))
    (delivery,) = turn(broker, q=1).deliveries
    assert delivery.queue == "q"
    assert receive(broker) == []
    assert not broker.extend([delivery], lease_seconds=2 * LEASE)
    harness.advance(LEASE * 1.5)
    assert not broker.settle([(delivery, Ack())])


def test_a_turn_returns_at_most_the_requested_number(broker: Broker) -> None:
    broker.send("q", outgoing("a", "b", "c"))
    assert bodies(turn(broker, q=2).deliveries) == ["a", "b"]


def test_a_turn_receives_from_the_first_queue_that_has_messages(broker: Broker) -> None:
    broker.send("second", outgoing("b"))
    broker.send("third", outgoing("c"))
    result = turn(broker, first=5, second=5, third=5)
    assert [(delivery.queue, delivery.message.body) for delivery in result.deliveries] == [("second", b"b")]
    assert broker.stats("third").visible == 1
    assert bodies(turn(broker, third=5, first=5).deliveries) == ["c"]


def test_a_turn_tries_queues_in_the_order_of_its_requests(broker: Broker) -> None:
    broker.send("a", outgoing("from a"))
    broker.send("b", outgoing("from b"))
    assert bodies(turn(broker, b=5, a=5).deliveries) == ["from b"]


def test_a_turn_skips_a_paused_queue(broker: Broker) -> None:
    if not broker.capabilities.pausable:
        pytest.skip("not applicable: this broker cannot pause a queue")
    broker.send("a", outgoing("from a"))
    broker.send("b", outgoing("from b"))
    broker.pause("a")
    assert bodies(turn(broker, a=5, b=5).deliveries) == ["from b"]


def test_a_failed_settlement_is_reported_and_the_turn_continues(broker: Broker) -> None:
    broker.send("q", outgoing("a", "b", "c"))
    first, second = receive(broker, 2)
    broker.settle([(first, Ack())])
    result = turn(broker, [(first, Ack()), (second, Ack())], q=10)
    assert [(failure.delivery, failure.lost) for failure in result.failures] == [(first, True)]
    assert bodies(result.deliveries) == ["c"]
    assert broker.stats("q").in_flight == 1


def test_a_turn_may_only_settle(broker: Broker) -> None:
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    result = turn(broker, [(delivery, Ack())])
    assert not result.deliveries
    assert not broker.stats("q").in_flight


def test_an_empty_turn_does_nothing(broker: Broker) -> None:
    result = turn(broker)
    assert not result.deliveries
    assert not result.failures
    assert (result.settle_error, result.receive_error) == (None, None)


def test_an_invalid_settlement_is_reported_and_the_receive_continues(broker: Broker) -> None:
    broker.send("q", outgoing("a", "b"))
    (delivery,) = receive(broker, 1)
    result = turn(broker, [(delivery, Release(delay_seconds=-1.0))], q=5)
    assert isinstance(result.settle_error, ConfigurationError)
    assert result.receive_error is None
    assert bodies(result.deliveries) == ["b"]


def test_an_invalid_lease_is_reported_and_the_settlements_count(broker: Broker) -> None:
    broker.send("q", outgoing("a", "b"))
    (delivery,) = receive(broker, 1)
    result = broker.turn([(delivery, Ack())], [ReceiveRequest(queue="q", messages_max=5)], lease_seconds=-1.0)
    assert result.settle_error is None
    assert result.receive_error is not None
    assert result.receive_error[0] == "q"
    assert isinstance(result.receive_error[1], ConfigurationError)
    stats = broker.stats("q")
    assert (stats.visible, stats.in_flight) == (1, 0)


def test_a_turn_on_a_closed_broker_reports_two_temporary_errors(broker: Broker) -> None:
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    broker.close()
    result = turn(broker, [(delivery, Ack())], q=1)
    assert isinstance(result.settle_error, TemporaryError)
    assert result.receive_error is not None
    assert result.receive_error[0] == "q"
    assert isinstance(result.receive_error[1], TemporaryError)


def test_a_turn_waits_for_one_queue_and_never_for_several(harness: BrokerHarness, broker: Broker) -> None:
    one, two = ReceiveRequest(queue="one", messages_max=1), ReceiveRequest(queue="two", messages_max=1)
    assert not broker.turn([], [one, two], lease_seconds=LEASE, wait_seconds=20).deliveries  # time does not advance
    alone = WaitingReceiver(harness, lambda: broker.turn([], [one], lease_seconds=LEASE, wait_seconds=20).deliveries)
    harness.advance(19)
    assert alone.still_waits()
    assert alone.over(within_seconds=60) == []


# --- listeners


class CountingListener:
    """A listener that counts its notifications."""

    def __init__(self, queues: frozenset[str]) -> None:
        self.times = 0
        self.listening: Listening
        self._queues = queues
        self._notified = threading.Event()

    def notify(self) -> None:
        self.times += 1
        self._notified.set()

    def request(self) -> None:
        self.listening.want(self._queues)

    def await_notification(self) -> None:
        assert self._notified.wait(DEADLINE_SECONDS), "the listener was not notified"
        self._notified.clear()


def close(harness: BrokerHarness, listener: CountingListener) -> None:
    """Close the listener while time advances: a running poll of the server is never aborted."""

    def closed() -> Sequence[Delivery]:
        listener.listening.close()
        return ()

    WaitingReceiver(harness, closed).over(within_seconds=60)


Listen = Callable[..., CountingListener]


@pytest.fixture
def listen(harness: BrokerHarness, broker: Broker) -> Iterator[Listen]:
    """Return a factory of listeners to queues, by default "q"; all are closed at the end."""
    opened: list[CountingListener] = []

    def listen(*queues: str) -> CountingListener:
        opened.append(CountingListener(frozenset(queues or ("q",))))
        opened[-1].listening = broker.listen(queues or ("q",), opened[-1].notify)
        return opened[-1]

    yield listen
    for listener in opened:
        close(harness, listener)


def test_an_arrival_is_reported_once_a_listener_asks(broker: Broker, listen: Listen) -> None:
    listener = listen("other", "q")
    listener.request()
    broker.send("q", outgoing("a"))
    listener.await_notification()
    assert bodies(receive(broker)) == ["a"]
    listener.request()
    broker.send("other", outgoing("b"))
    listener.await_notification()


def notifications_of(harness: BrokerHarness, idle: CountingListener, listen: Listen, broker: Broker) -> int:
    """Return how often the idle listener was notified by the time another one has been notified of a new arrival.

    Time passes meanwhile: a running poll of the idle one may receive the message, which it then releases.
    """
    other = listen()
    other.request()
    broker.send("q", outgoing("more"))

    def notified() -> Sequence[Delivery]:
        other.await_notification()
        return ()

    WaitingReceiver(harness, notified).over(within_seconds=10 * DEADLINE_SECONDS)
    return idle.times


def test_nothing_is_reported_without_a_request(harness: BrokerHarness, broker: Broker, listen: Listen) -> None:
    assert notifications_of(harness, listen(), listen, broker) == 0


def test_a_withdrawn_request_is_not_notified(harness: BrokerHarness, broker: Broker, listen: Listen) -> None:
    listener = listen()
    listener.request()
    listener.listening.want(frozenset())
    assert notifications_of(harness, listener, listen, broker) == 0


def test_only_arrivals_in_requested_queues_are_reported(harness: BrokerHarness, broker: Broker, listen: Listen) -> None:
    listener = listen("q", "other")
    listener.listening.want({"other"})
    assert notifications_of(harness, listener, listen, broker) == 0
    broker.send("other", outgoing("b"))
    listener.await_notification()


def test_a_listener_is_notified_once_until_it_asks_again(
    harness: BrokerHarness, broker: Broker, listen: Listen
) -> None:
    listener = listen()
    listener.request()
    broker.send("q", outgoing("a"))
    listener.await_notification()
    assert notifications_of(harness, listener, listen, broker) == 1
    listener.request()
    broker.send("q", outgoing("b"))
    listener.await_notification()


def test_a_closed_listener_is_never_notified(harness: BrokerHarness, broker: Broker, listen: Listen) -> None:
    listener = listen()
    listener.request()
    close(harness, listener)
    close(harness, listener)
    listener.request()
    assert notifications_of(harness, listener, listen, broker) == 0


def test_arrivals_in_other_queues_are_not_reported(harness: BrokerHarness, broker: Broker, listen: Listen) -> None:
    listener = listen("elsewhere")
    listener.request()
    assert notifications_of(harness, listener, listen, broker) == 0


def test_a_released_message_is_reported_as_an_arrival(broker: Broker, listen: Listen) -> None:
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    listener = listen()
    listener.request()
    broker.settle([(delivery, Release())])
    listener.await_notification()
    assert bodies(receive(broker)) == ["a"]


def test_the_end_of_a_pause_is_reported(broker: Broker, listen: Listen) -> None:
    if not broker.capabilities.pausable:
        pytest.skip("not applicable: this broker cannot pause a queue")
    broker.send("q", outgoing("a"))
    broker.pause("q")
    listener = listen()
    listener.request()
    broker.resume("q")
    listener.await_notification()
    assert bodies(receive(broker)) == ["a"]
