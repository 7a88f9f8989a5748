"""A turn settles and receives in one call, and a listener is notified of arrivals: the contract of all brokers."""

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.conformance.broker_stands import LEASE, Stand, Waiting, bodies, outgoing, receive

from penstock.errors import ConfigurationError, TemporaryError
from penstock.messaging.broker import Broker, Listening, ReceiveRequest, TurnResult
from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement

DEADLINE_SECONDS = 60.0


@pytest.fixture
def broker(stand: Stand) -> Broker:
    return stand.broker()


def turn(broker: Broker, settlements: Sequence[tuple[Delivery, Settlement]] = (), **asked: int) -> TurnResult:
    asks = [ReceiveRequest(queue=queue, messages_max=count) for queue, count in asked.items()]
    return broker.turn(settlements, asks, lease_seconds=LEASE)


# --- turns


def test_a_turn_settles_and_receives(broker: Broker) -> None:
    broker.send("q", outgoing("a", "b", "c", "d"))
    first, second = receive(broker, 2)
    came = turn(broker, [(first, Ack()), (second, DeadLetter(reason="no use"))], q=10)
    assert bodies(came.deliveries) == ["c", "d"]
    assert not came.failures
    assert (came.settle_error, came.receive_error) == (None, None)
    assert broker.stats("q").in_flight == 2
    assert broker.stats("q-dlq").visible == 1


def test_a_turn_settles_first_so_that_what_is_released_comes_again(broker: Broker) -> None:
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    (again,) = turn(broker, [(delivery, Release(reason="not yet"))], q=1).deliveries
    assert (again.message.id, again.attempt) == (delivery.message.id, 2)
    assert again.receipt != delivery.receipt


def test_the_deliveries_of_a_turn_are_leased_like_any_others(stand: Stand, broker: Broker) -> None:
    broker.send("q", outgoing("a"))
    (delivery,) = turn(broker, q=1).deliveries
    assert delivery.queue == "q"
    assert receive(broker) == []
    assert not broker.extend([delivery], lease_seconds=2 * LEASE)
    stand.advance(LEASE * 1.5)
    assert not broker.settle([(delivery, Ack())])


def test_no_more_come_than_were_asked_for(broker: Broker) -> None:
    broker.send("q", outgoing("a", "b", "c"))
    assert bodies(turn(broker, q=2).deliveries) == ["a", "b"]


def test_the_first_queue_that_has_messages_gives_them_and_those_behind_it_are_not_asked(broker: Broker) -> None:
    broker.send("second", outgoing("b"))
    broker.send("third", outgoing("c"))
    came = turn(broker, first=5, second=5, third=5)
    assert [(delivery.queue, delivery.message.body) for delivery in came.deliveries] == [("second", b"b")]
    assert broker.stats("third").visible == 1
    assert bodies(turn(broker, third=5, first=5).deliveries) == ["c"]


def test_the_order_is_that_of_the_asks(broker: Broker) -> None:
    broker.send("a", outgoing("from a"))
    broker.send("b", outgoing("from b"))
    assert bodies(turn(broker, b=5, a=5).deliveries) == ["from b"]


def test_a_paused_queue_gives_nothing_and_those_behind_it_are_asked(broker: Broker) -> None:
    if not broker.capabilities.pausable:
        pytest.skip("not applicable: this broker cannot pause a queue")
    broker.send("a", outgoing("from a"))
    broker.send("b", outgoing("from b"))
    broker.pause("a")
    assert bodies(turn(broker, a=5, b=5).deliveries) == ["from b"]


def test_what_cannot_be_settled_is_answered_and_the_turn_continues(broker: Broker) -> None:
    broker.send("q", outgoing("a", "b", "c"))
    first, second = receive(broker, 2)
    broker.settle([(first, Ack())])
    came = turn(broker, [(first, Ack()), (second, Ack())], q=10)
    assert [(failure.delivery, failure.lost) for failure in came.failures] == [(first, True)]
    assert bodies(came.deliveries) == ["c"]
    assert broker.stats("q").in_flight == 1


def test_a_turn_may_only_settle(broker: Broker) -> None:
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    came = turn(broker, [(delivery, Ack())])
    assert not came.deliveries
    assert not broker.stats("q").in_flight


def test_a_turn_without_anything_to_do_is_nothing(broker: Broker) -> None:
    came = turn(broker)
    assert not came.deliveries
    assert not came.failures
    assert (came.settle_error, came.receive_error) == (None, None)


def test_a_settlement_that_makes_no_sense_is_answered_and_the_receive_continues(broker: Broker) -> None:
    broker.send("q", outgoing("a", "b"))
    (delivery,) = receive(broker, 1)
    came = turn(broker, [(delivery, Release(delay_seconds=-1.0))], q=5)
    assert isinstance(came.settle_error, ConfigurationError)
    assert came.receive_error is None
    assert bodies(came.deliveries) == ["b"]


def test_a_lease_that_makes_no_sense_is_answered_and_what_was_settled_stays_settled(broker: Broker) -> None:
    broker.send("q", outgoing("a", "b"))
    (delivery,) = receive(broker, 1)
    came = broker.turn([(delivery, Ack())], [ReceiveRequest(queue="q", messages_max=5)], lease_seconds=-1.0)
    assert came.settle_error is None
    assert came.receive_error is not None
    assert came.receive_error[0] == "q"
    assert isinstance(came.receive_error[1], ConfigurationError)
    stats = broker.stats("q")
    assert (stats.visible, stats.in_flight) == (1, 0)


def test_after_closing_both_halves_answer_that_it_is_away(broker: Broker) -> None:
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    broker.close()
    came = turn(broker, [(delivery, Ack())], q=1)
    assert isinstance(came.settle_error, TemporaryError)
    assert came.receive_error is not None
    assert came.receive_error[0] == "q"
    assert isinstance(came.receive_error[1], TemporaryError)


def test_a_turn_waits_for_one_queue_and_never_for_several(stand: Stand, broker: Broker) -> None:
    one, two = ReceiveRequest(queue="one", messages_max=1), ReceiveRequest(queue="two", messages_max=1)
    assert not broker.turn([], [one, two], lease_seconds=LEASE, wait_seconds=20).deliveries  # time stands still
    alone = Waiting(stand, lambda: broker.turn([], [one], lease_seconds=LEASE, wait_seconds=20).deliveries)
    stand.advance(19)
    assert alone.goes_on()
    assert alone.over(within_seconds=60) == []


# --- ears


class Ear:
    """A listener that counts its notifications."""

    def __init__(self, queues: frozenset[str]) -> None:
        self.times = 0
        self.listening: Listening
        self._queues = queues
        self._told = threading.Event()

    def tell(self) -> None:
        self.times += 1
        self._told.set()

    def wants(self) -> None:
        self.listening.want(self._queues)

    def await_told(self) -> None:
        assert self._told.wait(DEADLINE_SECONDS), "nobody told of the arrival"
        self._told.clear()


def close(stand: Stand, ear: Ear) -> None:
    """Let the time pass that it may take: a look at the server is never broken off."""

    def closed() -> Sequence[Delivery]:
        ear.listening.close()
        return ()

    Waiting(stand, closed).over(within_seconds=60)


Listen = Callable[..., Ear]


@pytest.fixture
def listen(stand: Stand, broker: Broker) -> Iterator[Listen]:
    """Makes an ear at queues, "q" unless said otherwise; all are closed at the end."""
    made: list[Ear] = []

    def listen(*queues: str) -> Ear:
        made.append(Ear(frozenset(queues or ("q",))))
        made[-1].listening = broker.listen(queues or ("q",), made[-1].tell)
        return made[-1]

    yield listen
    for ear in made:
        close(stand, ear)


def test_an_arrival_is_reported_once_a_listener_asks(broker: Broker, listen: Listen) -> None:
    ear = listen("other", "q")
    ear.wants()
    broker.send("q", outgoing("a"))
    ear.await_told()
    assert bodies(receive(broker)) == ["a"]
    ear.wants()
    broker.send("other", outgoing("b"))
    ear.await_told()


def told_beside(stand: Stand, deaf: Ear, listen: Listen, broker: Broker) -> int:
    """How often that ear was told once another one has heard of a new arrival.

    Time passes meanwhile: a look of the deaf one that is under way may bring the message, which then goes back.
    """
    other = listen()
    other.wants()
    broker.send("q", outgoing("more"))

    def told() -> Sequence[Delivery]:
        other.await_told()
        return ()

    Waiting(stand, told).over(within_seconds=10 * DEADLINE_SECONDS)
    return deaf.times


def test_nothing_is_reported_without_a_request(stand: Stand, broker: Broker, listen: Listen) -> None:
    assert told_beside(stand, listen(), listen, broker) == 0


def test_a_withdrawn_request_is_not_answered(stand: Stand, broker: Broker, listen: Listen) -> None:
    ear = listen()
    ear.wants()
    ear.listening.want(frozenset())
    assert told_beside(stand, ear, listen, broker) == 0


def test_only_arrivals_in_requested_queues_are_reported(stand: Stand, broker: Broker, listen: Listen) -> None:
    ear = listen("q", "other")
    ear.listening.want({"other"})
    assert told_beside(stand, ear, listen, broker) == 0
    broker.send("other", outgoing("b"))
    ear.await_told()


def test_a_listener_is_notified_once_until_it_asks_again(stand: Stand, broker: Broker, listen: Listen) -> None:
    ear = listen()
    ear.wants()
    broker.send("q", outgoing("a"))
    ear.await_told()
    assert told_beside(stand, ear, listen, broker) == 1
    ear.wants()
    broker.send("q", outgoing("b"))
    ear.await_told()


def test_a_closed_listener_is_never_notified(stand: Stand, broker: Broker, listen: Listen) -> None:
    ear = listen()
    ear.wants()
    close(stand, ear)
    close(stand, ear)
    ear.wants()
    assert told_beside(stand, ear, listen, broker) == 0


def test_other_queues_are_not_told_of(stand: Stand, broker: Broker, listen: Listen) -> None:
    ear = listen("elsewhere")
    ear.wants()
    assert told_beside(stand, ear, listen, broker) == 0


def test_what_is_released_is_reported(broker: Broker, listen: Listen) -> None:
    broker.send("q", outgoing("a"))
    (delivery,) = receive(broker)
    ear = listen()
    ear.wants()
    broker.settle([(delivery, Release())])
    ear.await_told()
    assert bodies(receive(broker)) == ["a"]


def test_the_end_of_a_pause_is_reported(broker: Broker, listen: Listen) -> None:
    if not broker.capabilities.pausable:
        pytest.skip("not applicable: this broker cannot pause a queue")
    broker.send("q", outgoing("a"))
    broker.pause("q")
    ear = listen()
    ear.wants()
    broker.resume("q")
    ear.await_told()
    assert bodies(receive(broker)) == ["a"]
