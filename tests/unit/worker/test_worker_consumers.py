"""Several queues in one worker: shares, limits, an empty queue, a failing queue."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import JobFailed, MessagesReceived, ReceiveFailed, WorkerStarted
from penstock.messaging.handler import ExecutionPlace
from penstock.worker.batcher import Limits
from penstock.worker.consumer import Consumer

DEADLINE_SECONDS = 60.0

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Life

Eventually = Callable[..., None]
SHARED = [ExecutionPlace.POOL, ExecutionPlace.LOOP]


def test_two_consumers_may_not_name_one_queue(life: "Life") -> None:
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.serve(ExecutionPlace.LOOP, queue="mail")
    with pytest.raises(ConfigurationError, match="mail has more than one handler"):
        life.worker()


@pytest.mark.parametrize(
    ("other", "is_refused"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/111122223333/mail", True),
        ("arn:aws:sqs:us-east-1:111122223333:mail", True),
        ("arn:aws:sqs:eu-west-1:444455556666:mail", False),
        ("arn:aws:sqs:eu-west-1:111122223333:post", False),
    ],
)
def test_two_spellings_of_a_queue_name_are_one_queue(life: "Life", other: str, is_refused: bool) -> None:
    life.serve(ExecutionPlace.POOL, queue="mail" if is_refused else "arn:aws:sqs:eu-west-1:111122223333:mail")
    life.serve(ExecutionPlace.LOOP, queue=other)
    if is_refused:
        with pytest.raises(ConfigurationError, match="more than one handler"):
            life.worker()
    else:
        life.worker()


def test_a_worker_without_consumers_is_refused(life: "Life") -> None:
    worker_type = type(life.worker())
    with pytest.raises(ConfigurationError, match="at least one queue"):
        worker_type(broker=life.broker, consumers=(), settings=None, clock=life.clock, bus=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": 0},
        {"in_flight_max": 0},
        {"fetch_max": 0},
        {"limits": Limits(messages_max=0, bytes_max=1, wait_seconds=0.0)},
        {"limits": Limits(messages_max=1, bytes_max=0, wait_seconds=0.0)},
    ],
)
def test_invalid_numbers_of_a_consumer_are_refused(life: "Life", wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        Consumer(queue="mail", handler=life.handler, **wrong)


@pytest.mark.parametrize("place", SHARED)
def test_messages_of_each_queue_go_to_its_own_handler(life: "Life", place: ExecutionPlace) -> None:
    mail, images = life.serve(place, queue="mail"), life.serve(place, queue="images")
    life.broker.put(*range(10), queue="mail")
    life.broker.put(*range(10, 15), queue="images")
    life.until = lambda: len(life.broker.acked()) == 15
    assert life.start().end() == "drained"
    assert {delivery.queue for execution in mail.executions for delivery in execution.deliveries} == {"mail"}
    assert {delivery.queue for execution in images.executions for delivery in execution.deliveries} == {"images"}
    assert all(len(execution.deliveries) == 1 for execution in (*mail.executions, *images.executions))


def test_a_start_is_reported(life: "Life") -> None:
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.serve(ExecutionPlace.LOOP, queue="images")
    life.until = lambda: True
    life.start(concurrency=7).end()
    weights = {"mail": 1, "images": 1}
    assert life.events[0] == WorkerStarted(queues=("mail", "images"), concurrency=7, weights=weights)


def test_received_messages_are_reported(life: "Life") -> None:
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.broker.queues["mail"] = [(0, 1), (1, 2)]
    life.until = lambda: len(life.broker.acked()) == 2
    life.start().end()
    [received] = life.emitted(MessagesReceived)
    assert (received.queue, received.message_ids, received.redelivered) == ("mail", ("m0", "m1"), 1)
    assert received.first_enqueued_at is not None
    assert received.expired == 0, "the previous delivery is unknown"


@pytest.mark.parametrize("place", SHARED)
def test_two_consumers_share_the_slots_and_never_exceed_them(
    life: "Life", eventually: Eventually, place: ExecutionPlace
) -> None:
    blocking = {"blocking": True}
    mail = life.serve(place, queue="mail", handler=blocking)
    images = life.serve(place, queue="images", handler=blocking)
    life.broker.put(*range(10), queue="mail")
    life.broker.put(*range(10, 20), queue="images")
    life.start(concurrency=5, fetch_max=2)
    eventually(lambda: len(mail.executions) + len(images.executions) == 5)
    receives = len(life.broker.receive_sizes)
    assert len(life.broker.leased) == 5, "no leased message waits to begin"
    assert 0 not in life.broker.receive_sizes
    finished = life.running(0, mail)
    finished.let_go()
    eventually(lambda: len(mail.executions) + len(images.executions) == 6, "a freed slot is taken")
    assert len(life.broker.leased) == 5
    assert life.broker.receive_sizes[receives:] == [1], "one slot was free, one message was requested"
    mail.blocking = images.blocking = False
    for execution in (*mail.executions, *images.executions):
        if execution is not finished:
            assert execution.started.wait(DEADLINE_SECONDS)
            execution.let_go()
    eventually(lambda: len(life.broker.acked()) == 20)
    life.stop.request()
    assert life.end() == "drained"


def test_a_consumer_has_its_own_limit_in_flight(life: "Life", eventually: Eventually) -> None:
    mail = life.serve(ExecutionPlace.POOL, queue="mail", in_flight_max=2, handler={"blocking": True})
    images = life.serve(ExecutionPlace.POOL, queue="images", handler={"blocking": True})
    life.broker.put(*range(10), queue="mail")
    life.broker.put(*range(10, 20), queue="images")
    life.start(concurrency=6)
    eventually(lambda: len(images.executions) == 4)
    assert len(mail.executions) == 2
    life.stop.request()
    life.stop.request()
    assert life.end() == "interrupted"


def test_a_consumer_with_its_own_threads_uses_no_slots(life: "Life") -> None:
    pipeline = life.serve(ExecutionPlace.THREAD, queue="clicks", handler={"blocking": True})
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={"blocking": True})
    life.broker.put(0, queue="clicks")
    life.broker.put(1, queue="mail")
    life.start(concurrency=1)
    for handler in (pipeline, mail):
        life.running(0, handler)
    for handler in (pipeline, mail):
        life.running(0, handler).let_go()
    life.stop.request()
    assert life.end() == "drained"


def test_full_queues_are_read_in_proportion_to_their_weights(life: "Life", eventually: Eventually) -> None:
    for queue, weight in (("urgent", 3), ("rest", 1)):
        life.serve(ExecutionPlace.POOL, queue=queue, weight=weight)
        life.broker.put(*range(weight * 1_000, weight * 1_000 + 1_000), queue=queue)
    life.start(concurrency=10, fetch_max=5)
    eventually(lambda: len(life.broker.settled) >= 400)
    life.stop.request()
    life.end()
    received = life.emitted(MessagesReceived)
    got, total = Counter[str](), 0
    for event in received:
        if total < 400:
            got[event.queue] += len(event.message_ids)
            total += len(event.message_ids)
    assert abs(got["urgent"] - 0.75 * total) <= 0.05 * total


def test_an_empty_queue_delays_no_other_queue(life: "Life") -> None:
    """With idle waits of 50 s the full queue is still read continuously, and the empty ones are not polled again."""
    for queue in ("empty", "full", "void"):
        life.serve(ExecutionPlace.POOL, queue=queue)
    life.broker.put(*range(100), queue="full")
    life.until = lambda: len(life.broker.acked()) == 100
    assert life.start(concurrency=2, idle_floor_seconds=50.0, idle_ceiling_seconds=60.0).end() == "drained"
    polled = Counter(life.broker.polled_queues)
    assert polled["empty"] <= 2
    assert polled["void"] <= 2


def test_a_consumer_whose_receive_fails_backs_off_alone(life: "Life") -> None:
    for queue in ("mail", "images"):
        life.serve(ExecutionPlace.POOL, queue=queue)
    life.broker.unreachable = {"mail"}
    life.broker.put(*range(100), queue="images")
    life.until = lambda: len(life.broker.acked()) == 100
    settings = {"retry_base_seconds": 1_000.0, "retry_cap_seconds": 1_000.0}
    assert life.start(concurrency=2, **settings).end() == "drained"
    assert Counter(life.broker.polled_queues)["mail"] == 1
    assert life.emitted(ReceiveFailed) == [ReceiveFailed(queue="mail", error="TemporaryError: mail is unreachable")]


def test_a_worker_rests_once_if_all_queues_are_empty(life: "Life") -> None:
    for queue in ("a", "b", "c"):
        life.serve(ExecutionPlace.LOOP, queue=queue)
    life.start(idle_floor_seconds=50.0, idle_ceiling_seconds=60.0, poll_wait_seconds=15.0)
    assert life.broker.receiving.wait(DEADLINE_SECONDS)
    life.stop.request()
    assert life.end() == "drained"
    assert Counter(life.broker.polled_queues) <= Counter("abc"), "each was polled at most once"
    assert life.broker.waited <= {0.0}, "with several consumers no poll may wait in the broker"


def test_the_first_poll_waits_for_the_start_jitter(life: "Life", eventually: Eventually) -> None:
    life.serve(ExecutionPlace.POOL, queue="mail")
    life.start(start_jitter_seconds=60.0, idle_ceiling_seconds=60.0)
    eventually(lambda: life.handlers()[0].upkeeps)
    life.stop.request()
    assert life.end() == "drained"
    assert life.broker.receive_sizes == []


def test_each_handler_has_upkeep_at_its_own_times(life: "Life", eventually: Eventually) -> None:
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={"blocking": True})
    images = life.serve(ExecutionPlace.POOL, queue="images", handler={"upkeep_faults": [TemporaryError("unreachable")]})
    life.broker.put(0, queue="mail")
    life.start(upkeep_seconds=0.001)
    life.running(0, mail)
    before = mail.upkeeps
    eventually(lambda: images.upkeeps > 5)
    assert mail.upkeeps == before, "its handler is busy"
    assert [event.job for event in life.events if isinstance(event, JobFailed)] == ["images"]
    life.running(0, mail).let_go()
    eventually(lambda: mail.upkeeps > before)
    life.stop.request()
    assert life.end() == "drained"


def test_a_slow_handler_occupies_only_its_own_slot(life: "Life", eventually: Eventually) -> None:
    before = set(threading.enumerate())
    slow = life.serve(ExecutionPlace.POOL, queue="slow", handler={"blocking": True})
    life.serve(ExecutionPlace.POOL, queue="quick")
    life.broker.put(0, queue="slow")
    life.start(concurrency=2)
    execution = life.running(0, slow)
    life.broker.put(*range(1, 50), queue="quick")
    eventually(lambda: len(life.broker.acked()) == 49)
    execution.let_go()
    life.stop.request()
    assert life.end() == "drained"
    assert len(set(threading.enumerate()) - before) < 40


def test_a_full_batch_begins_beside_a_long_run_and_a_smaller_one_grows_until_it_ends(
    life: "Life", eventually: Eventually
) -> None:
    life.handler.blocking = True
    life.broker.put(*range(5))
    life.start(batch_messages_max=2, in_flight_max=3)
    eventually(lambda: len(life.handler.executions) == 2)
    receives = len(life.broker.receive_sizes)
    eventually(lambda: len(life.broker.receive_sizes) >= receives + 3, "empty receives do not begin the held message")
    life.broker.put(5)
    assert len(life.running(2).deliveries) == 2
    for number in range(3):
        life.running(number).let_go()
    life.stop.request()
    assert life.end() == "drained"
