"""Calls to SQS, in parallel and in batches.

- `ParallelCalls`, `ParallelCallsPerQueue`: thread pools
- `BatchCalls`: calls of ten entries; SQS returns 200 and lists the entries that failed, and only those are retried
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from penstock.brokers.sqs import client
from penstock.brokers.sqs.client import QueueRef, SqsApi
from penstock.brokers.sqs.limits import BATCH_MAX
from penstock.errors import TemporaryError, UserError
from penstock.messaging.backoff import Random, backoff_seconds
from penstock.messaging.clock import Clock

Result = TypeVar("Result")
ENTRY_TRIES_MAX = 4  # of a batch entry; botocore does not retry entries, as their call succeeded
BACKOFF_BASE_SECONDS, BACKOFF_CAP_SECONDS = 0.1, 1.0
Entry = Mapping[str, Any]


class ParallelCalls:
    """Thread pool for calls that wait for the network. A call running in it must not start others in the same pool."""

    def __init__(self, name: str, *, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"penstock-sqs-{name}")

    def run(self, calls: Sequence[Callable[[], Result]]) -> Sequence[Result | Exception]:
        """Run the calls in parallel, the last one in the calling thread. Return each one's result or exception."""
        begun = [self.begin(call) for call in calls[:-1]]
        last = [outcome(call) for call in calls[-1:]]
        return [*map(_awaited, begun), *last]

    def begin(self, call: Callable[[], Result]) -> "Future[Result]":
        """Start a call in a thread of the pool."""
        try:
            return self._pool.submit(call)
        except RuntimeError as error:  # the pool is closed
            raise TemporaryError("this view of the SQS broker was closed: open another one") from error

    def close(self) -> None:
        """Start no more calls; those under way finish."""
        self._pool.shutdown(wait=False)


class ParallelCallsPerQueue:
    """One thread pool per queue, created on first use. Thread-safe."""

    def __init__(self, name: str, *, threads: int) -> None:
        """Set the size of each queue's pool."""
        self._name = name
        self._threads = threads
        self._lock = threading.Lock()
        self._by_queue: dict[str, ParallelCalls] = {}  # written under the lock, as is `_closed`
        self._closed = False

    def of(self, queue: str) -> ParallelCalls:
        """Return the pool of this queue."""
        with self._lock:
            if queue not in self._by_queue:
                self._by_queue[queue] = ParallelCalls(f"{self._name}-{queue}", threads=self._threads)
                if self._closed:
                    self._by_queue[queue].close()
            return self._by_queue[queue]

    def close(self) -> None:
        """Start no more calls; those under way finish."""
        with self._lock:
            self._closed = True
            for pool in self._by_queue.values():
                pool.close()


def outcome(call: Callable[[], Result]) -> Result | Exception:
    """Return the call's result or its exception."""
    try:
        return call()
    except Exception as error:
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedEntry:
    """The failure of one batch entry. ``never``: a retry cannot succeed."""

    code: str
    message: str
    never: bool = False

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code


class BatchCalls:
    """Batch calls that retry failed entries. Thread-safe."""

    def __init__(self, api: SqsApi, pool: Callable[[str], ParallelCalls], *, clock: Clock, random: Random) -> None:
        """``pool`` returns the thread pool for a queue's calls, given the queue's name."""
        self._api = api
        self._pool_of = pool
        self._clock = clock
        self._random = random

    def run(self, queue: QueueRef, operation: str, entries: Sequence[Entry]) -> Mapping[int, FailedEntry]:
        """Send the entries, ten per call, all calls in parallel; return those that failed for good, by position.

        Raises a call's error if all calls failed, or if only a person can fix it. If only some calls failed, their
        entries are returned as failed.
        """
        starts = range(0, len(entries), BATCH_MAX)
        results = self._pool_of(queue.name).run(
            [partial(self.call, queue, operation, entries[start : start + BATCH_MAX]) for start in starts]
        )
        errors = [result for result in results if isinstance(result, Exception)]
        fatal = [error for error in errors if isinstance(error, UserError)]
        if fatal or (errors and len(errors) == len(results)):
            raise [*fatal, *errors][0]
        failed: dict[int, FailedEntry] = {}
        for start, result in zip(starts, results, strict=True):
            if isinstance(result, Exception):
                ends = min(start + BATCH_MAX, len(entries))
                failed |= dict.fromkeys(
                    range(start, ends), FailedEntry(code=type(result).__name__, message=str(result))
                )
            else:
                failed |= {start + position: each for position, each in result.items()}
        return failed

    def call(self, queue: QueueRef, operation: str, entries: Sequence[Entry]) -> Mapping[int, FailedEntry]:
        """Send at most ten entries, retrying those that failed, up to `ENTRY_TRIES_MAX` times in all."""
        left = list(range(len(entries)))
        failed: dict[int, FailedEntry] = {}
        for tries in range(1, ENTRY_TRIES_MAX + 1):
            for_good = {position: each for position, each in failed.items() if each.never}
            failed = {**for_good, **self._send(queue, operation, entries, left)}
            left = [position for position, each in failed.items() if not each.never]
            if not left or tries == ENTRY_TRIES_MAX:
                break
            self.pause(tries)
        return failed

    def pause(self, tries: int) -> None:
        """Wait before the next try."""
        seconds = backoff_seconds(
            attempt=tries,
            base_seconds=BACKOFF_BASE_SECONDS,
            cap_seconds=BACKOFF_CAP_SECONDS,
            random=self._random,
        )
        self._clock.wait(threading.Event(), seconds)

    def _send(
        self, queue: QueueRef, operation: str, entries: Sequence[Entry], positions: Sequence[int]
    ) -> Mapping[int, FailedEntry]:
        response = self._api.on(
            queue, operation, Entries=[{"Id": str(position), **entries[position]} for position in positions]
        )
        return failures(response, positions)


def failures(response: Mapping[str, Any], positions: Sequence[int]) -> Mapping[int, FailedEntry]:
    """Return the failed entries of a batch response, by position. An entry missing from it counts as failed."""
    failed = {
        int(entry["Id"]): FailedEntry(
            code=entry.get("Code", ""),
            message=entry.get("Message", ""),
            never=bool(entry.get("SenderFault")) and not client.is_throttling(entry.get("Code", "")),
        )
        for entry in response.get("Failed", ())
    }
    reported = {int(entry["Id"]) for entry in response.get("Successful", ())} | failed.keys()
    failed |= {
        position: FailedEntry(code="NotAnswered", message="") for position in positions if position not in reported
    }
    return failed


def _awaited(future: "Future[Result]") -> Result | Exception:
    return outcome(future.result)
