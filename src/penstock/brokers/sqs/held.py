"""Messages that a long poll brought and nobody asked for so far, by queue."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.brokers.sqs.received import Received
from penstock.messaging.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Catch:
    """What one poll brought."""

    deliveries: Sequence[Received]
    lease_seconds: float  # it was received with
    was_full: bool  # the poll brought all that it asked for, so there may be more


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What whoever asks a queue asks for: the next poll asks for the same."""

    messages_max: int
    lease_seconds: float


class Held:
    """Any thread may call it."""

    def __init__(self, clock: Clock, *, unclaimed_seconds: float) -> None:
        """``unclaimed_seconds``: after which what nobody took is to go back."""
        self._clock = clock
        self._unclaimed_seconds = unclaimed_seconds
        self._changed = threading.Condition()  # guards all of these
        self._catches: dict[str, list[Catch]] = {}
        self._polls: dict[str, int] = {}  # long polls under way
        self._expected: dict[str, Expected] = {}

    def expect(self, queue: str, expected: Expected) -> None:
        """Somebody asks the queue for this."""
        with self._changed:
            self._expected[queue] = expected

    def expected(self, queue: str, otherwise: Expected) -> Expected:
        """What was asked for last."""
        with self._changed:
            return self._expected.get(queue, otherwise)

    def poll_begins(self, queue: str) -> None:
        with self._changed:
            self._polls[queue] = self._polls.get(queue, 0) + 1

    def poll_ends(self, queue: str, catch: Catch | None) -> None:
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

    def take(self, queue: str, messages_max: int) -> Catch | None:
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
                catches.insert(0, Catch(deliveries=rest, lease_seconds=first.lease_seconds, was_full=first.was_full))
                first = Catch(
                    deliveries=first.deliveries[:messages_max], lease_seconds=first.lease_seconds, was_full=True
                )
            return first

    def put_back(self, queue: str, catch: Catch) -> None:
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

    def take_overdue(self, queue: str, *, all: bool) -> Sequence[Received]:
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

    def _left_seconds(self, catch: Catch) -> float:
        patience = min(self._unclaimed_seconds, catch.lease_seconds / 4)
        return patience - self._age_seconds(catch)

    def _age_seconds(self, catch: Catch) -> float:
        return self._clock.monotonic() - catch.deliveries[0].began_at
