"""Settlements that another thread collects, such as the one that stops the worker, are applied at once."""

import threading
from typing import TYPE_CHECKING

import pytest
from tests.unit.worker.conftest import DEADLINE_SECONDS, eventually

from penstock.worker.executor import Executor
from penstock.worker.settler import Settler

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Life


def test_a_run_that_ends_while_another_thread_collects_is_settled_without_a_rest(
    life: "Life", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The I/O thread is woken by the run, finds nothing to collect, and rests; then the other thread submits."""
    executors: list[Executor] = []
    ended, collecting, io_rested = threading.Event(), threading.Event(), threading.Event()
    begin, collect, submit = Executor.begin, Executor.collect, Settler.submit
    other = threading.current_thread()

    def begins(self: Executor, batches: object) -> None:
        executors[:] = [self]
        begin(self, batches)  # type: ignore[arg-type]

    def collects(self: Executor) -> None:
        if threading.current_thread() is not other and ended.is_set():
            assert collecting.wait(DEADLINE_SECONDS)  # the other thread is first
        collect(self)

    def submits(self: Settler, settlements: object) -> None:
        if threading.current_thread() is other:
            collecting.set()
            assert not io_rested.wait(0.5)
        submit(self, settlements)  # type: ignore[arg-type]

    monkeypatch.setattr(Executor, "begin", begins)
    monkeypatch.setattr(Executor, "collect", collects)
    monkeypatch.setattr(Settler, "submit", submits)
    life.handler.blocking = True
    life.broker.put(0)
    life.start(batch_messages_max=1, in_flight_max=1, idle_floor_seconds=50.0, idle_ceiling_seconds=60.0)
    run = life.running()
    eventually(lambda: executors)
    ended.set()
    run.go_on.set()
    eventually(lambda: executors[0]._ended_runs)
    executors[0].unsettled()  # as the lifecycle does at the end of a stop's time
    seen = threading.Event()
    for _ in range(40):
        if life.broker.acked() or seen.wait(0.05):
            break
    acked = life.broker.acked()
    life.stop.request()
    life.end()
    assert acked == ["m0"]
