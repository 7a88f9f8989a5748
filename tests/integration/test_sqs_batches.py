"""Batches with failing entries, as on AWS: INPUTS rows 67 and 68; and the number of calls."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.session import get_session
from tests.integration.sqs_gate import SqsGate, all_entries, entries_of
from tests.integration.sqs_scene import Scene, bodies, numbered, outgoing, scene, take, take_all, take_later

from penstock.brokers.sqs import SqsBroker
from penstock.errors import ConfigurationError, TemporaryError
from penstock.messaging.broker import ReceiveRequest
from penstock.messaging.delivery import Delivery
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement

__all__ = ["scene"]

DEADLINE_SECONDS = 180.0
TURNS = 200
LOST_LEASE_SECONDS = 2.0  # the test waits for its end
DELETE, SEND, CHANGE = "DeleteMessageBatch", "SendMessageBatch", "ChangeMessageVisibilityBatch"


@pytest.fixture
def gate(scene: Scene) -> Iterator[SqsGate]:
    opened = SqsGate(scene.server)
    yield opened
    opened.close()


@pytest.fixture
def broker(scene: Scene, gate: SqsGate) -> SqsBroker:
    scene.broker()
    return scene.broker(aws=gate.aws)


def test_the_gates_errors_have_the_fields_of_the_service_model() -> None:
    shape = get_session().get_service_model("sqs").shape_for("BatchResultErrorEntry")
    assert set(shape.members) == {"Id", "SenderFault", "Code", "Message"}


def test_row_67_more_than_ten_entries_are_deleted_extended_and_sent_ten_at_a_time(
    broker: SqsBroker, gate: SqsGate
) -> None:
    broker.send("q", numbered(25))
    deliveries = take_all(broker, 25)
    assert not broker.extend(deliveries, lease_seconds=30)
    assert not broker.settle([(delivery, Ack()) for delivery in deliveries])
    for operation in (SEND, CHANGE, DELETE):
        assert sorted(gate.sizes(operation)) == [5, 10, 10]
    stats = broker.stats("q")
    assert (stats.visible, stats.in_flight) == (0, 0)


def test_row_68_only_failed_deletes_are_retried(broker: SqsBroker, gate: SqsGate) -> None:
    broker.send("q", numbered(10))
    gate.refuse(DELETE, entries_of("37", "InternalError"), entries_of("7", "InternalError"))
    assert not broker.settle([(delivery, Ack()) for delivery in take(broker)])
    assert gate.sizes(DELETE) == [10, 2, 1]
    assert broker.stats("q").in_flight == 0


def test_a_delete_that_keeps_failing_is_reported_and_can_be_repeated(broker: SqsBroker, gate: SqsGate) -> None:
    broker.send("q", numbered(3))
    deliveries = take(broker)
    gate.refuse(DELETE, *[entries_of("1", "InternalError")] + [all_entries("InternalError")] * 3)
    (failure,) = broker.settle([(delivery, Ack()) for delivery in deliveries])
    assert (failure.delivery, failure.lost) == (deliveries[1], False)
    assert broker.stats("q").in_flight == 1
    assert not broker.settle([(failure.delivery, Ack())])
    assert broker.stats("q").in_flight == 0


def test_an_invalid_receipt_handle_is_lost_without_a_retry(broker: SqsBroker, gate: SqsGate) -> None:
    broker.send("q", numbered(2))
    deliveries = take(broker)
    gate.refuse(DELETE, entries_of("0", "ReceiptHandleIsInvalid", sender_fault=True))
    (failure,) = broker.settle([(delivery, Ack()) for delivery in deliveries])
    assert (failure.delivery, failure.lost) == (deliveries[0], True)
    assert gate.sizes(DELETE) == [2]


def test_only_failed_lease_extensions_are_retried(broker: SqsBroker, gate: SqsGate) -> None:
    broker.send("q", numbered(4))
    deliveries = take(broker)
    gate.refuse(CHANGE, entries_of("02", "InternalError"))
    assert not broker.extend(deliveries, lease_seconds=30)
    assert gate.sizes(CHANGE) == [4, 2]
    gate.refuse(CHANGE, *[all_entries("InternalError")] * 4)
    with pytest.raises(TemporaryError, match="4 of 4 leases"):
        broker.extend(deliveries, lease_seconds=30)


def test_only_failed_messages_are_sent_again_and_none_twice(broker: SqsBroker, gate: SqsGate) -> None:
    gate.refuse(SEND, entries_of("14", "InternalError"))
    ids = broker.send("q", numbered(5))
    assert gate.sizes(SEND) == [5, 2]
    deliveries = take(broker)
    assert sorted(bodies(deliveries)) == ["0", "1", "2", "3", "4"]
    by_id = {delivery.message.id: delivery.message.body.decode() for delivery in deliveries}
    assert [by_id[id] for id in ids] == ["0", "1", "2", "3", "4"]


def test_a_message_that_sqs_refuses_is_reported_and_the_others_are_sent(broker: SqsBroker, gate: SqsGate) -> None:
    gate.refuse(SEND, entries_of("1", "InvalidMessageContents", sender_fault=True))
    with pytest.raises(ConfigurationError, match="InvalidMessageContents"):
        broker.send("q", numbered(3))
    assert sorted(bodies(take(broker))) == ["0", "2"]


def test_a_dead_letter_that_could_not_be_sent_leaves_its_message(broker: SqsBroker, gate: SqsGate) -> None:
    broker.send("q", numbered(3))
    deliveries = take(broker)
    gate.refuse(SEND, *[entries_of("1", "InternalError"), *[all_entries("InternalError")] * 3])
    (failure,) = broker.settle([(delivery, DeadLetter(reason="bad")) for delivery in deliveries])
    assert (failure.delivery, failure.lost) == (deliveries[1], False)
    assert (broker.stats("q").in_flight, broker.stats("q-dlq").visible) == (1, 2)


def test_a_failed_delete_after_a_sent_dead_letter_causes_no_second_one(broker: SqsBroker, gate: SqsGate) -> None:
    broker.send("q", numbered(1))
    (delivery,) = take(broker)
    gate.refuse(DELETE, *[all_entries("InternalError")] * 4)
    (failure,) = broker.settle([(delivery, DeadLetter(reason="bad"))])
    assert not failure.lost
    assert not broker.settle([(delivery, DeadLetter(reason="bad"))])
    assert (broker.stats("q").in_flight, broker.stats("q-dlq").visible) == (0, 1)


# --- number of calls


def test_full_batches_cost_at_most_three_tenths_of_a_call_per_message(broker: SqsBroker, gate: SqsGate) -> None:
    count = 200
    broker.send("q", numbered(count))
    gate.calls.clear()
    done: list[str] = []
    settling: Sequence[tuple[Delivery, Settlement]] = ()
    calls: int | None = None  # until the queue seems to be empty
    give_up = time.monotonic() + DEADLINE_SECONDS
    while calls is None or len(done) < count:
        assert time.monotonic() < give_up, f"{count - len(done)} messages never came"
        wait_seconds = 0.0 if calls is None else 1.0
        requests = [ReceiveRequest(queue="q", messages_max=50)]
        turn = broker.turn(settling, requests, lease_seconds=60, wait_seconds=wait_seconds)
        assert not turn.failures
        assert turn.settle_error is None
        if turn.deliveries:
            assert not broker.extend(turn.deliveries, lease_seconds=60)  # one heartbeat
        elif calls is None:
            # On a busy machine, a response can be lost to its timeout: its messages come when their lease has ended.
            calls = gate.counts().total()
        done += bodies(turn.deliveries)
        settling = [(delivery, Ack()) for delivery in turn.deliveries]
    assert sorted(map(int, done)) == list(range(count))
    assert calls <= 0.3 * count + 5  # and the polls that find nothing


def test_messages_of_a_response_lost_beside_others_come_after_their_lease(broker: SqsBroker, gate: SqsGate) -> None:
    broker.send("q", numbered(50))
    gate.lose(b'"45"')
    first = bodies(take(broker, 50, lease=LOST_LEASE_SECONDS))  # no error, as the other calls returned messages
    assert gate.has_lost
    assert "45" not in first
    give_up = time.monotonic() + DEADLINE_SECONDS
    while "45" not in bodies(take_later(broker, 50)):
        assert time.monotonic() < give_up, "the messages of the lost response never came"


def test_turns_during_a_listeners_poll_cost_no_call_and_get_its_messages(broker: SqsBroker, gate: SqsGate) -> None:
    notified = threading.Event()
    listener = broker.listen(["q"], notified.set)
    try:
        broker.turn([], [ReceiveRequest(queue="q", messages_max=5)], lease_seconds=60)
        gate.calls.clear()
        listener.want({"q"})
        give_up, tick = time.monotonic() + DEADLINE_SECONDS, threading.Event()
        while not gate.counts()["ReceiveMessage"]:
            assert time.monotonic() < give_up, "the listener does not poll"
            tick.wait(0.005)
        for _ in range(TURNS):
            assert not broker.turn([], [ReceiveRequest(queue="q", messages_max=5)], lease_seconds=60).deliveries
        assert gate.counts()["ReceiveMessage"] < TURNS / 4  # polls of a second each, and no others
        broker.send("q", outgoing("a", "b"))
        assert notified.wait(DEADLINE_SECONDS)
        turn = broker.turn([], [ReceiveRequest(queue="q", messages_max=5)], lease_seconds=60)
        assert bodies(turn.deliveries)[0] == "a"
    finally:
        listener.close()


def test_messages_of_a_listeners_poll_get_the_requested_lease(broker: SqsBroker, gate: SqsGate) -> None:
    notified = threading.Event()
    listener = broker.listen(["q"], notified.set)
    try:
        listener.want({"q"})
        broker.send("q", outgoing("a"))
        assert notified.wait(DEADLINE_SECONDS)
        (delivery,) = broker.receive("q", messages_max=1, lease_seconds=900)
        assert gate.sizes(CHANGE) == [1]
        assert not broker.settle([(delivery, Release())])
    finally:
        listener.close()


def test_a_receive_during_a_listeners_poll_gets_its_messages(broker: SqsBroker, gate: SqsGate) -> None:
    listener = broker.listen(["q"], lambda: None)
    try:
        listener.want({"q"})
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(broker.receive, "q", messages_max=5, lease_seconds=60, wait_seconds=20)
            broker.send("q", outgoing("a"))
            assert bodies(waiting.result(timeout=DEADLINE_SECONDS)) == ["a"]
    finally:
        listener.close()
