"""The thread pool: as many threads as blocking work needs, up to its limit."""

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

import pytest

from penstock.errors import TemporaryError
from penstock.worker.pools import ThreadPool

if TYPE_CHECKING:
    from penstock.worker.running_batch import RunningBatch

DEADLINE_SECONDS = 60.0
Eventually = Callable[..., None]


class Runs:
    """Flies numbers in place of flights: the pool never looks at them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun: list[int] = []
        self.threads: set[str] = set()
        self.go_on = threading.Event()

    def blocking(self, flight: "RunningBatch") -> None:
        self.short(flight)
        assert self.go_on.wait(DEADLINE_SECONDS)

    def short(self, flight: "RunningBatch") -> None:
        with self.lock:
            self.begun.append(cast("int", flight))
            self.threads.add(threading.current_thread().name)


def numbers(*some: int) -> "list[RunningBatch]":
    return cast("list[RunningBatch]", list(some))


@pytest.fixture
def runs() -> Iterator[Runs]:
    runs = Runs()
    yield runs
    runs.go_on.set()


def alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-pool")]


def test_work_that_blocks_has_a_thread_each_up_to_the_bound(runs: Runs, eventually: Eventually) -> None:
    pool = ThreadPool(threads_max=5)
    pool.start(runs.blocking, numbers(*range(8)))
    eventually(lambda: len(runs.begun) == 5)
    assert len(runs.threads) == 5
    runs.go_on.set()
    eventually(lambda: len(runs.begun) == 8)
    assert len(runs.threads) == 5
    assert sorted(runs.begun) == list(range(8))
    pool.close()
    eventually(lambda: not alive())


def test_a_run_that_blocks_keeps_no_other_from_beginning(runs: Runs, eventually: Eventually) -> None:
    """Whoever takes work calls the next thread before he begins."""
    pool = ThreadPool(threads_max=2)
    pool.start(runs.blocking, numbers(0))
    eventually(lambda: runs.begun == [0])
    for number in range(1, 50):
        pool.start(runs.short, numbers(number))
        eventually(lambda: number in runs.begun)  # noqa: B023 # awaited at once
    runs.go_on.set()
    pool.close()
    eventually(lambda: not alive())


def test_groups_of_short_runs_are_all_done_again_and_again(runs: Runs, eventually: Eventually) -> None:
    """A call that is lost between a thread's last look and its sleep would leave work undone for ever."""
    pool = ThreadPool(threads_max=8)
    for group in range(200):
        pool.start(runs.short, numbers(*range(group * 20, group * 20 + 20)))
        if group % 5 == 0:
            eventually(lambda: len(runs.begun) == group * 20 + 20)  # noqa: B023 # awaited at once
    eventually(lambda: len(runs.begun) == 4_000)
    pool.close()
    eventually(lambda: not alive())


def test_closing_lets_waiting_runs_be_done_first(runs: Runs, eventually: Eventually) -> None:
    pool = ThreadPool(threads_max=1)
    pool.start(runs.blocking, numbers(0))
    eventually(lambda: runs.begun == [0])
    pool.start(runs.short, numbers(1, 2))
    pool.close()
    runs.go_on.set()
    eventually(lambda: len(runs.begun) == 3)
    assert runs.begun == [0, 1, 2], "one thread takes first what came first"
    eventually(lambda: not alive())


def test_without_more_threads_those_there_are_do_the_work(
    runs: Runs, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ThreadPool(threads_max=5)
    pool.start(runs.short, numbers(0))
    eventually(lambda: runs.begun == [0])

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool.start(runs.short, numbers(*range(1, 10)))
    pool.start(runs.short, numbers(*range(10, 20)))
    eventually(lambda: len(runs.begun) == 20)
    pool.close()
    eventually(lambda: not alive())


def test_without_any_thread_whoever_starts_the_work_hears_of_it(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(TemporaryError):
        ThreadPool(threads_max=5).start(runs.short, numbers(0))


def test_who_makes_a_thread_holds_no_flight_meanwhile(
    runs: Runs, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a while, and what came first would begin last."""
    start = threading.Thread.start

    def slowly(thread: threading.Thread) -> None:
        start(thread)
        eventually(lambda: len(runs.begun) == 3, "all begin while somebody waits for the new thread")

    monkeypatch.setattr(threading.Thread, "start", slowly)
    pool = ThreadPool(threads_max=50)
    pool.start(runs.short, numbers(1, 2, 3))
    assert sorted(runs.begun) == [1, 2, 3]
    pool.close()
    eventually(lambda: not alive())
