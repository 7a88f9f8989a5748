"""Read the dead-lettered messages of one queue page by page, and delete some of them, for commands run by people.

On browsable brokers, reading changes nothing. SQS cannot be browsed: reading is a receive, which hides messages from
other consumers, so the reader holds them while the command runs and then makes them visible again. If the command is
killed, they stay hidden for up to `HIDDEN_SECONDS`.
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
from penstock.messaging.wording import counted

PAGE = 500  # messages in memory at once
HIDDEN_SECONDS = 300.0
_EXTEND_SHARE = 1 / 3
_WAIT_SECONDS = 2.0  # wait of a receive for its first message; if none arrives, none is left
_REPEATS_MAX = 5  # consecutive receives without a new message


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetteredMessage:
    """A dead-lettered message in its queue."""

    queue: str
    message: Message
    moved_from: str | None = None  # the source queue, if the broker itself dead-lettered it without a reason

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def death(self) -> Death | None:
        """Why the message failed; None if not recorded. Decoded at each access."""
        return death_of(self.message.attributes)


class DeadLetterReader(Protocol):
    """A reader of one queue's messages, which can also delete them. Used by one thread until it is closed."""

    @property
    def queue(self) -> str: ...

    def pages(self) -> Iterator[Sequence[DeadLetteredMessage]]:
        """Yield each message once, in pages, roughly oldest first. Call it once per reader."""
        ...

    def remove(self, ids: Sequence[str]) -> int:
        """Delete messages of pages already yielded; return how many still existed. Raises the broker's errors."""
        ...

    def close(self) -> None:
        """Release the messages that were not removed."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def dead_letters_in(broker: Broker, queue: str, *, clock: Clock | None = None) -> DeadLetterReader:
    """Return the kind of reader that the broker supports."""
    if broker.capabilities.browsable:
        return BrowsingReader(broker, queue)
    return ReceivingReader(broker, queue, clock=clock or SystemClock())


class BrowsingReader:
    """A `DeadLetterReader` that browses, without hiding messages."""

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
        """Do nothing: no message is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReceivingReader:
    """A `DeadLetterReader` that receives messages, and holds them until they are removed or released.

    A separate thread extends their visibility timeout. Up to 120,000 messages can be held (SQS's in-flight limit;
    20,000 for a FIFO queue), so their bodies are dropped. A FIFO group delivers nothing more while one of its messages
    is held. So remove the messages of a page before reading the next page; messages behind a held one are not read.
    """

    def __init__(self, broker: Broker, queue: str, *, clock: Clock, hidden_seconds: float = HIDDEN_SECONDS) -> None:
        self.queue = queue
        self._broker = broker
        self._clock = clock
        self._hidden_seconds = hidden_seconds
        self._lock = threading.Lock()
        self._hidden: dict[str, Delivery] = {}  # guarded by the lock; by message id
        self._closed = threading.Event()
        self._extender = threading.Thread(target=self._extend, name="penstock-dead-letters", daemon=True)

    def pages(self) -> Iterator[Sequence[DeadLetteredMessage]]:
        repeats = 0
        self._extender.start()
        while repeats < _REPEATS_MAX and (received := self._receive()):
            with self._lock:
                fresh = [delivery for delivery in received if delivery.message.id not in self._hidden]
                self._hidden |= {delivery.message.id: _without_content(delivery) for delivery in received}
            repeats = 0 if fresh else repeats + 1
            if fresh:
                yield [
                    DeadLetteredMessage(queue=self.queue, message=delivery.message, moved_from=delivery.moved_from)
                    for delivery in fresh
                ]

    def remove(self, ids: Sequence[str]) -> int:
        with self._lock:
            ours = [self._hidden[id] for id in ids if id in self._hidden]
        failures = self._broker.settle([(delivery, Ack()) for delivery in ours])
        left = {failure.delivery.message.id for failure in failures}
        deleted = [delivery.message.id for delivery in ours if delivery.message.id not in left]
        with self._lock:
            for id in deleted:
                self._hidden.pop(id, None)
        if lasting := [failure for failure in failures if not failure.lost]:
            raise TemporaryError(
                f"{counted(len(lasting), 'dead letter')} of {self.queue} could not be deleted: {lasting[0].reason}"
            )
        return len(deleted)

    def close(self) -> None:
        """Make the remaining messages visible again; if the broker is unreachable, they become visible by timeout."""
        self._closed.set()
        if self._extender.is_alive():
            self._extender.join(self._hidden_seconds)
        with self._lock:
            hidden, self._hidden = list(self._hidden.values()), {}
        with suppress(TemporaryError):
            for first in range(0, len(hidden), PAGE):
                self._broker.settle([(delivery, Release(uncounted=True)) for delivery in hidden[first : first + PAGE]])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self) -> Sequence[Delivery]:
        count = min(PAGE, self._broker.capabilities.receive_max)
        return self._broker.receive(
            self.queue, messages_max=count, lease_seconds=self._hidden_seconds, wait_seconds=_WAIT_SECONDS
        )

    def _extend(self) -> None:
        while not self._clock.wait(self._closed, self._hidden_seconds * _EXTEND_SHARE):
            with self._lock:
                hidden = list(self._hidden.values())
            with suppress(TemporaryError):  # retried before the timeout ends
                for first in range(0, len(hidden), PAGE):
                    expired = self._broker.extend(hidden[first : first + PAGE], lease_seconds=self._hidden_seconds)
                    with self._lock:
                        for delivery in expired:
                            self._hidden.pop(delivery.message.id, None)


def _without_content(delivery: Delivery) -> Delivery:
    """Drop everything that settling does not need."""
    return replace(delivery, message=replace(delivery.message, body=b"", attributes=NO_ATTRIBUTES))
