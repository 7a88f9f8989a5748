"""Outages of the ledger: reported once at each end, and checked with growing pauses."""

import threading
import time
from dataclasses import replace

import pytest

from penstock.errors import PartAway, TemporaryError
from penstock.events import Bus, Event, LedgerAvailable, LedgerUnavailable
from penstock.handlers.outage import (
    CHECK_SECONDS,
    CLAIMS_PAUSE_SECONDS_MAX,
    COUNTED_RELEASE_SECONDS,
    LEDGER,
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    PING_SECONDS_MAX,
    OutageWatch,
)
from penstock.messaging.clock import SystemClock
from penstock.testing import FakeClock


class Scene:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.clock = FakeClock()
        self.outage = OutageWatch(bus=Bus(self.events.append), clock=self.clock)

    def claim_fails(self, error: str = "unavailable") -> None:
        with pytest.raises(TemporaryError), self.outage.watch_request():
            raise TemporaryError(error)

    def claim_succeeds(self) -> None:
        with self.outage.watch_request():
            pass
        self.outage.record_success()


def test_an_outage_is_reported_once_at_its_start_and_once_at_its_end() -> None:
    scene = Scene()
    scene.claim_succeeds()
    assert scene.events == []
    for error in ("refused", "refused again"):
        scene.claim_fails(error)
        scene.clock.advance(3.0)
    assert scene.events == [LedgerUnavailable(error="refused")]
    scene.claim_succeeds()
    scene.claim_succeeds()
    assert scene.events[1:] == [LedgerAvailable(outage_seconds=6.0)]
    scene.claim_fails("refused")
    assert scene.events[2:] == [LedgerUnavailable(error="refused")]


def test_another_failure_does_not_end_an_outage() -> None:
    scene = Scene()
    scene.claim_fails()
    with pytest.raises(ValueError, match="defect"), scene.outage.watch_request():
        raise ValueError("defect")
    assert scene.events == [LedgerUnavailable(error="unavailable")]


def test_pauses_grow_with_the_outage_up_to_the_maximum() -> None:
    scene, pauses = Scene(), list[float]()
    for _ in range(6):
        scene.claim_fails()
        pauses.append(scene.outage.pause_seconds(lambda: 0.999))
        scene.clock.advance(2 * pauses[-1])
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(PAUSE_SECONDS_MIN, rel=0.01)
    assert pauses[-1] == pytest.approx(PAUSE_SECONDS_MAX, rel=0.01)
    assert scene.outage.pause_seconds(lambda: 0.0) == PAUSE_SECONDS_MAX / 2
    scene.claim_succeeds()
    scene.claim_fails()
    assert scene.outage.pause_seconds(lambda: 0.999) == pytest.approx(PAUSE_SECONDS_MIN, rel=0.01)


class WatchedScene(Scene):
    """A ledger whose ping fails as the test says, and a queue that needs the ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: Exception | None = None
        self.outage = OutageWatch(bus=Bus(self.events.append), clock=self.clock, random=lambda: 0.999, ping=self.ping)
        self.gate = self.outage.gate("mail")

    def ping(self) -> None:
        if self.fault is not None:
            raise self.fault

    def check(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.outage.check(self.ping)


def test_a_queue_is_paused_until_a_ping_of_the_ledger_succeeds() -> None:
    scene = WatchedScene()
    assert scene.gate.admits() is None
    assert scene.gate.opens_at() is None
    scene.claim_fails("refused")
    assert scene.events == [LedgerUnavailable(error="refused", queues=("mail",))]
    for _ in range(5):
        assert scene.gate.admits() == 0
        assert scene.outage.refusal == "refused"
        scene.check(TemporaryError("still unavailable"))
    assert len(scene.events) == 1
    scene.check()
    assert scene.gate.admits() is None
    assert scene.outage.refusal is None
    assert isinstance(scene.events[-1], LedgerAvailable)


def test_a_failed_ping_starts_an_outage_without_a_message() -> None:
    scene = WatchedScene()
    scene.check(TemporaryError("refused"))
    assert scene.events == [LedgerUnavailable(error="refused", queues=("mail",))]
    assert scene.gate.admits() == 0


def test_a_defect_of_the_ping_is_not_an_outage() -> None:
    scene = WatchedScene()
    scene.check(ValueError("a table that is not there"))
    assert scene.events == []


def test_an_unavailable_mount_pauses_nothing() -> None:
    """Otherwise each message about an object in an unavailable mount would pause the whole queue, longer each time."""
    scene = WatchedScene()
    for _ in range(3):
        with pytest.raises(PartAway), scene.outage.watch_request():
            raise PartAway("nothing is mounted there any more")
    assert scene.gate.admits() is None
    assert scene.events == []


def test_pauses_between_pings_grow_up_to_the_maximum() -> None:
    scene, rests = WatchedScene(), list[float]()
    scene.claim_fails()
    for _ in range(8):
        rests.append(scene.outage._rest_seconds())
        scene.clock.advance(rests[-1])
        scene.check(TemporaryError("unavailable"))
    assert rests == sorted(rests)
    assert rests[0] == pytest.approx(PAUSE_SECONDS_MIN, rel=0.01)
    assert rests[-1] == pytest.approx(PAUSE_SECONDS_MAX, rel=0.01)


def test_a_ledger_that_answers_pings_but_no_claims_is_tried_with_one_message_at_a_time() -> None:
    """Each try costs a receive: with all of them at once, an outage would use up the receives of every message."""
    scene, rests = WatchedScene(), list[float]()
    for cycle in range(8):
        scene.claim_fails("the disk is full")
        assert scene.gate.admits() == 0
        rests.append(scene.outage._rest_seconds())
        scene.clock.advance(rests[-1])
        scene.check()
        assert scene.gate.admits() == (None if cycle == 0 else 1)
        assert (scene.gate.opens_at() is None) == (cycle == 0)
    assert rests == sorted(rests)
    assert rests[-1] == pytest.approx(CLAIMS_PAUSE_SECONDS_MAX, rel=0.01)
    with scene.outage.watch_request():
        assert scene.gate.admits() == 0, "one message is already tried"
    assert scene.gate.admits() == 1, "an answer does not prove that its disk has space"
    scene.outage.record_success()
    assert scene.gate.admits() is None


def test_a_ledger_that_does_not_answer_in_time_is_unavailable_until_it_does() -> None:
    scene = WatchedScene()
    hung, go_on = threading.Event(), threading.Event()

    def ping() -> None:
        hung.set()
        assert go_on.wait(60.0)

    checking = threading.Thread(target=scene.outage.check, args=(ping,))
    checking.start()
    assert hung.wait(60.0)
    while not scene.events:
        scene.outage._clock.advance(PING_SECONDS_MAX)  # type: ignore[attr-defined] # the fake one
    assert isinstance(scene.events[0], LedgerUnavailable)
    assert scene.gate.admits() == 0
    go_on.set()
    checking.join(60.0)
    assert isinstance(scene.events[-1], LedgerAvailable)


def test_if_receives_count_a_message_is_delayed_until_all_workers_know() -> None:
    scene = Scene()
    counted = OutageWatch(bus=Bus(), clock=scene.clock, releases_uncounted=False)
    assert counted.pause_seconds(lambda: 0.0) == COUNTED_RELEASE_SECONDS / 2
    assert COUNTED_RELEASE_SECONDS / 2 >= CHECK_SECONDS + PING_SECONDS_MAX


def test_an_outage_ends_although_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = WatchedScene()
    scene.check(TemporaryError("unavailable"))
    assert scene.gate.admits() == 0

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        scene.check()
    assert scene.gate.admits() is None
    assert [type(event) for event in scene.events] == [LedgerUnavailable, LedgerAvailable]


def test_a_defect_in_the_watch_thread_is_raised_in_the_worker() -> None:
    scene = WatchedScene()
    defect = ValueError("a listener that raises")

    def raises(event: Event) -> None:
        raise defect

    quick = replace(LEDGER, patience=0.001)
    outage = OutageWatch(bus=Bus(raises), clock=SystemClock(), random=lambda: 0.0, ping=scene.ping, service=quick)
    scene.fault = TemporaryError("unavailable")
    with outage.watching(), pytest.raises(ValueError, match="a listener that raises"):
        poll_until_it_raises(outage)


def poll_until_it_raises(outage: OutageWatch) -> None:
    give_up = time.monotonic() + 60.0
    while time.monotonic() < give_up:
        outage.admits()
