"""Long polls that bring what arrives: held for whoever asks, given back where nobody does."""

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
        assert time.monotonic() < give_up, "it never came true"
        tick.wait(0.002)


class Scene:
    """An ear at queues a and b, whose polls wait until the test answers them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.held = PolledMessages(self.clock, unclaimed_seconds=1.0)
        self.told = threading.Semaphore(0)
        self.times_told = 0
        self.polls: list[tuple[str, int, float, float]] = []
        self.released: list[str] = []
        self.fault: Exception | None = None
        self._arrived = threading.Condition()
        self._answers: dict[str, list[Sequence[SqsDelivery]]] = {}
        self.ear = SqsArrivalListener(
            ("a", "b"),
            self._tell,
            polled=self.held,
            poll=self._poll,
            release=lambda deliveries: self.released.extend(delivery.receipt for delivery in deliveries),
            poll_seconds=0.1,
            clock=self.clock,
            random=lambda: 0.5,
        )

    def answer(self, queue: str, *numbers: int) -> None:
        """What the poll of the queue that is under way, or the next, brings."""
        came = [received(n, queue=queue, began_at=self.clock.monotonic()) for n in numbers]
        with self._arrived:
            self._answers.setdefault(queue, []).append(came)
            self._arrived.notify_all()

    def await_told(self) -> None:
        assert self.told.acquire(timeout=DEADLINE_SECONDS)

    def await_polls(self, count: int) -> None:
        eventually(lambda: len(self.polls) >= count)

    def taken(self, queue: str, count: int = 10) -> list[str]:
        catch = self.held.take(queue, count)
        return [] if catch is None else [delivery.receipt for delivery in catch.deliveries]

    def _tell(self) -> None:
        self.times_told += 1
        self.told.release()

    def _poll(self, queue: str, count: int, lease_seconds: float, wait_seconds: float) -> Sequence[SqsDelivery]:
        with self._arrived:
            self.polls.append((queue, count, lease_seconds, wait_seconds))
            if self.fault is not None:
                raise self.fault
            self._arrived.wait_for(lambda: self._answers.get(queue), DEADLINE_SECONDS)
            return self._answers[queue].pop(0)

    def close(self) -> None:
        for queue in ("a", "b"):
            for _ in range(2):
                self.answer(queue)
        self.ear.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close()


def test_nothing_is_polled_that_nobody_wants(scene: Scene) -> None:
    assert scene.polls == []
    scene.ear.want({"b"})
    scene.await_polls(1)
    assert [poll[0] for poll in scene.polls] == ["b"]
    assert scene.held.is_polled("b")
    assert not scene.held.is_polled("a")


def test_a_wanted_queue_counts_as_polled_before_its_thread_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the worker polls beside it, and one of the two polls receives again what the other one gave back."""
    scene = Scene()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: None)
        scene.ear.want({"a"})
        assert scene.held.is_polled("a")
        assert not scene.held.is_polled("b")
        scene.ear.want({"b"})
        assert not scene.held.is_polled("a"), "nobody wants it any more"
        scene.ear.want(frozenset())
        assert not scene.held.is_polled("b")


def test_an_arrival_withdraws_the_polls_that_have_not_begun(scene: Scene) -> None:
    scene.ear.want({"a"})
    scene.await_polls(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: None)
        scene.ear.want({"a", "b"})
        assert scene.held.is_polled("b")
        scene.answer("a", 1)
        scene.await_told()
    assert not scene.held.is_polled("b")
    scene.ear._threads["b"].start()


def test_what_a_poll_brings_is_held_and_told_of_once(scene: Scene) -> None:
    scene.ear.want({"a", "b"})
    scene.await_polls(2)
    scene.answer("a", 1, 2)
    scene.await_told()
    assert scene.taken("a") == ["r1", "r2"]
    scene.answer("b", 3)
    eventually(lambda: not scene.held.is_polled("b"))
    assert scene.times_told == 1
    scene.ear.want({"b"})
    scene.answer("b", 4)
    scene.await_told()
    assert [*scene.taken("b"), *scene.taken("b")] == ["r3", "r4"]


def test_an_empty_poll_is_followed_by_another(scene: Scene) -> None:
    scene.ear.want({"a"})
    scene.answer("a")
    scene.answer("a")
    scene.answer("a", 1)
    scene.await_told()
    assert len(scene.polls) == 3


def test_a_poll_asks_for_what_was_asked_last_and_for_one_at_first(scene: Scene) -> None:
    scene.ear.want({"a"})
    scene.await_polls(1)
    scene.held.expect("a", PollRequest(messages_max=50, lease_seconds=7.0))
    scene.answer("a")
    scene.await_polls(2)
    assert scene.polls[:2] == [("a", 1, LEASE_SECONDS, 0.1), ("a", 10, 7.0, 0.1)]


def test_row_76_what_a_poll_brings_when_it_is_wanted_no_more_goes_back_after_a_moment(scene: Scene) -> None:
    scene.ear.want({"a"})
    scene.await_polls(1)
    scene.ear.want(frozenset())
    scene.answer("a", 1)
    eventually(lambda: scene.held.overdue_in("a") is not None)
    assert scene.released == []
    scene.clock.advance(1.0)
    eventually(lambda: scene.released == ["r1"])
    assert scene.times_told == 0
    assert scene.taken("a") == []


def test_who_asks_within_that_moment_gets_it(scene: Scene) -> None:
    scene.ear.want({"a"})
    scene.await_polls(1)
    scene.ear.want(frozenset())
    scene.answer("a", 1)
    eventually(lambda: scene.held.overdue_in("a") is not None)
    assert scene.taken("a") == ["r1"]
    scene.clock.advance(60)
    scene.ear.want({"a"})
    scene.await_polls(2)
    assert scene.released == []


def test_row_74_closing_waits_for_polls_under_way_and_gives_back_what_they_bring(scene: Scene) -> None:
    scene.ear.want({"a"})
    scene.await_polls(1)
    closing = threading.Thread(target=scene.ear.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    scene.answer("a", 1)
    closing.join(DEADLINE_SECONDS)
    assert not closing.is_alive()
    assert scene.released == ["r1"]


def test_a_closed_ear_polls_no_more(scene: Scene) -> None:
    scene.ear.close()
    scene.ear.want({"a"})
    assert scene.polls == []


def test_after_a_failure_it_waits_and_polls_again(scene: Scene) -> None:
    scene.fault = TemporaryError("away")
    scene.ear.want({"a"})
    scene.await_polls(1)
    eventually(lambda: not scene.held.is_polled("a"))
    scene.ear.want(frozenset())
    scene.ear.want({"a"})
    assert not scene.held.is_polled("a"), "its thread waits, so whoever asks polls himself"
    scene.fault = None
    scene.clock.advance(10)
    scene.answer("a", 1)
    scene.await_told()


def test_a_poll_that_fails_after_its_queue_was_wanted_again_leaves_the_queue_to_the_worker() -> None:
    """Otherwise a queue counts as polled while its thread waits after the failure, and the worker receives nothing."""
    held, begun, fails = PolledMessages(FakeClock(), unclaimed_seconds=1.0), threading.Event(), threading.Event()

    def poll(*_: object) -> Sequence[SqsDelivery]:
        begun.set()
        assert fails.wait(DEADLINE_SECONDS)
        raise TemporaryError("away")

    ear = SqsArrivalListener(
        ("a", "b"),
        lambda: None,
        polled=held,
        poll=poll,
        release=lambda _: None,
        poll_seconds=0.1,
        clock=FakeClock(),
        random=lambda: 0.5,
    )
    ear.want({"a"})
    assert begun.wait(DEADLINE_SECONDS)
    ear.want(frozenset())
    ear.want({"a"})
    fails.set()
    eventually(lambda: not held.is_polled("a"))
    ear.close()


def test_no_fault_of_any_kind_ends_its_listening(scene: Scene) -> None:
    scene.fault = RuntimeError("what no library should raise")
    scene.ear.want({"a"})
    scene.await_polls(1)
    scene.fault = None
    scene.clock.advance(10)
    scene.answer("a", 1)
    scene.await_told()


# --- what is held


def catch(*numbers: int, lease_seconds: float = 60.0, full: bool = False, began_at: float = 0.0) -> PolledBatch:
    deliveries = [received(n, began_at=began_at) for n in numbers]
    return PolledBatch(deliveries=deliveries, lease_seconds=lease_seconds, was_full=full)


def held_with(*catches: PolledBatch) -> PolledMessages:
    held = PolledMessages(FakeClock(), unclaimed_seconds=1.0)
    for each in catches:
        held.poll_begins("q")
        held.poll_ends("q", each)
    return held


def test_never_more_is_taken_than_there_is_room_for() -> None:
    held = held_with(catch(1, 2, 3), catch(4))
    assert held.take("q", 0) is None
    taken = [held.take("q", 2) for _ in range(4)]
    assert [each and [delivery.receipt for delivery in each.deliveries] for each in taken] == [
        ["r1", "r2"],
        ["r3"],
        ["r4"],
        None,
    ]
    assert [each.was_full for each in taken if each is not None] == [True, False, False]


def test_short_leases_are_held_no_longer_than_a_quarter_of_them() -> None:
    assert held_with(catch(1)).overdue_in("q") == 1.0
    assert held_with(catch(1, lease_seconds=2.0)).overdue_in("q") == 0.5


@pytest.mark.parametrize("all", [True, False])
def test_what_is_past_its_lease_is_not_taken_from_whoever_has_it_now(all: bool) -> None:
    clock = FakeClock()
    held = PolledMessages(clock, unclaimed_seconds=1.0)
    for n, lease_seconds in ((1, 10.0), (2, 30.0)):
        held.poll_begins("q")
        held.poll_ends("q", catch(n, lease_seconds=lease_seconds, began_at=clock.monotonic()))
    clock.advance(10.0)
    assert [delivery.receipt for delivery in held.take_overdue("q", all=all)] == ["r2"]
    assert held.overdue_in("q") is None


def test_an_emptied_queue_holds_nothing() -> None:
    held = held_with(catch(1))
    held.drop("q")
    assert held.take("q", 1) is None
    assert held.overdue_in("q") is None


def test_a_wait_ends_when_the_poll_does() -> None:
    held = PolledMessages(FakeClock(), unclaimed_seconds=1.0)
    held.poll_begins("q")
    waiting = threading.Thread(target=held.wait, args=("q", DEADLINE_SECONDS))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    held.poll_ends("q", None)
    waiting.join(DEADLINE_SECONDS / 2)
    assert not waiting.is_alive()
