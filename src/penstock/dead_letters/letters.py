"""The dead letters of one queue, for a person's verb: looked at page by page, and taken away when that is meant.

Where a broker lets messages be looked at, nothing happens to those that are only looked at. SQS has no such thing:
there a look is a receive, which hides the letter from everybody else, so it is held as long as the verb works and given
back at its end. A verb that is killed leaves them hidden for `HELD_SECONDS` at most.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, Self

from penstock.errors import TemporaryError
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.death import Death, death_of
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import NO_ATTRIBUTES, Message
from penstock.messaging.settlement import Ack, Release

PAGE = 500  # letters in memory at once
HELD_SECONDS = 300.0
_EXTEND_SHARE = 1 / 3
_WAIT_SECONDS = 2.0  # for the first letter of a receive; where none came, there is none left
_REPEATS_MAX = 5  # receives in a row that bring nothing new


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetteredMessage:
    """A dead letter where it lies."""

    queue: str
    message: Message
    moved_from: str | None = None  # as `penstock.messaging.delivery.Delivery` has it

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def death(self) -> Death | None:
        """What it died of; None where it does not say. Read anew each time."""
        return death_of(self.message.attributes)


class DeadLetterReader(Protocol):
    """The letters of one queue. Used by one thread, until it is closed."""

    @property
    def queue(self) -> str: ...

    def pages(self) -> Iterator[Sequence[DeadLetteredMessage]]:
        """Yield each letter once, a page at a time, nearly oldest first. Iterate a reader once."""
        ...

    def remove(self, ids: Sequence[str]) -> int:
        """Delete letters of pages that came; answers how many were still there. Raises what a broker raises."""
        ...

    def close(self) -> None:
        """Let go of those that stay."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def letters_in(broker: Broker, queue: str, *, clock: Clock | None = None) -> DeadLetterReader:
    """The letters of a queue, in the way that its broker offers."""
    if broker.capabilities.browsable:
        return BrowsingReader(broker, queue)
    return ReceivingReader(broker, queue, clock=clock or SystemClock())


class BrowsingReader:
    """`DeadLetterReader` that are looked at where they lie."""

    def __init__(self, broker: Broker, queue: str) -> None:
        self.queue = queue
        self._broker = broker

    def pages(self) -> Iterator[Sequence[DeadLetteredMessage]]:
        after: str | None = None
        while page := self._broker.browse(self.queue, messages_max=PAGE, after_id=after):
            after = page[-1].id
            yield [DeadLetteredMessage(queue=self.queue, message=message) for message in page]

    def remove(self, ids: Sequence[str]) -> int:
        return self._broker.discard(self.queue, ids) if ids else 0

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReceivingReader:
    """`DeadLetterReader` that are received, and held by a thread of their own until they are removed or given back.

    Of each one held the receipt is kept and no body: SQS lets 120,000 be out at once, and 20,000 of a FIFO queue. There
    a group hands over nothing more while one of its letters is held: so remove those of a page before the next one is
    asked for. What lies behind those that stay is not seen.
    """

    def __init__(self, broker: Broker, queue: str, *, clock: Clock, held_seconds: float = HELD_SECONDS) -> None:
        self.queue = queue
        self._broker = broker
        self._clock = clock
        self._held_seconds = held_seconds
        self._lock = threading.Lock()
        self._held: dict[str, Delivery] = {}  # under the lock: by the letter's id
        self._closed = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="penstock-letters", daemon=True)

    def pages(self) -> Iterator[Sequence[DeadLetteredMessage]]:
        repeats = 0
        self._keeper.start()
        while repeats < _REPEATS_MAX and (received := self._receive()):
            with self._lock:
                fresh = [one for one in received if one.message.id not in self._held]
                self._held |= {one.message.id: _slim(one) for one in received}
            repeats = 0 if fresh else repeats + 1
            if fresh:
                yield [
                    DeadLetteredMessage(queue=self.queue, message=one.message, moved_from=one.moved_from)
                    for one in fresh
                ]

    def remove(self, ids: Sequence[str]) -> int:
        with self._lock:
            ours = [self._held[id] for id in ids if id in self._held]
        failures = self._broker.settle([(delivery, Ack()) for delivery in ours])
        left = {failure.delivery.message.id for failure in failures}
        gone = [delivery.message.id for delivery in ours if delivery.message.id not in left]
        with self._lock:
            for id in gone:
                self._held.pop(id, None)
        if lasting := [failure for failure in failures if not failure.lost]:
            raise TemporaryError(f"{len(lasting):,} letters of {self.queue} could not be deleted: {lasting[0].reason}")
        return len(gone)

    def close(self) -> None:
        """Those that stay are visible again at once; where the broker is away, when their time is over."""
        self._closed.set()
        if self._keeper.is_alive():
            self._keeper.join(self._held_seconds)
        with self._lock:
            held, self._held = list(self._held.values()), {}
        with suppress(TemporaryError):
            for first in range(0, len(held), PAGE):
                self._broker.settle([(delivery, Release(refund=True)) for delivery in held[first : first + PAGE]])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self) -> Sequence[Delivery]:
        count = min(PAGE, self._broker.capabilities.receive_max)
        return self._broker.receive(
            self.queue, messages_max=count, lease_seconds=self._held_seconds, wait_seconds=_WAIT_SECONDS
        )

    def _keep(self) -> None:
        while not self._clock.wait(self._closed, self._held_seconds * _EXTEND_SHARE):
            with self._lock:
                held = list(self._held.values())
            with suppress(TemporaryError):  # tried again before their time is over
                for first in range(0, len(held), PAGE):
                    lost = self._broker.extend(held[first : first + PAGE], lease_seconds=self._held_seconds)
                    with self._lock:
                        for delivery in lost:
                            self._held.pop(delivery.message.id, None)


def _slim(delivery: Delivery) -> Delivery:
    """Enough of it to settle it."""
    return replace(delivery, message=replace(delivery.message, body=b"", attributes=NO_ATTRIBUTES))
