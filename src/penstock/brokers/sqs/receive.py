"""Calls that receive. Each brings ten messages at most, of a FIFO queue one; who asks for more gets several at once.

How many calls a queue is worth shows in what they bring: they double while they come full, and fall back to those that
did. None is ever broken off: what SQS has handed over then would be leased to nobody.

What whoever asks a queue gets: what a listener's poll brought before, else what a call brings now.

Messages that a long poll brought and nobody asked for so far, by queue.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

from penstock.brokers.sqs.calls import ParallelCalls, outcome
from penstock.brokers.sqs.client import SqsApi
from penstock.brokers.sqs.envelope import SqsDelivery, held_seconds, received, source_of
from penstock.brokers.sqs.leases import SqsLeases
from penstock.brokers.sqs.limits import messages_a_call, whole_seconds
from penstock.brokers.sqs.queues import SqsQueues
from penstock.events import Listener, QueueSeenEmpty, tell_nobody
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery


class ReceiveCalls:
    """Any thread may call it."""

    def __init__(
        self,
        api: SqsApi,
        queues: SqsQueues,
        at_once: ParallelCalls,
        *,
        pollers: int,
        clock: Clock,
        tell: Listener = tell_nobody,
    ) -> None:
        """``tell`` hears of polls that waited in vain."""
        self._api = api
        self._queues = queues
        self._at_once = at_once
        self._pollers = pollers
        self._clock = clock
        self._tell = tell
        self._widths: dict[str, int] = {}  # calls at once, by queue; any thread's, the last counts

    def take(self, queue: str, messages_max: int, lease_seconds: float) -> Sequence[SqsDelivery]:
        """As many as there are, without waiting; SQS may overlook some of few."""
        taken: list[SqsDelivery] = []
        width = self._widths.get(queue, 1)
        while len(taken) < messages_max:
            sizes = _sizes(messages_max - len(taken), width, each_max=messages_a_call(queue))
            came = self._at_once.run([partial(self.poll, queue, size, lease_seconds) for size in sizes])
            errors = [each for each in came if isinstance(each, Exception)]
            brought = [each for each in came if not isinstance(each, Exception)]
            taken += [delivery for each in brought for delivery in each]
            if errors and not taken:
                raise errors[0]
            full = sum(
                not isinstance(each, Exception) and len(each) == size for each, size in zip(came, sizes, strict=True)
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
        """One call, which waits up to that long for the first message.

        What is heard a lease after SQS said it, by a process that was halted or a network that held the answer, is not
        ours any more: SQS has no fence, so nobody else would tell.
        """
        found = self._queues.find(queue)
        asked_at = self._clock.monotonic()
        answer = self._api.on(
            found,
            "receive_message",
            MaxNumberOfMessages=min(messages_max, messages_a_call(queue)),
            VisibilityTimeout=whole_seconds(lease_seconds),
            WaitTimeSeconds=whole_seconds(wait_seconds),
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        if self._clock.monotonic() - asked_at >= whole_seconds(wait_seconds) + lease_seconds:
            return ()
        messages = answer.get("Messages", ())
        if wait_seconds and not messages and not found.is_fifo:  # there a group in work hides what waits behind it
            self._tell(QueueSeenEmpty(queue=queue))
        return [self._received(queue, raw) for raw in messages]

    def _received(self, queue: str, raw: Mapping[str, Any]) -> SqsDelivery:
        source = source_of(raw)
        before = 0 if source is None else self._queues.receives_max(source)
        return received(queue, raw, self._clock, receives_before=before)


def _sizes(messages_max: int, width: int, *, each_max: int) -> Sequence[int]:
    calls = min(width, ceil(messages_max / each_max))
    return [min(each_max, messages_max - n * each_max) for n in range(calls)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledBatch:
    """What one poll brought."""

    deliveries: Sequence[SqsDelivery]
    lease_seconds: float  # it was received with
    was_full: bool  # the poll brought all that it asked for, so there may be more


@dataclass(frozen=True, slots=True, kw_only=True)
class PollRequest:
    """What whoever asks a queue asks for: the next poll asks for the same."""

    messages_max: int
    lease_seconds: float


class PolledMessages:
    """Any thread may call it."""

    def __init__(self, clock: Clock, *, unclaimed_seconds: float) -> None:
        """``unclaimed_seconds``: after which what nobody took is to go back."""
        self._clock = clock
        self._unclaimed_seconds = unclaimed_seconds
        self._changed = threading.Condition()  # guards all of these
        self._catches: dict[str, list[PolledBatch]] = {}
        self._polls: dict[str, int] = {}  # long polls under way
        self._expected: dict[str, PollRequest] = {}

    def expect(self, queue: str, expected: PollRequest) -> None:
        """Somebody asks the queue for this."""
        with self._changed:
            self._expected[queue] = expected

    def expected(self, queue: str, otherwise: PollRequest) -> PollRequest:
        """What was asked for last."""
        with self._changed:
            return self._expected.get(queue, otherwise)

    def poll_begins(self, queue: str) -> None:
        with self._changed:
            self._polls[queue] = self._polls.get(queue, 0) + 1

    def poll_ends(self, queue: str, catch: PolledBatch | None) -> None:
        """What it brought is there before anybody sees that the poll is over."""
        with self._changed:
            self._polls[queue] -= 1
            if catch is not None:
                self._catches.setdefault(queue, []).append(catch)
            self._changed.notify_all()

    def is_polled(self, queue: str) -> bool:
        """Whether what arrives there comes by itself."""
        with self._changed:
            return self._polls.get(queue, 0) > 0

    def take(self, queue: str, messages_max: int) -> PolledBatch | None:
        """Return the oldest catch, cut to that many messages; None if nothing is held.

        Drops catches whose lease has ended: other consumers may have received their messages, and SQS, which has no
        fence, would let this worker lease them again.
        """
        with self._changed:
            catches = self._catches.get(queue, [])
            while catches and self._age_seconds(catches[0]) >= catches[0].lease_seconds:
                catches.pop(0)
            if not catches or messages_max < 1:
                return None
            first = catches.pop(0)
            rest = first.deliveries[messages_max:]
            if rest:
                catches.insert(
                    0, PolledBatch(deliveries=rest, lease_seconds=first.lease_seconds, was_full=first.was_full)
                )
                first = PolledBatch(
                    deliveries=first.deliveries[:messages_max], lease_seconds=first.lease_seconds, was_full=True
                )
            return first

    def put_back(self, queue: str, catch: PolledBatch) -> None:
        """Who took it could not do with it."""
        with self._changed:
            self._catches.setdefault(queue, []).insert(0, catch)

    def wait(self, queue: str, seconds: float) -> None:
        """Until something is held of the queue, or no poll is under way there, or the (real) seconds are over."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._catches.get(queue) or not self._polls.get(queue), timeout=max(seconds, 0.0)
            )

    def overdue_in(self, queue: str) -> float | None:
        """When the oldest catch of the queue is to go back; None where nothing is held."""
        with self._changed:
            catches = self._catches.get(queue)
            return self._left_seconds(catches[0]) if catches else None

    def take_overdue(self, queue: str, *, all: bool) -> Sequence[SqsDelivery]:
        """What is to go back: what nobody took in time, or all of it. What is past its lease is others' by now: SQS,
        which has no fence, would take it from them."""
        with self._changed:
            catches = self._catches.pop(queue, [])
            gone = [catch for catch in catches if all or self._left_seconds(catch) <= 0]
            self._catches[queue] = [catch for catch in catches if catch not in gone]
        return [
            delivery
            for catch in gone
            if self._age_seconds(catch) < catch.lease_seconds
            for delivery in catch.deliveries
        ]

    def drop(self, queue: str) -> None:
        """The queue was emptied."""
        with self._changed:
            self._catches.pop(queue, None)

    def _left_seconds(self, catch: PolledBatch) -> float:
        patience = min(self._unclaimed_seconds, catch.lease_seconds / 4)
        return patience - self._age_seconds(catch)

    def _age_seconds(self, catch: PolledBatch) -> float:
        return self._clock.monotonic() - catch.deliveries[0].began_at


LOOK_AGAIN_SECONDS = 0.05
LATE = 1 / 3  # of a lease, after which a worker's heartbeat would have extended it


class SqsReceiver:
    """Any thread may call it."""

    def __init__(
        self, *, held: PolledMessages, receiving: ReceiveCalls, leases: SqsLeases, poll_seconds: float, clock: Clock
    ) -> None:
        self._held = held
        self._receiving = receiving
        self._leases = leases
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._closed = False  # written by the thread that closes

    def take(self, queue: str, messages_max: int, lease_seconds: float, wait_seconds: float) -> Sequence[Delivery]:
        """At most so many; waits up to that long for the first."""
        taken = self._taken_now(queue, messages_max, lease_seconds)
        if not taken and wait_seconds:
            taken = self._awaited(queue, messages_max, lease_seconds, wait_seconds)
        return self.still_held(taken, lease_seconds)

    def close(self) -> None:
        """Who waits returns when the poll does."""
        self._closed = True

    def poll(self, queue: str, messages_max: int, lease_seconds: float, wait_seconds: float) -> Sequence[SqsDelivery]:
        """One call that waits."""
        return self._receiving.poll(queue, messages_max, lease_seconds, wait_seconds)

    def still_held(self, deliveries: Sequence[Delivery], lease_seconds: float) -> Sequence[Delivery]:
        """What nobody extended while settlements, or other calls, took their time. Past its lease it is left out, and
        comes again."""
        ages = [(delivery, held_seconds(delivery, self._clock)) for delivery in deliveries]
        held = [delivery for delivery, seconds in ages if seconds < lease_seconds]
        old = [delivery for delivery, seconds in ages if LATE * lease_seconds < seconds < lease_seconds]
        lost = outcome(lambda: self._leases.extend(old, lease_seconds)) if old else ()
        return held if isinstance(lost, Exception) else [delivery for delivery in held if delivery not in lost]

    def _taken_now(self, queue: str, messages_max: int, lease_seconds: float) -> Sequence[SqsDelivery]:
        """What is held, and more where there seems to be more. What a poll under way would bring is left to it."""
        catch = self._held.take(queue, messages_max)
        if catch is None:
            return () if self._held.is_polled(queue) else self._receiving.take(queue, messages_max, lease_seconds)
        mine = self._leased(queue, catch, lease_seconds)
        wanted = messages_max - len(mine)
        if not (catch.was_full and wanted):
            return mine
        more = outcome(lambda: self._receiving.take(queue, wanted, lease_seconds))
        return mine if isinstance(more, Exception) else [*mine, *more]  # an error will be met by the next to ask

    def _awaited(
        self, queue: str, messages_max: int, lease_seconds: float, wait_seconds: float
    ) -> Sequence[SqsDelivery]:
        """Wait for the first message: by polls of our own, or for what a listener's poll brings."""
        deadline = self._clock.monotonic() + wait_seconds
        while not self._closed and (left := deadline - self._clock.monotonic()) > 0:
            if self._held.is_polled(queue):
                self._held.wait(queue, min(left, LOOK_AGAIN_SECONDS))
                taken = self._taken_now(queue, messages_max, lease_seconds)
            else:
                taken = self.poll(queue, messages_max, lease_seconds, min(left, self._poll_seconds))
            if taken:
                return taken
        return ()

    def _leased(self, queue: str, catch: PolledBatch, lease_seconds: float) -> Sequence[SqsDelivery]:
        """With the lease that whoever takes them thinks they have. What SQS gave to others meanwhile is left out."""
        if catch.lease_seconds == lease_seconds:
            return catch.deliveries
        changed = outcome(lambda: self._leases.change(queue, [(each, lease_seconds) for each in catch.deliveries]))
        if isinstance(changed, Exception):
            self._held.put_back(queue, catch)
            raise changed
        failed = {place for place, _ in changed}
        return [each for place, each in enumerate(catch.deliveries) if place not in failed]
