"""Long polls of the SQS arrival listener: messages are buffered for the worker, and released if it does not ask."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.unit.brokers.sqs_doubles import received

from penstock.brokers.sqs.envelope import SqsDelivery
from penstock.brokers.sqs.listener import LEASE_SECONDS, SqsArrivalListener
from penstock.brokers.sqs.receive import PolledBatch, PolledMessages, PollRequest
from penstock.errors import TemporaryError
from penstock.testing import FakeClock

DEADLINE_SECONDS = 60.0


def eventually(condition: Callable[[], object]) -> None:
    give_up, tick = time.monotonic() + DEADLINE_SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < give_up, "the condition did not become true in time"
        tick.wait(0.002)


class ListenerSetup:
    """A listener for queues a and b, whose polls wait until the test provides their result."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.polled = PolledMessages(self.clock, unclaimed_seconds=1.0)
        self.notified = threading.Semaphore(0)
        self.notifications = 0
        self.polls: list[tuple[str, int, float, float]] = []
        self.released: list[str] = []
        self.poll_error: Exception | None = None
        self._arrived = threading.Condition()
        self._results: dict[str, list[Sequence[SqsDelivery]]] = {}
        self.listener = SqsArrivalListener(
            ("a", "b"),
            self._notify,
            polled=self.polled,
            poll=self._poll,
            release=lambda deliveries: self.released.extend(delivery.receipt for delivery in deliveries),
            poll_seconds=0.1,
            clock=self.clock,
            random=lambda: 0.5,
        )

    def provide(self, queue: str, *numbers: int) -> None:
        """Set the result of the queue's poll that is under way, or else of the next."""
        deliveries = [received(n, queue=queue, began_at=self.clock.monotonic()) for n in numbers]
        with self._arrived:
            self._results.setdefault(queue, []).append(deliveries)
            self._arrived.notify_all()

    def await_notification(self) -> None:
        assert self.notified.acquire(timeout=DEADLINE_SECONDS)

    def await_polls(self, count: int) -> None:
        eventually(lambda: len(self.polls) >= count)

    def taken(self, queue: str, count: int = 10) -> list[str]:
        batch = self.polled.take(queue, count)
        return [] if batch is None else [delivery.receipt for delivery in batch.deliveries]

    def _notify(self) -> None:
        self.notifications += 1
        self.notified.release()

    def _poll(self, queue: str, count: int, lease_seconds: float, wait_seconds: float) -> Sequence[SqsDelivery]:
        with self._arrived:
            self.polls.append((queue, count, lease_seconds, wait_seconds))
            if self.poll_error is not None:
                raise self.poll_error
            self._arrived.wait_for(lambda: self._results.get(queue), DEADLINE_SECONDS)
            return self._results[queue].pop(0)

    def close(self) -> None:
        for queue in ("a", "b"):
            for _ in range(2):
                self.provide(queue)
        self.listener.close()


@pytest.fixture
def setup() -> Iterator[ListenerSetup]:
    opened = ListenerSetup()
    yield opened
    opened.close()


def test_only_wanted_queues_are_polled(setup: ListenerSetup) -> None:
    assert setup.polls == []
    setup.listener.want({"b"})
    setup.await_polls(1)
    assert [poll[0] for poll in setup.polls] == ["b"]
    assert setup.polled.is_polled("b")
    assert not setup.polled.is_polled("a")


def test_a_wanted_queue_counts_as_polled_before_its_thread_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the worker polls too, and one of the two polls receives again the messages that the other released."""
    setup = ListenerSetup()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: None)
        setup.listener.want({"a"})
        assert setup.polled.is_polled("a")
        assert not setup.polled.is_polled("b")
        setup.listener.want({"b"})
        assert not setup.polled.is_polled("a"), "the queue is no longer wanted"
        setup.listener.want(frozenset())
        assert not setup.polled.is_polled("b")


def test_an_arrival_cancels_polls_that_have_not_begun(setup: ListenerSetup) -> None:
    setup.listener.want({"a"})
    setup.await_polls(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: None)
        setup.listener.want({"a", "b"})
        assert setup.polled.is_polled("b")
        setup.provide("a", 1)
        setup.await_notification()
    assert not setup.polled.is_polled("b")
    setup.listener._threads["b"].start()


def test_polled_messages_are_buffered_and_reported_once(setup: ListenerSetup) -> None:
    setup.listener.want({"a", "b"})
    setup.await_polls(2)
    setup.provide("a", 1, 2)
    setup.await_notification()
    assert setup.taken("a") == ["r1", "r2"]
    setup.provide("b", 3)
    eventually(lambda: not setup.polled.is_polled("b"))
    assert setup.notifications == 1
    setup.listener.want({"b"})
    setup.provide("b", 4)
    setup.await_notification()
    assert [*setup.taken("b"), *setup.taken("b")] == ["r3", "r4"]


def test_an_empty_poll_is_followed_by_another(setup: ListenerSetup) -> None:
    setup.listener.want({"a"})
    setup.provide("a")
    setup.provide("a")
    setup.provide("a", 1)
    setup.await_notification()
    assert len(setup.polls) == 3


def test_a_poll_repeats_the_last_request_and_begins_with_one_message(setup: ListenerSetup) -> None:
    setup.listener.want({"a"})
    setup.await_polls(1)
    setup.polled.expect("a", PollRequest(messages_max=50, lease_seconds=7.0))
    setup.provide("a")
    setup.await_polls(2)
    assert setup.polls[:2] == [("a", 1, LEASE_SECONDS, 0.1), ("a", 10, 7.0, 0.1)]


def test_row_76_messages_polled_for_a_queue_no_longer_wanted_are_released_after_a_moment(setup: ListenerSetup) -> None:
    setup.listener.want({"a"})
    setup.await_polls(1)
    setup.listener.want(frozenset())
    setup.provide("a", 1)
    eventually(lambda: setup.polled.overdue_in("a") is not None)
    assert setup.released == []
    setup.clock.advance(1.0)
    eventually(lambda: setup.released == ["r1"])
    assert setup.notifications == 0
    assert setup.taken("a") == []


def test_a_request_within_that_moment_receives_the_messages(setup: ListenerSetup) -> None:
    setup.listener.want({"a"})
    setup.await_polls(1)
    setup.listener.want(frozenset())
    setup.provide("a", 1)
    eventually(lambda: setup.polled.overdue_in("a") is not None)
    assert setup.taken("a") == ["r1"]
    setup.clock.advance(60)
    setup.listener.want({"a"})
    setup.await_polls(2)
    assert setup.released == []


def test_row_74_closing_waits_for_polls_under_way_and_releases_their_messages(setup: ListenerSetup) -> None:
    setup.listener.want({"a"})
    setup.await_polls(1)
    closing = threading.Thread(target=setup.listener.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    setup.provide("a", 1)
    closing.join(DEADLINE_SECONDS)
    assert not closing.is_alive()
    assert setup.released == ["r1"]


def test_a_closed_listener_does_not_poll(setup: ListenerSetup) -> None:
    setup.listener.close()
    setup.listener.want({"a"})
    assert setup.listener._threads == {}, "no thread was started that could poll later"
    assert setup.polls == []


def test_after_a_failed_poll_the_listener_waits_and_polls_again(setup: ListenerSetup) -> None:
    setup.poll_error = TemporaryError("away")
    setup.listener.want({"a"})
    setup.await_polls(1)
    eventually(lambda: not setup.polled.is_polled("a"))
    setup.listener.want(frozenset())
    setup.listener.want({"a"})
    assert not setup.polled.is_polled("a"), "its thread waits, so the worker has to poll"
    setup.poll_error = None
    setup.clock.advance(10)
    setup.provide("a", 1)
    setup.await_notification()


def test_a_poll_that_fails_after_its_queue_was_wanted_again_leaves_the_queue_to_the_worker() -> None:
    """Otherwise a queue counts as polled while its thread waits after the failure, and the worker receives nothing."""
    polled, begun, fails = PolledMessages(FakeClock(), unclaimed_seconds=1.0), threading.Event(), threading.Event()

    def poll(*_: object) -> Sequence[SqsDelivery]:
        begun.set()
        assert fails.wait(DEADLINE_SECONDS)
        raise TemporaryError("away")

    listener = SqsArrivalListener(
        ("a", "b"),
        lambda: None,
        polled=polled,
        poll=poll,
        release=lambda _: None,
        poll_seconds=0.1,
        clock=FakeClock(),
        random=lambda: 0.5,
    )
    listener.want({"a"})
    assert begun.wait(DEADLINE_SECONDS)
    listener.want(frozenset())
    listener.want({"a"})
    fails.set()
    eventually(lambda: not polled.is_polled("a"))
    listener.close()


def test_an_unexpected_exception_does_not_end_the_listener(setup: ListenerSetup) -> None:
    setup.poll_error = RuntimeError("an exception that no library should raise")
    setup.listener.want({"a"})
    setup.await_polls(1)
    setup.poll_error = None
    setup.clock.advance(10)
    setup.provide("a", 1)
    setup.await_notification()


# --- buffered messages


def batch(*numbers: int, lease_seconds: float = 60.0, full: bool = False, began_at: float = 0.0) -> PolledBatch:
    deliveries = [received(n, began_at=began_at) for n in numbers]
    return PolledBatch(deliveries=deliveries, lease_seconds=lease_seconds, was_full=full)


def polled_with(*batches: PolledBatch) -> PolledMessages:
    polled = PolledMessages(FakeClock(), unclaimed_seconds=1.0)
    for each in batches:
        polled.poll_begins("q")
        polled.poll_ends("q", each)
    return polled


def test_take_returns_at_most_the_requested_number() -> None:
    polled = polled_with(batch(1, 2, 3), batch(4))
    assert polled.take("q", 0) is None
    taken = [polled.take("q", 2) for _ in range(4)]
    assert [each and [delivery.receipt for delivery in each.deliveries] for each in taken] == [
        ["r1", "r2"],
        ["r3"],
        ["r4"],
        None,
    ]
    assert [each.was_full for each in taken if each is not None] == [True, False, False]


def test_messages_are_buffered_for_at_most_a_quarter_of_their_lease() -> None:
    assert polled_with(batch(1)).overdue_in("q") == 1.0
    assert polled_with(batch(1, lease_seconds=2.0)).overdue_in("q") == 0.5


@pytest.mark.parametrize("all", [True, False])
def test_messages_past_their_lease_are_not_released(all: bool) -> None:
    clock = FakeClock()
    polled = PolledMessages(clock, unclaimed_seconds=1.0)
    for n, lease_seconds in ((1, 10.0), (2, 30.0)):
        polled.poll_begins("q")
        polled.poll_ends("q", batch(n, lease_seconds=lease_seconds, began_at=clock.monotonic()))
    clock.advance(10.0)
    assert [delivery.receipt for delivery in polled.take_overdue("q", all=all)] == ["r2"]
    assert polled.overdue_in("q") is None


def test_dropping_a_queue_empties_its_buffer() -> None:
    polled = polled_with(batch(1))
    polled.drop("q")
    assert polled.take("q", 1) is None
    assert polled.overdue_in("q") is None


def test_a_wait_ends_with_the_poll() -> None:
    polled = PolledMessages(FakeClock(), unclaimed_seconds=1.0)
    polled.poll_begins("q")
    waiting = threading.Thread(target=polled.wait, args=("q", DEADLINE_SECONDS))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    polled.poll_ends("q", None)
    waiting.join(DEADLINE_SECONDS / 2)
    assert not waiting.is_alive()
