"""A worker's regular reconcile: when it is due, who does it, and how it ends."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.app.jobs.reconcile import ReconcileDuty
from penstock.app.reconcile_target import ReconcileTarget
from penstock.app.sources import SourceLocation
from penstock.brokers.memory.broker import MemoryBroker
from penstock.errors import TemporaryError
from penstock.events import Event, UpkeepFailed
from penstock.ledger import Ledger
from penstock.ledger.pipelines import ReconcileResult
from penstock.ledger.records import WorkBegun
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.storage.aws import Aws
from penstock.worker.shutdown import StopSignal

PATIENCE_SECONDS = 60.0
SOON_SECONDS = 0.2  # so often it is due, where a test wants it again
NEVER_AGAIN_SECONDS = 1_000.0
HANDLER = "penstock-reconcile"


def wait_until(there: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while not there():
        assert time.monotonic() < give_up_at, "it did not come"
        pause.wait(0.01)


@dataclass
class Scene:
    """A ledger and a queue, and workers that reconcile one pipeline."""

    ledger: Ledger
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    stop: StopSignal = field(default_factory=StopSignal)
    heard: list[Event] = field(default_factory=list)
    duties: list[ReconcileDuty] = field(default_factory=list)
    looks: int = 0  # of all workers, whether something is due

    @property
    def target(self) -> ReconcileTarget:
        source = SourceLocation(address="/landing", aws=Aws())
        return ReconcileTarget(
            pipeline="clicks", source=source, own=(), queue="events", ledger=self.ledger, broker=self.broker
        )

    def begin(
        self,
        work: Callable[[ReconcileTarget, StopSignal], object],
        *,
        worker: str = "w1",
        every_seconds: float = NEVER_AGAIN_SECONDS,
        lease_seconds: float = 60.0,
    ) -> ReconcileDuty:
        duty = ReconcileDuty(
            [self.target],
            work,
            worker=worker,
            every_seconds=every_seconds,
            lease_seconds=lease_seconds,
            stop=self.stop,
            clock=SystemClock(),
            random=self._look,
            tell=self.heard.append,
        )
        self.duties.append(duty)
        duty.start()
        return duty

    def _look(self) -> float:
        """A worker asks for chance between two looks."""
        self.looks += 1
        return 0.0

    def after_looks(self, looks: int) -> None:
        """Wait until the workers have looked so often again."""
        wanted = self.looks + looks
        wait_until(lambda: self.looks >= wanted)

    def record(self, *, sent: int = 0) -> None:
        self.ledger.record_reconciliation(
            ReconcileResult(pipeline="clicks", as_of=1.0, source="s", listed=1, missing=sent, sent=sent, seconds=0.1)
        )

    def claim_is_free(self) -> bool:
        standing = self.ledger.begin_work(HANDLER, "clicks", attempt_id="t", worker="t", lease_seconds=60.0)
        if isinstance(standing, WorkBegun):
            self.ledger.end_work("t", outcome="given_back", reason="a look")
        return isinstance(standing, WorkBegun)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with closing(Ledger.open(f"sqlite:///{tmp_path}/ledger.db")) as ledger:
        made = Scene(ledger)
        yield made
        for duty in made.duties:
            duty.end()


class Work:
    """Counts, and puts on record what a reconcile does."""

    def __init__(self, scene: Scene) -> None:
        self.count = 0
        self._scene = scene

    def __call__(self, _target: ReconcileTarget, _stop: StopSignal) -> None:
        self.count += 1
        self._scene.record()


def test_what_was_never_reconciled_is_due_and_then_no_more(scene: Scene) -> None:
    work = Work(scene)
    scene.begin(work)
    wait_until(lambda: work.count == 1 and scene.claim_is_free())
    late = Work(scene)
    scene.begin(late, worker="w2").end()  # it looks at once, and sees the record
    assert (work.count, late.count) == (1, 0)


def test_it_is_due_again_after_the_period(scene: Scene) -> None:
    work = Work(scene)
    scene.begin(work, every_seconds=SOON_SECONDS)
    wait_until(lambda: work.count >= 3)
    assert scene.heard == []


def test_one_worker_at_a_time(scene: Scene) -> None:
    at_once, most, go_on = [0], [0], threading.Event()

    def work(_target: ReconcileTarget, _stop: StopSignal) -> None:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        go_on.wait(PATIENCE_SECONDS)
        at_once[0] -= 1

    duties = [scene.begin(work, worker=f"w{number}", every_seconds=SOON_SECONDS) for number in range(3)]
    wait_until(lambda: at_once[0] == 1)
    assert not scene.claim_is_free()
    scene.after_looks(10)
    assert most == [1]
    go_on.set()
    for duty in duties:
        duty.end()
    assert most == [1]


def test_the_claim_is_kept_longer_than_its_lease(scene: Scene) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(_target: ReconcileTarget, _stop: StopSignal) -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)
        scene.record()

    scene.begin(work, lease_seconds=0.6)
    assert begun.wait(PATIENCE_SECONDS)
    wait_until(lambda: _held_seconds(scene) > 3 * 0.6)
    assert not scene.claim_is_free()
    go_on.set()
    wait_until(scene.claim_is_free)


def _held_seconds(scene: Scene) -> float:
    claim = scene.ledger.work(HANDLER, "clicks")
    assert claim is not None
    assert claim.lease_until is not None
    return claim.lease_until - claim.started_at


def test_a_failure_is_told_and_tried_again(scene: Scene) -> None:
    tries: list[int] = []

    def work(_target: ReconcileTarget, _stop: StopSignal) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise TemporaryError("S3 is away")
        scene.record()

    scene.begin(work, every_seconds=SOON_SECONDS)
    wait_until(lambda: len(tries) >= 2)
    assert scene.heard == [UpkeepFailed(handler="reconcile clicks", error="S3 is away")]


def test_a_stop_in_the_middle_ends_it_soon_and_frees_the_claim(scene: Scene) -> None:
    begun, told = threading.Event(), threading.Event()

    def work(_target: ReconcileTarget, stop: StopSignal) -> None:
        begun.set()
        with stop.watched_by(told):
            assert told.wait(PATIENCE_SECONDS)

    duty = scene.begin(work)
    assert begun.wait(PATIENCE_SECONDS)
    scene.stop.request()
    duty.end()
    assert told.is_set()
    wait_until(scene.claim_is_free)


def test_what_fails_after_the_stop_was_asked_for_is_no_failure(scene: Scene) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(_target: ReconcileTarget, stop: StopSignal) -> None:
        told = threading.Event()
        begun.set()
        with stop.watched_by(told):
            assert told.wait(PATIENCE_SECONDS)
        ended.set()
        raise ConnectionRefusedError("Spark's JVM is gone")

    duty = scene.begin(work)
    assert begun.wait(PATIENCE_SECONDS)
    scene.stop.request()
    duty.end()
    assert ended.is_set()
    assert scene.heard == []
    assert scene.claim_is_free()


def test_work_that_does_not_hear_of_the_stop_does_not_hold_it_up(scene: Scene) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work(_target: ReconcileTarget, _stop: StopSignal) -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)
        ended.set()

    duty = scene.begin(work)
    assert begun.wait(PATIENCE_SECONDS)
    duty.end()
    assert not ended.is_set(), "it waited for the work"
    go_on.set()


class ForgetfulLedger:
    """A ledger that cannot extend claims: it is away for a moment each time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def extend_work(self, *_: object, **__: object) -> bool:
        raise TemporaryError("the ledger cannot be reached")


def test_work_whose_claim_cannot_be_extended_ends_before_another_begins(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, most, begun, ended = [0], [0], [0], [0]

    def work(_target: ReconcileTarget, stop: StopSignal) -> None:
        begun[0] += 1
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        told = threading.Event()
        with stop.watched_by(told):
            assert told.wait(PATIENCE_SECONDS), "it was not told to stop"
        at_once[0] -= 1
        ended[0] += 1

    ledger = ForgetfulLedger(scene.ledger)
    monkeypatch.setattr(Scene, "target", property(lambda _: _target_with(ledger)))
    scene.begin(work, every_seconds=SOON_SECONDS, lease_seconds=0.1)
    wait_until(lambda: ended[0] >= 3)
    assert most == [1]
    assert scene.heard[0] == UpkeepFailed(handler="reconcile clicks", error="the ledger cannot be reached")


def test_work_that_ignores_the_stop_keeps_its_claim_and_no_second_one_begins(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.app.jobs.reconcile.END_SECONDS", 0.01)
    begun, go_on = [0], threading.Event()

    def work(_target: ReconcileTarget, _stop: StopSignal) -> None:
        begun[0] += 1
        go_on.wait(PATIENCE_SECONDS)

    ledger = ForgetfulLedger(scene.ledger)
    monkeypatch.setattr(Scene, "target", property(lambda _: _target_with(ledger)))
    scene.begin(work, every_seconds=SOON_SECONDS, lease_seconds=0.1)
    wait_until(lambda: bool(scene.heard))
    scene.after_looks(10)
    assert begun == [1]
    go_on.set()
    wait_until(lambda: begun[0] >= 2)


def _target_with(ledger: Any) -> ReconcileTarget:
    source = SourceLocation(address="/landing", aws=Aws())
    return ReconcileTarget(
        pipeline="clicks", source=source, own=(), queue="events", ledger=ledger, broker=MemoryBroker()
    )


def test_it_waits_while_what_the_last_one_sent_is_in_the_queue(scene: Scene) -> None:
    scene.broker.send("events", [Outgoing(body=b"{}")])
    scene.record(sent=1)
    work = Work(scene)
    scene.begin(work, every_seconds=2.0)
    wait_until(lambda: (scene.ledger.seconds_since_reconciliation("clicks") or 0.0) > 2.0)
    scene.after_looks(2)  # it is due, and within the patience
    assert work.count == 0
    scene.broker.purge("events")
    wait_until(lambda: work.count >= 1)
