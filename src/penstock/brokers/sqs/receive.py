"""Receiving from SQS.

- `ReceiveCalls`: single receive calls, of ten messages at most (FIFO queues: one), and several in parallel. Their
  number doubles while all return full and falls back to the number that did. No call is ever cancelled: messages
  already in its response would be leased to no worker.
- `PolledMessages`: messages of long polls that no caller has taken yet
- `SqsReceiver`: receive for a caller, from `PolledMessages` if it holds any, otherwise with new calls
"""

import threading
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

from penstock.brokers.sqs.calls import ParallelCalls, outcome
from penstock.brokers.sqs.client import SqsApi
from penstock.brokers.sqs.envelope import SqsDelivery, received, seconds_since_receive, source_of
from penstock.brokers.sqs.leases import SqsLeases
from penstock.brokers.sqs.limits import messages_a_call, whole_seconds
from penstock.brokers.sqs.queues import SqsQueues
from penstock.events import Listener, ReceiveEmpty, ignore
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery

RECHECK_SECONDS = 0.05
STALE_LEASE_SHARE = 1 / 3  # of a lease: past this, a worker's heartbeat would have extended it
# A lease of which this share has passed may be over: SQS counts from sending its response, we from receiving it, and
# the extension takes time too.
TRUSTED_LEASE_SHARE = 3 / 4


class ReceiveCalls:
    """Receive calls. Thread-safe."""

    def __init__(
        self,
        api: SqsApi,
        queues: SqsQueues,
        pool: ParallelCalls,
        *,
        pollers: int,
        clock: Clock,
        emit: Listener = ignore,
    ) -> None:
        """``emit`` receives the events of polls that found nothing."""
        self._api = api
        self._queues = queues
        self._pool = pool
        self._pollers = pollers
        self._clock = clock
        self._emit = emit
        self._widths: dict[str, int] = {}  # parallel calls, by queue; written by any thread, the last write counts

    def take(self, queue: str, messages_max: int, lease_seconds: float) -> Sequence[SqsDelivery]:
        """Receive the messages available now. SQS may overlook some when there are few.

        Raises the error of a failed call only if no call returned messages. Messages of a lost response stay in the
        queue: they can be received again when their lease has ended.
        """
        taken: list[SqsDelivery] = []
        width = self._widths.get(queue, 1)
        while len(taken) < messages_max:
            sizes = _sizes(messages_max - len(taken), width, each_max=messages_a_call(queue))
            responses = self._pool.run([partial(self.poll, queue, size, lease_seconds) for size in sizes])
            errors = [response for response in responses if isinstance(response, Exception)]
            batches = [response for response in responses if not isinstance(response, Exception)]
            taken += [delivery for batch in batches for delivery in batch]
            if errors and not taken:
                raise errors[0]
            full = sum(
                not isinstance(each, Exception) and len(each) == size
                for each, size in zip(responses, sizes, strict=True)
            )
            if full < len(sizes):
                width = max(full, 1)
                break
            width = min(2 * width, self._pollers)
        self._widths[queue] = width
        return taken

    def poll(
        self, queue: str, messages_max: int, lease_seconds: float, wait_seconds: float = 0.0
    ) -> Sequence[SqsDelivery]:
        """Make one call, which waits up to ``wait_seconds`` for the first message.

        If the process was suspended or the network delayed the response for as long as the lease, the messages may
        already be leased to others. They are dropped, since SQS has no fence that would detect it later.
        """
        found = self._queues.find(queue)
        called_at = self._clock.monotonic()
        response = self._api.on(
            found,
            "receive_message",
            MaxNumberOfMessages=min(messages_max, messages_a_call(queue)),
            VisibilityTimeout=whole_seconds(lease_seconds),
            WaitTimeSeconds=whole_seconds(wait_seconds),
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        if self._clock.monotonic() - called_at >= whole_seconds(wait_seconds) + lease_seconds:
            return ()
        messages = response.get("Messages", ())
        # FIFO: a group in progress hides the messages behind it
        if wait_seconds and not messages and not found.is_fifo:
            self._emit(ReceiveEmpty(queue=queue))
        return [self._received(queue, raw) for raw in messages]

    def _received(self, queue: str, raw: Mapping[str, Any]) -> SqsDelivery:
        source = source_of(raw)
        before = 0 if source is None else self._queues.receives_max(source)
        return received(queue, raw, self._clock, receives_before=before)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledBatch:
    """The messages of one poll."""

    deliveries: Sequence[SqsDelivery]
    lease_seconds: float  # with which they were received
    was_full: bool  # the poll returned all it asked for, so there may be more


@dataclass(frozen=True, slots=True, kw_only=True)
class PollRequest:
    """The arguments of a caller's receive; the next poll uses the same."""

    messages_max: int
    lease_seconds: float


class PolledMessages:
    """Messages that long polls received and no caller has taken yet, by queue. Thread-safe."""

    def __init__(self, clock: Clock, *, unclaimed_seconds: float) -> None:
        """Set how long messages wait for a caller before they are released."""
        self._clock = clock
        self._unclaimed_seconds = unclaimed_seconds
        self._changed = threading.Condition()  # guards the fields below
        self._batches: dict[str, list[PolledBatch]] = {}
        self._polls: dict[str, int] = {}  # number of long polls under way
        self._announced: Set[str] = frozenset()  # queues with a long poll that is about to begin
        self._expected: dict[str, PollRequest] = {}

    def expect(self, queue: str, expected: PollRequest) -> None:
        """Remember the arguments of a caller's receive."""
        with self._changed:
            self._expected[queue] = expected

    def expected(self, queue: str, otherwise: PollRequest) -> PollRequest:
        """Return the arguments last remembered, else ``otherwise``."""
        with self._changed:
            return self._expected.get(queue, otherwise)

    def announce(self, queues: Set[str]) -> None:
        """Set the queues with a long poll that is about to begin: they count as polled already.

        Otherwise a caller that comes before the poll's thread would make a call of its own beside it. On a worker that
        stops, one of two such calls would receive what the other one released.
        """
        with self._changed:
            self._announced = queues
            self._changed.notify_all()

    def poll_begins(self, queue: str) -> None:
        with self._changed:
            self._announced -= {queue}
            self._polls[queue] = self._polls.get(queue, 0) + 1

    def poll_ends(self, queue: str, batch: PolledBatch | None) -> None:
        """End a poll and store its messages in one step, so that no caller finds the poll ended and its messages
        missing.
        """
        with self._changed:
            self._polls[queue] -= 1
            if batch is not None:
                self._batches.setdefault(queue, []).append(batch)
            self._changed.notify_all()

    def is_polled(self, queue: str) -> bool:
        """Return True if a long poll for the queue is under way or about to begin."""
        with self._changed:
            return self._is_polled(queue)

    def take(self, queue: str, messages_max: int) -> PolledBatch | None:
        """Return the oldest batch, cut to ``messages_max`` messages; None if nothing is held.

        Drops batches with an ended lease: other consumers may have received their messages, and SQS, which has no
        fence, would let this worker lease them again.
        """
        with self._changed:
            batches = self._batches.get(queue, [])
            while batches and self._age_seconds(batches[0]) >= batches[0].lease_seconds:
                batches.pop(0)
            if not batches or messages_max < 1:
                return None
            first = batches.pop(0)
            remaining = first.deliveries[messages_max:]
            if remaining:
                batches.insert(
                    0, PolledBatch(deliveries=remaining, lease_seconds=first.lease_seconds, was_full=first.was_full)
                )
                first = PolledBatch(
                    deliveries=first.deliveries[:messages_max], lease_seconds=first.lease_seconds, was_full=True
                )
            return first

    def put_back(self, queue: str, batch: PolledBatch) -> None:
        """Store a batch again that its taker could not use."""
        with self._changed:
            self._batches.setdefault(queue, []).insert(0, batch)

    def wait(self, queue: str, seconds: float) -> None:
        """Wait until messages are held, no poll is under way, or the (real) seconds have passed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._batches.get(queue) or not self._is_polled(queue), timeout=max(seconds, 0.0)
            )

    def overdue_in(self, queue: str) -> float | None:
        """Return the seconds until the oldest batch must be released; None if nothing is held."""
        with self._changed:
            batches = self._batches.get(queue)
            return self._left_seconds(batches[0]) if batches else None

    def take_overdue(self, queue: str, *, all: bool) -> Sequence[SqsDelivery]:
        """Remove and return the messages to release: those unclaimed for too long, or all.

        Messages past their lease are dropped: other consumers may hold them by now, and SQS, which has no fence, would
        make them visible again.
        """
        with self._changed:
            batches = self._batches.pop(queue, [])
            overdue = [batch for batch in batches if all or self._left_seconds(batch) <= 0]
            self._batches[queue] = [batch for batch in batches if batch not in overdue]
        return [
            delivery
            for batch in overdue
            if self._age_seconds(batch) < batch.lease_seconds
            for delivery in batch.deliveries
        ]

    def drop(self, queue: str) -> None:
        """Drop the messages of a purged queue."""
        with self._changed:
            self._batches.pop(queue, None)

    def _is_polled(self, queue: str) -> bool:
        return queue in self._announced or self._polls.get(queue, 0) > 0

    def _left_seconds(self, batch: PolledBatch) -> float:
        patience = min(self._unclaimed_seconds, batch.lease_seconds / 4)
        return patience - self._age_seconds(batch)

    def _age_seconds(self, batch: PolledBatch) -> float:
        return self._clock.monotonic() - batch.deliveries[0].began_at


class SqsReceiver:
    """Receive messages from the listener's buffer if it holds any, otherwise with new calls. Thread-safe."""

    def __init__(
        self, *, polled: PolledMessages, receiving: ReceiveCalls, leases: SqsLeases, poll_seconds: float, clock: Clock
    ) -> None:
        self._polled = polled
        self._receiving = receiving
        self._leases = leases
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._closed = False  # written by the thread that calls close

    def take(self, queue: str, messages_max: int, lease_seconds: float, wait_seconds: float) -> Sequence[Delivery]:
        """Return up to ``messages_max`` messages; wait up to ``wait_seconds`` for the first."""
        taken = self._taken_now(queue, messages_max, lease_seconds)
        if not taken and wait_seconds:
            taken = self._await_message(queue, messages_max, lease_seconds, wait_seconds)
        return self.extend_stale(taken, lease_seconds)

    def close(self) -> None:
        """Make waiting receivers return when their poll does."""
        self._closed = True

    def poll(self, queue: str, messages_max: int, lease_seconds: float, wait_seconds: float) -> Sequence[SqsDelivery]:
        """Make one receive call that waits."""
        return self._receiving.poll(queue, messages_max, lease_seconds, wait_seconds)

    def extend_stale(self, deliveries: Sequence[Delivery], lease_seconds: float) -> Sequence[Delivery]:
        """Return the deliveries still leased after settlements or other calls took their time.

        Extends leases that are past `STALE_LEASE_SHARE`. Deliveries past `TRUSTED_LEASE_SHARE` are left out; SQS
        redelivers them. If SQS already has, in a later call, only the later delivery is returned.
        """
        newest = {delivery.message.id: delivery for delivery in deliveries}.values()
        ages = [(delivery, seconds_since_receive(delivery, self._clock)) for delivery in newest]
        trusted_seconds = TRUSTED_LEASE_SHARE * lease_seconds
        polled = [delivery for delivery, seconds in ages if seconds < trusted_seconds]
        old = [delivery for delivery, seconds in ages if STALE_LEASE_SHARE * lease_seconds < seconds < trusted_seconds]
        lost = outcome(lambda: self._leases.extend(old, lease_seconds)) if old else ()
        return polled if isinstance(lost, Exception) else [delivery for delivery in polled if delivery not in lost]

    def _taken_now(self, queue: str, messages_max: int, lease_seconds: float) -> Sequence[SqsDelivery]:
        """Return the held messages, and more if the poll seems to have left some. Makes no call while a poll is under
        way.
        """
        batch = self._polled.take(queue, messages_max)
        if batch is None:
            return () if self._polled.is_polled(queue) else self._receiving.take(queue, messages_max, lease_seconds)
        mine = self._with_lease(queue, batch, lease_seconds)
        wanted = messages_max - len(mine)
        if not (batch.was_full and wanted):
            return mine
        more = outcome(lambda: self._receiving.take(queue, wanted, lease_seconds))
        return mine if isinstance(more, Exception) else [*mine, *more]  # the next caller meets the error

    def _await_message(
        self, queue: str, messages_max: int, lease_seconds: float, wait_seconds: float
    ) -> Sequence[SqsDelivery]:
        """Wait for the first message, from new polls or from the listener's."""
        deadline = self._clock.monotonic() + wait_seconds
        while not self._closed and (left := deadline - self._clock.monotonic()) > 0:
            if self._polled.is_polled(queue):
                self._polled.wait(queue, min(left, RECHECK_SECONDS))
                taken = self._taken_now(queue, messages_max, lease_seconds)
            else:
                taken = self.poll(queue, messages_max, lease_seconds, min(left, self._poll_seconds))
            if taken:
                return taken
        return ()

    def _with_lease(self, queue: str, batch: PolledBatch, lease_seconds: float) -> Sequence[SqsDelivery]:
        """Return the batch's messages with the caller's lease. Those whose lease cannot be changed are left out."""
        if batch.lease_seconds == lease_seconds:
            return batch.deliveries
        changed = outcome(lambda: self._leases.change(queue, [(each, lease_seconds) for each in batch.deliveries]))
        if isinstance(changed, Exception):
            self._polled.put_back(queue, batch)
            raise changed
        failed = {position for position, _ in changed}
        return [each for position, each in enumerate(batch.deliveries) if position not in failed]


def _sizes(messages_max: int, width: int, *, each_max: int) -> Sequence[int]:
    calls = min(width, ceil(messages_max / each_max))
    return [min(each_max, messages_max - n * each_max) for n in range(calls)]
