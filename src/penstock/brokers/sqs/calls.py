"""Calls of ten entries. SQS answers 200 and names those that failed: they alone are tried again.

Several calls at the same time, and what each came to.
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

Answer = TypeVar("Answer")


class ParallelCalls:
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


class ParallelCallsPerQueue:
    """A pool of threads for each queue, made at its first use. Any thread may call it."""

    def __init__(self, name: str, *, threads: int) -> None:
        """``threads``: the most for each queue."""
        self._name = name
        self._threads = threads
        self._lock = threading.Lock()
        self._by_queue: dict[str, ParallelCalls] = {}  # under the lock
        self._closed = False  # under the lock

    def of(self, queue: str) -> ParallelCalls:
        """Return the pool of this queue."""
        with self._lock:
            if queue not in self._by_queue:
                self._by_queue[queue] = ParallelCalls(f"{self._name}-{queue}", threads=self._threads)
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


TRIES = 4
BACKOFF_BASE_SECONDS, BACKOFF_CAP_SECONDS = 0.1, 1.0

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedEntry:
    """Why one entry failed. ``never``: another try cannot help."""

    code: str
    message: str
    never: bool = False

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code


class BatchCalls:
    """Any thread may call it."""

    def __init__(self, api: SqsApi, at_once: Callable[[str], ParallelCalls], *, clock: Clock, random: Random) -> None:
        """``at_once`` returns the threads for the calls of a queue, given its name."""
        self._api = api
        self._at_once = at_once
        self._clock = clock
        self._random = random

    def run(self, queue: QueueRef, operation: str, entries: Sequence[Entry]) -> Mapping[int, FailedEntry]:
        """Each entry once, ten to a call, all calls at once; answers which failed for good, by their place.

        Raises what a call raised if all of them did, or if nobody but a person can mend it. Where only some calls
        failed, their entries did.
        """
        starts = range(0, len(entries), BATCH_MAX)
        answers = self._at_once(queue.name).run(
            [partial(self.call, queue, operation, entries[start : start + BATCH_MAX]) for start in starts]
        )
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        fatal = [error for error in errors if isinstance(error, UserError)]
        if fatal or (errors and len(errors) == len(answers)):
            raise [*fatal, *errors][0]
        failed: dict[int, FailedEntry] = {}
        for start, answer in zip(starts, answers, strict=True):
            if isinstance(answer, Exception):
                ends = min(start + BATCH_MAX, len(entries))
                failed |= dict.fromkeys(
                    range(start, ends), FailedEntry(code=type(answer).__name__, message=str(answer))
                )
            else:
                failed |= {start + place: each for place, each in answer.items()}
        return failed

    def call(self, queue: QueueRef, operation: str, entries: Sequence[Entry]) -> Mapping[int, FailedEntry]:
        """At most ten entries; those that failed are tried again up to `TRIES` times in all."""
        left = list(range(len(entries)))
        failed: dict[int, FailedEntry] = {}
        for tries in range(1, TRIES + 1):
            for_good = {place: each for place, each in failed.items() if each.never}
            failed = {**for_good, **self._tried(queue, operation, entries, left)}
            left = [place for place, each in failed.items() if not each.never]
            if not left or tries == TRIES:
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

    def _tried(
        self, queue: QueueRef, operation: str, entries: Sequence[Entry], places: Sequence[int]
    ) -> Mapping[int, FailedEntry]:
        answer = self._api.on(queue, operation, Entries=[{"Id": str(place), **entries[place]} for place in places])
        return failures(answer, places)


def failures(answer: Mapping[str, Any], places: Sequence[int]) -> Mapping[int, FailedEntry]:
    """Which of the places failed, by the answer to a batch. One that is not told of failed, too."""
    failed = {
        int(each["Id"]): FailedEntry(
            code=each.get("Code", ""),
            message=each.get("Message", ""),
            never=bool(each.get("SenderFault")) and not client.is_throttling(each.get("Code", "")),
        )
        for each in answer.get("Failed", ())
    }
    told = {int(each["Id"]) for each in answer.get("Successful", ())} | failed.keys()
    failed |= {place: FailedEntry(code="NotAnswered", message="") for place in places if place not in told}
    return failed
