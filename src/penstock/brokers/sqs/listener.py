"""Arrival listener: long polls that receive messages before the worker requests them.

While the worker wants messages of a queue, one poll waits there and holds the messages it receives until the worker
asks for them. When the worker has no free slots, it wants none; a poll under way then is not cancelled, and its
messages are released unless the worker asks for them within a moment. That costs each message a receive, which SQS
counts.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress

from penstock.brokers.sqs.envelope import SqsDelivery
from penstock.brokers.sqs.limits import messages_a_call
from penstock.brokers.sqs.receive import PolledBatch, PolledMessages, PollRequest
from penstock.messaging.backoff import Random, backoff_seconds
from penstock.messaging.clock import Clock

LEASE_SECONDS = 10.0  # of messages received before any request; a request changes it to its own
CLOSE_SECONDS = 1.5  # beyond a poll's wait; then close gives up waiting: SQS is away, and a shutdown has a deadline
BACKOFF_BASE_SECONDS, BACKOFF_CAP_SECONDS = 0.2, 5.0

Poll = Callable[[str, int, float, float], Sequence[SqsDelivery]]  # queue, messages_max, lease and wait in seconds
Release = Callable[[Sequence[SqsDelivery]], None]


class SqsArrivalListener:
    """One worker's `penstock.messaging.broker.Listening`, with a thread for each queue that was ever wanted."""

    def __init__(
        self,
        queues: Iterable[str],
        on_arrival: Callable[[], None],
        *,
        polled: PolledMessages,
        poll: Poll,
        release: Release,
        poll_seconds: float,
        clock: Clock,
        random: Random,
    ) -> None:
        self._on_arrival = on_arrival
        self._polled = polled
        self._poll = poll
        self._release = release
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._random = random
        self._lock = threading.Lock()
        self._wanted: Set[str] = frozenset()  # written under the lock
        self._failed: Set[str] = frozenset()  # under the lock: queues whose thread waits after a failed poll
        self._closed = False  # written under the lock; never unset
        self._threads: dict[str, threading.Thread] = {}  # written under the lock
        self._wake_events: Mapping[str, threading.Event] = {queue: threading.Event() for queue in queues}
        self._ended = threading.Event()  # set by close

    def want(self, queues: Set[str]) -> None:
        with self._lock:
            if self._closed:
                return
            self._set_wanted(self._wake_events.keys() & queues)
            for queue in self._wanted - self._threads.keys():
                thread = threading.Thread(target=self._run, args=(queue,), name="penstock-listening", daemon=True)
                self._threads[queue] = thread
                thread.start()
        self._wake_threads()

    def close(self) -> None:
        """Wait for the polls under way, so that their messages are released before the process ends."""
        with self._lock:
            self._set_wanted(frozenset())
            self._closed = True
            threads = list(self._threads.values())
        self._ended.set()
        self._wake_threads()
        deadline = self._clock.monotonic() + self._poll_seconds + CLOSE_SECONDS
        for thread in threads:
            thread.join(max(deadline - self._clock.monotonic(), 0.0))

    def _wake_threads(self) -> None:
        for wake_event in self._wake_events.values():
            wake_event.set()

    def _run(self, queue: str) -> None:
        failures = 0
        while not self._ended.is_set():
            try:
                self._step(queue)
                failures = 0
            except Exception:  # the worker meets the same error when it polls
                failures += 1
                self._set_failed(queue, True)
                self._clock.wait(self._ended, self._pause_seconds(failures))
                self._set_failed(queue, False)
        self._release_overdue(queue, all=True)

    def _step(self, queue: str) -> None:
        wake_event = self._wake_events[queue]
        wake_event.clear()
        if self._wants(queue):
            self._listen(queue)
            return
        overdue_in = self._polled.overdue_in(queue)
        if overdue_in is None:
            wake_event.wait()
        elif overdue_in > 0:
            self._clock.wait(wake_event, overdue_in)
        else:
            self._release_overdue(queue)

    def _wants(self, queue: str) -> bool:
        with self._lock:
            return queue in self._wanted

    def _listen(self, queue: str) -> None:
        """Make one long poll."""
        expected = self._polled.expected(queue, PollRequest(messages_max=1, lease_seconds=LEASE_SECONDS))
        count = min(expected.messages_max, messages_a_call(queue))
        batch: PolledBatch | None = None
        self._polled.poll_begins(queue)
        try:
            deliveries = self._poll(queue, count, expected.lease_seconds, self._poll_seconds)
            if deliveries:
                batch = PolledBatch(
                    deliveries=deliveries, lease_seconds=expected.lease_seconds, was_full=len(deliveries) == count
                )
        finally:
            self._polled.poll_ends(queue, batch)
        if batch is not None and self._take_report_request(queue):
            self._on_arrival()

    def _take_report_request(self, queue: str) -> bool:
        """Return True if the worker is to be notified of an arrival; only once for each `want`."""
        with self._lock:
            if queue not in self._wanted:
                return False
            self._set_wanted(frozenset())
            return True

    def _set_wanted(self, queues: Set[str]) -> None:
        """Set the wanted queues. Called under the lock."""
        self._wanted = queues
        self._polled.announce(queues - self._failed)

    def _set_failed(self, queue: str, failed: bool) -> None:
        """Note that the queue's thread waits after a failed poll: meanwhile the worker has to poll itself."""
        with self._lock:
            self._failed = self._failed | {queue} if failed else self._failed - {queue}
            self._polled.announce(self._wanted - self._failed)

    def _release_overdue(self, queue: str, *, all: bool = False) -> None:
        overdue = self._polled.take_overdue(queue, all=all)
        if overdue:
            with suppress(Exception):  # their leases end anyway
                self._release(overdue)

    def _pause_seconds(self, failures: int) -> float:
        return backoff_seconds(
            attempt=failures, base_seconds=BACKOFF_BASE_SECONDS, cap_seconds=BACKOFF_CAP_SECONDS, random=self._random
        )
