"""Detection of executions that exceeded their timeout: each counts its own time and is checked when it may be over."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.messaging.handler import ExecutionPlace
from penstock.testing import FakeClock
from penstock.worker.running_batch import ExecutionTimeouts

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Life

Eventually = Callable[..., None]


class FakeBatch:
    """A stand-in for a `penstock.worker.running_batch.RunningBatch` and its execution."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.called_at: float | None = None
        self.ended = False
        self.execution = self
        self.checks = 0

    def left_seconds(self, timeout_seconds: float) -> float:
        self.checks += 1
        return timeout_seconds if self.called_at is None else self.called_at + timeout_seconds - self.clock.monotonic()


def scene(count: int) -> tuple[FakeClock, Any, list[Any]]:
    clock = FakeClock()
    timeouts = ExecutionTimeouts(10.0, clock=clock)
    batches = [FakeBatch(clock) for _ in range(count)]
    timeouts.add(batches)  # type: ignore[arg-type] # a stand-in
    return clock, timeouts, batches


def test_the_timeout_begins_with_the_call() -> None:
    clock, timeouts, (batch,) = scene(1)
    clock.advance(10)
    assert timeouts.take_overdue() == [], "it still waits for the ledger"
    clock.advance(4)
    batch.called_at = clock.monotonic()
    clock.advance(6)
    assert timeouts.take_overdue() == []
    assert timeouts.next_at() == clock.monotonic() + 4
    clock.advance(4)
    assert timeouts.take_overdue() == [batch]
    assert timeouts.next_at() is None


def test_each_execution_is_checked_at_its_own_time() -> None:
    clock, timeouts, batches = scene(3)
    for number, batch in enumerate(reversed(batches)):  # the last is called first
        batch.called_at = clock.monotonic() + 3 * number
    found = []
    while (at := timeouts.next_at()) is not None:
        clock.advance(at - clock.monotonic())
        found += timeouts.take_overdue()
    assert found == list(reversed(batches))
    assert sum(batch.checks for batch in batches) <= 6, "none is checked repeatedly"


def test_ended_executions_are_neither_checked_nor_awaited() -> None:
    clock, timeouts, (first, second) = scene(2)
    first.ended = True
    timeouts.remove([second])
    assert timeouts.next_at() is None
    clock.advance(20)
    assert timeouts.take_overdue() == []
    assert first.checks == second.checks == 0


def test_without_a_timeout_nothing_is_kept() -> None:
    clock = FakeClock()
    timeouts = ExecutionTimeouts(None, clock=clock)
    timeouts.add([FakeBatch(clock)])  # type: ignore[list-item] # a stand-in
    assert timeouts.next_at() is None
    assert timeouts.take_overdue() == ()


def test_work_that_waits_for_the_ledger_is_not_timed_out(life: "Life", eventually: Eventually) -> None:
    ledger = {"blocking": True, "timeout_seconds": 0.001, "waits_for_ledger": True}
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler=ledger)
    other = life.serve(ExecutionPlace.POOL, queue="other", handler={"blocking": True, "timeout_seconds": 0.001})
    life.broker.put(0, queue="mail")
    life.start()
    waiting = life.running(0, mail)
    life.broker.put(1, queue="other")
    assert life.running(0, other).interrupted.wait(60.0), "the timeout is over for both"
    assert not waiting.interrupted.is_set()
    waiting.let_go()
    eventually(lambda: life.broker.acked() == ["m0"])
    life.stop.request()
    assert life.end() == "drained"
