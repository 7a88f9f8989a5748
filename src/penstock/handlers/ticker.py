"""Messages sent by the clock: one a tick, however many workers there are.

Every worker sends every tick under the same deduplication id, and the broker keeps the first. A worker that starts
shortly after a tick sends that one too, so that a deploy at the wrong second loses none; a tick at which no worker ran
for longer than that is over.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from penstock.errors import InvalidMessage, PenstockError, UsageError
from penstock.events import Bus, TickFailed, TickSent
from penstock.handlers.declaration import HandlerDeclaration
from penstock.handlers.schedule import Schedule
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.schema import Codec
from penstock.messaging.waits import Random

CATCH_UP_SECONDS = 120.0  # well within the brokers' deduplication windows (5 minutes)
JITTER_SECONDS = 1.0
RETRY_SECONDS = 5.0
WAIT_SECONDS_MAX = 60.0  # the wall clock may be set meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    declaration: HandlerDeclaration
    schedule: Schedule
    at: float  # epoch seconds


class Ticker:
    """Sends the ticks of these handlers until told to end. Has a thread of its own."""

    def __init__(
        self, declarations: Sequence[HandlerDeclaration], *, broker: Broker, clock: Clock, bus: Bus, random: Random
    ) -> None:
        self._declarations = [declaration for declaration in declarations if declaration.schedule is not None]
        self._broker = broker
        self._clock = clock
        self._bus = bus
        self._random = random
        self._ended = threading.Event()

    def run(self) -> None:
        """Send what is due, wait for the next, until the end."""
        now = self._clock.now()
        due = [self._first(declaration, now) for declaration in self._declarations]
        while due and not self._ended.is_set():
            due = [self._step(entry) for entry in due]
            seconds = min(entry.at for entry in due) - self._clock.now() + JITTER_SECONDS * self._random()
            self._clock.wait(self._ended, min(max(seconds, 0.01), WAIT_SECONDS_MAX))

    def end(self) -> None:
        """Send no more."""
        self._ended.set()

    def _first(self, declaration: HandlerDeclaration, now: float) -> _Due:
        schedule = declaration.schedule
        assert schedule is not None
        last = schedule.at_or_before(now)
        at = last if now - last <= CATCH_UP_SECONDS else schedule.after(now)
        return _Due(declaration=declaration, schedule=schedule, at=at)

    def _step(self, due: _Due) -> _Due:
        now = self._clock.now()
        if due.at > now:  # if the clock was set back, earlier than it seemed
            return replace(due, at=min(due.at, due.schedule.after(now)))
        # After a sleep of the machine, or long failures: others have sent it, and brokers may have forgotten that.
        if now - due.at > CATCH_UP_SECONDS:
            return self._first(due.declaration, now)
        if not self._sent(due):
            self._clock.wait(self._ended, RETRY_SECONDS * self._random())
            return due
        return replace(due, at=due.schedule.after(max(now, due.at)))

    def _sent(self, due: _Due) -> bool:
        try:
            self._send(due)
        except Exception as error:  # whatever it is: this thread has the ticks of all handlers to send
            self._bus.emit(TickFailed(handler=due.declaration.name, scheduled_at=due.at, error=_told(error)))
            return False
        return True

    def _send(self, due: _Due) -> None:
        codec: Codec[Any] = Codec(due.declaration.queue)
        outgoing = Outgoing(
            body=codec.encode(tick_body(due.at)),
            attributes=codec.attributes(),
            deduplication_id=f"{due.declaration.name}@{due.at:.0f}",
        )
        self._broker.send(due.declaration.queue.name, [outgoing])
        self._bus.emit(TickSent(handler=due.declaration.name, queue=due.declaration.queue.name, scheduled_at=due.at))


def tick_body(at: float) -> dict[str, str]:
    """What a scheduled handler gets: a JSON object with the tick's time; a model needs a field of that name."""
    return {"scheduled_at": datetime.fromtimestamp(at, UTC).isoformat()}


def check_tick(declaration: HandlerDeclaration) -> None:
    """Raise `UsageError` where the queue's model would not take what a tick sends."""
    codec: Codec[Any] = Codec(declaration.queue)
    try:
        body = codec.encode(tick_body(0.0))
        codec.decode(Message(id="tick", body=body, enqueued_at=0.0, attributes=codec.attributes()))
    except (UsageError, InvalidMessage) as error:
        raise UsageError(
            f"The handler {declaration.name} is scheduled, and its queue's model does not take what a tick sends, "
            f'{{"scheduled_at": "<time>"}}: {error}'
        ) from error


def _told(error: Exception) -> str:
    """What is said of a failure: a sentence where it is one of ours."""
    return str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
