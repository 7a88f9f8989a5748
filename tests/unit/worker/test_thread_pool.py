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
    """Runs that record numbers in place of batches: the pool never inspects a batch."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun: list[int] = []
        self.threads: set[str] = set()
        self.go_on = threading.Event()

    def blocking(self, batch: "RunningBatch") -> None:
        self.short(batch)
        assert self.go_on.wait(DEADLINE_SECONDS)

    def short(self, batch: "RunningBatch") -> None:
        with self.lock:
            self.begun.append(cast("int", batch))
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


def test_each_blocking_run_has_its_own_thread_up_to_the_limit(runs: Runs, eventually: Eventually) -> None:
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


def test_a_blocking_run_delays_no_other_run(runs: Runs, eventually: Eventually) -> None:
    """A thread that takes work wakes the next thread before it begins."""
    pool = ThreadPool(threads_max=2)
    pool.start(runs.blocking, numbers(0))
    eventually(lambda: runs.begun == [0])
    for number in range(1, 50):
        pool.start(runs.short, numbers(number))
        eventually(lambda: number in runs.begun)  # noqa: B023 # awaited at once
    runs.go_on.set()
    pool.close()
    eventually(lambda: not alive())


def test_all_runs_of_many_groups_of_short_runs_complete(runs: Runs, eventually: Eventually) -> None:
    """A wake-up that is lost between a thread's last check and its sleep would leave work undone forever."""
    pool = ThreadPool(threads_max=8)
    for group in range(200):
        pool.start(runs.short, numbers(*range(group * 20, group * 20 + 20)))
        if group % 5 == 0:
            eventually(lambda: len(runs.begun) == group * 20 + 20)  # noqa: B023 # awaited at once
    eventually(lambda: len(runs.begun) == 4_000)
    pool.close()
    eventually(lambda: not alive())


def test_closing_completes_waiting_runs_first(runs: Runs, eventually: Eventually) -> None:
    pool = ThreadPool(threads_max=1)
    pool.start(runs.blocking, numbers(0))
    eventually(lambda: runs.begun == [0])
    pool.start(runs.short, numbers(1, 2))
    pool.close()
    runs.go_on.set()
    eventually(lambda: len(runs.begun) == 3)
    assert runs.begun == [0, 1, 2], "one thread works in order of arrival"
    eventually(lambda: not alive())


def test_existing_threads_do_the_work_if_no_thread_can_be_started(
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


def test_starting_work_fails_if_no_thread_exists_or_can_be_started(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(TemporaryError):
        ThreadPool(threads_max=5).start(runs.short, numbers(0))


def test_a_thread_that_starts_another_holds_no_batch_meanwhile(
    runs: Runs, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting a thread takes a while; a batch held meanwhile would begin last although it came first."""
    start = threading.Thread.start

    def slowly(thread: threading.Thread) -> None:
        start(thread)
        eventually(lambda: len(runs.begun) == 3, "all begin while the caller waits for the new thread")

    monkeypatch.setattr(threading.Thread, "start", slowly)
    pool = ThreadPool(threads_max=50)
    pool.start(runs.short, numbers(1, 2, 3))
    assert sorted(runs.begun) == [1, 2, 3]
    pool.close()
    eventually(lambda: not alive())
