"""A machine that is briefly out of threads: the work is done later, and no attempt is counted."""

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from penstock.events import ExecutionFailed, JobFailed
from penstock.messaging.handler import ExecutionPlace

if TYPE_CHECKING:
    from tests.unit.worker.conftest import Life

Eventually = Callable[..., None]


class Machine:
    """Refuses to start the threads with these names, as often as the test sets."""

    def __init__(self) -> None:
        self.refuses: dict[str, int] = {}  # remaining refusals, by the prefix of the name
        self._start = threading.Thread.start

    def start(self, thread: threading.Thread) -> None:
        for name in self.refuses:
            if thread.name.startswith(name) and self.refuses[name] > 0:
                self.refuses[name] -= 1
                raise RuntimeError("can't start new thread")
        self._start(thread)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine()
    monkeypatch.setattr(threading.Thread, "start", lambda thread: machine.start(thread))
    yield machine
    assert not any(machine.refuses.values()), "the test did not meet all refusals"


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (ExecutionPlace.THREAD, "penstock-run"),
        (ExecutionPlace.POOL, "penstock-pool"),
        (ExecutionPlace.LOOP, "penstock-loop"),
    ],
)
def test_work_without_a_thread_is_released_uncounted_and_later_work_runs(
    life: "Life", machine: Machine, eventually: Eventually, place: ExecutionPlace, name: str
) -> None:
    life.serve(place, queue="mail")
    machine.refuses[name] = 1
    life.broker.put(0, queue="mail")
    life.start()
    eventually(lambda: life.emitted(ExecutionFailed), "it was released")
    assert "no more threads" in life.emitted(ExecutionFailed)[0].error
    [release] = life.broker.released().values()
    assert release.uncounted
    life.broker.put(1, queue="mail")
    eventually(lambda: life.broker.acked() == ["m1"], "the next one is done")
    life.stop.request()
    assert life.end() == "drained"
    assert life.error is None
    assert [len(one.deliveries) for one in life.handlers()[0].executions if one.started.is_set()] == [1]


def test_an_upkeep_without_a_thread_is_retried(life: "Life", machine: Machine, eventually: Eventually) -> None:
    machine.refuses["penstock-upkeep"] = 2
    life.start(upkeep_seconds=0.01)
    eventually(lambda: life.handler.upkeeps >= 1)
    assert len(life.emitted(JobFailed)) == 2
    life.stop.request()
    assert life.end() == "drained"
    assert life.error is None


def test_a_timeout_needs_no_thread_to_be_recorded(life: "Life", machine: Machine, eventually: Eventually) -> None:
    handler = life.serve(ExecutionPlace.POOL, queue="slow", handler={"blocking": True, "timeout_seconds": 0.01})
    machine.refuses["penstock-timeout"] = 1
    life.broker.put(0, queue="slow")
    life.start()
    running = life.running(handler=handler)
    eventually(lambda: not life.broker.leased, "its end is recorded")
    running.let_go()
    life.stop.request()
    life.end()
    assert life.error is None


def test_claims_are_freed_at_a_stop_without_a_new_thread(life: "Life", machine: Machine) -> None:
    handler = life.serve(ExecutionPlace.POOL, queue="slow", handler={"blocking": True})
    machine.refuses["penstock-release-claims"] = 1
    life.broker.put(0, queue="slow")
    life.start()
    running = life.running(handler=handler)
    life.stop.request()
    life.stop.request()
    life.end()
    assert "m0" in life.broker.released()
    running.let_go()
