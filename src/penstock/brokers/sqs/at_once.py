"""Several calls at the same time, and what each came to."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from penstock.errors import TemporaryError

Answer = TypeVar("Answer")


class AtOnce:
    """Threads for calls that wait for the network. A call made in one of them must not make others here."""

    def __init__(self, name: str, *, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"penstock-sqs-{name}")

    def run(self, calls: Sequence[Callable[[], Answer]]) -> Sequence[Answer | Exception]:
        """What each answered or raised; the last is made in the calling thread."""
        begun = [self.begin(call) for call in calls[:-1]]
        last = [outcome(call) for call in calls[-1:]]
        return [*map(_awaited, begun), *last]

    def begin(self, call: Callable[[], Answer]) -> "Future[Answer]":
        """Begin it in a thread of its own."""
        try:
            return self._pool.submit(call)
        except RuntimeError as error:  # closed
            raise TemporaryError("this view of the SQS broker was closed: open another one") from error

    def close(self) -> None:
        """Begin no more. What is under way ends by itself."""
        self._pool.shutdown(wait=False)


class AtOncePerQueue:
    """A pool of threads for each queue, made at its first use. Any thread may call it."""

    def __init__(self, name: str, *, threads: int) -> None:
        """``threads``: the most for each queue."""
        self._name = name
        self._threads = threads
        self._lock = threading.Lock()
        self._by_queue: dict[str, AtOnce] = {}  # under the lock
        self._closed = False  # under the lock

    def of(self, queue: str) -> AtOnce:
        """Return the pool of this queue."""
        with self._lock:
            if queue not in self._by_queue:
                self._by_queue[queue] = AtOnce(f"{self._name}-{queue}", threads=self._threads)
                if self._closed:
                    self._by_queue[queue].close()
            return self._by_queue[queue]

    def close(self) -> None:
        """Begin no more. What is under way ends by itself."""
        with self._lock:
            self._closed = True
            for at_once in self._by_queue.values():
                at_once.close()


def outcome(call: Callable[[], Answer]) -> Answer | Exception:
    """What a call answered or raised."""
    try:
        return call()
    except Exception as error:
        return error


def _awaited(future: "Future[Answer]") -> Answer | Exception:
    return outcome(future.result)
