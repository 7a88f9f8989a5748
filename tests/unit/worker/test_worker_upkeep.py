"""Background jobs of handlers: each in its own thread, so that one that hangs delays nothing else."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from penstock.events import JobFailed, WorkerStopped
from penstock.messaging.handler import ExecutionPlace

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Life

DEADLINE_SECONDS = 60.0

Eventually = Callable[..., None]


class Hang:
    """Work that hangs until the test ends it."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.over.wait(DEADLINE_SECONDS)


@pytest.fixture
def hang() -> Iterator[Hang]:
    hang = Hang()
    yield hang
    hang.over.set()


def test_an_upkeep_that_hangs_delays_neither_receiving_nor_settling_nor_a_stop(
    life: "Life", eventually: Eventually, hang: Hang
) -> None:
    clicks = life.serve(ExecutionPlace.THREAD, queue="clicks")
    clicks.upkeep = hang  # type: ignore[method-assign] # a double
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={"blocking": True})
    life.broker.put(0, queue="mail")
    life.start(upkeep_seconds=0.001, flush_seconds=0.6)
    execution = life.running(0, mail)
    assert hang.begun.wait(DEADLINE_SECONDS)
    execution.let_go()
    eventually(lambda: life.broker.acked() == ["m0"], "finished work is acked")
    mail.blocking = False
    life.broker.put(1, queue="mail")
    life.broker.put(2, queue="clicks")
    eventually(lambda: set(life.broker.acked()) == {"m0", "m1", "m2"}, "and its own queue is served")
    life.stop.request()
    assert life.end() == "drained"
    assert life.conclusion is not None
    assert life.conclusion.threads_left == ("penstock-upkeep-clicks-upkeep",)
    assert not life.broker.leased


def test_work_that_ends_during_a_stop_is_acked_even_if_an_upkeep_hangs(life: "Life", hang: Hang) -> None:
    life.serve(ExecutionPlace.THREAD, queue="clicks").upkeep = hang  # type: ignore[method-assign] # a double
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={"blocking": True})
    life.broker.put(0, queue="mail")
    life.start(flush_seconds=0.6)
    execution = life.running(0, mail)
    assert hang.begun.wait(DEADLINE_SECONDS)
    life.stop.request()
    execution.let_go()
    assert life.end() == "drained"
    assert life.broker.acked() == ["m0"]
    assert life.emitted(WorkerStopped) == [WorkerStopped(outcome="drained", released=())]


def test_a_job_that_hangs_delays_no_other_job_of_its_handler(life: "Life", eventually: Eventually, hang: Hang) -> None:
    runs: list[str] = []

    class Jobs:
        def jobs(self) -> Mapping[str, Callable[[], object]]:
            return {"rows": hang, "quarantine": lambda: runs.append("quarantine")}

    clicks = life.serve(ExecutionPlace.THREAD, queue="clicks")
    clicks.jobs = Jobs().jobs  # type: ignore[method-assign] # a double
    life.start(upkeep_seconds=0.001, flush_seconds=0.6)
    assert hang.begun.wait(DEADLINE_SECONDS)
    eventually(lambda: len(runs) > 3)
    life.stop.request()
    assert life.end() == "drained"


def test_a_job_never_runs_twice_at_once(life: "Life", eventually: Eventually, hang: Hang) -> None:
    calls: list[int] = []

    def upkeep() -> None:
        calls.append(1)
        hang()

    life.handler.upkeep = upkeep  # type: ignore[method-assign] # a double
    life.start(upkeep_seconds=0.001, flush_seconds=0.6)
    eventually(lambda: len(life.broker.receive_sizes) > 50)
    assert len(calls) == 1
    life.stop.request()
    assert life.end() == "drained"


def test_a_failure_of_an_upkeep_after_the_end_is_not_reported(life: "Life", eventually: Eventually, hang: Hang) -> None:
    ended = threading.Event()

    def upkeep() -> None:
        try:
            hang()
            raise ValueError("its ledger was closed")
        finally:
            ended.set()

    life.handler.upkeep = upkeep  # type: ignore[method-assign] # a double
    life.start(flush_seconds=0.6)
    assert hang.begun.wait(DEADLINE_SECONDS)
    life.stop.request()
    assert life.end() == "drained"
    hang.over.set()
    assert ended.wait(DEADLINE_SECONDS)
    eventually(lambda: not any(thread.name.startswith("penstock-upkeep") for thread in threading.enumerate()))
    assert life.emitted(JobFailed) == []


def test_a_last_upkeep_that_hangs_ends_with_a_stop(life: "Life", eventually: Eventually, hang: Hang) -> None:
    runs: list[int] = []

    def upkeep() -> None:
        runs.append(1)
        if len(runs) > 1:
            hang()

    life.handler.upkeep = upkeep  # type: ignore[method-assign] # a double
    life.until = lambda: bool(runs)
    life.start(upkeep_seconds=1_000.0, flush_seconds=0.6)
    assert hang.begun.wait(DEADLINE_SECONDS)
    life.stop.request()
    life.stop.request()
    assert life.end() == "drained"


def test_a_timeout_whose_recording_hangs_delays_no_other_queue(
    life: "Life", eventually: Eventually, hang: Hang
) -> None:
    mail = life.serve(ExecutionPlace.POOL, queue="mail", handler={"blocking": True, "timeout_seconds": 0.3})
    life.serve(ExecutionPlace.POOL, queue="other")
    life.broker.put(0, queue="mail")
    life.start(lease_seconds=0.5, heartbeat_seconds=0.01)
    execution = life.running(0, mail)

    def time_out() -> Mapping[str, object]:
        hang()
        return {}

    execution.time_out = time_out  # type: ignore[assignment,method-assign] # a double
    assert hang.begun.wait(DEADLINE_SECONDS)
    life.broker.put(1, 2, queue="other")
    eventually(lambda: set(life.broker.acked()) == {"m1", "m2"})
    before = len(life.broker.extensions)
    eventually(lambda: len(life.broker.extensions) > before, "and its lease is kept meanwhile")
    hang.over.set()
    life.stop.request()
    assert life.end() == "drained"
