"""Send scheduled messages: one per tick, regardless of the number of workers.

Every worker sends every tick with the same deduplication id, and the broker keeps the first. All workers use the
broker's clock: a worker whose own clock is ahead would send a tick so early that the broker has forgotten it when the
others send it. If a broker does not deduplicate, a worker sends a tick only after claiming it in the ledger, as a key
of the handler, and then records it. A send with an unknown outcome is recorded too: a tick is not sent twice.

A worker that starts shortly after a tick sends that tick, too, so that a deploy at the wrong second loses none. A tick
is skipped if no worker ran within `CATCH_UP_SECONDS` after it.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from penstock.errors import (
    ConfigurationError,
    InvalidMessage,
    PenstockError,
    TemporaryError,
    UnknownOutcome,
    UsageError,
)
from penstock.events import Bus, ScheduledMessageFailed, ScheduledMessageSent
from penstock.handlers.declaration import HandlerDeclaration
from penstock.handlers.keys import IdempotencyKeys, KeyBegun, KeyBusy, KeyClaim
from penstock.handlers.schedule import Schedule
from penstock.messaging.backoff import Random
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.schema import BodyCodec

CATCH_UP_SECONDS = 120.0  # well within the brokers' deduplication windows (5 minutes)
JITTER_SECONDS = 1.0
RETRY_SECONDS = 5.0
WAIT_SECONDS_MAX = 60.0  # wakes at least this often, since the wall clock may be set meanwhile
FORGET_SECONDS = 600.0  # between two deletions of expired tick records
# For ticks claimed in a ledger. A claim ends well within the time in which others may still send the tick.
CLAIM_SECONDS = 30.0
CLAIM_RESPONSE_SECONDS = 5.0  # timeout of the ledger when extending a claim
REMEMBERED_SECONDS = 86_400.0

ScheduledKeys = Callable[[HandlerDeclaration], IdempotencyKeys]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    declaration: HandlerDeclaration
    schedule: Schedule
    at: float  # epoch seconds, by the broker's clock
    keys: IdempotencyKeys | None  # of the ticks; None: the broker deduplicates


class Ticker:
    """The sender of all ticks of one worker. Its own thread calls `run`; any thread may call `end`.

    ``keys`` makes the keys under which a handler's ticks are claimed; needed if the broker does not deduplicate.
    """

    def __init__(
        self,
        declarations: Sequence[HandlerDeclaration],
        *,
        broker: Broker,
        clock: Clock,
        bus: Bus,
        random: Random,
        keys: ScheduledKeys | None = None,
    ) -> None:
        self._declarations = [declaration for declaration in declarations if declaration.schedule is not None]
        self._keys = None if broker.capabilities.deduplicates else keys
        if self._declarations and not broker.capabilities.deduplicates and keys is None:
            raise ConfigurationError(
                f"The handler {self._declarations[0].name} is scheduled, and its broker drops no duplicates: without a "
                "ledger that all workers share, every worker would send each tick; set ledger."
            )
        self._broker = broker
        self._clock = clock
        self._bus = bus
        self._random = random
        self._ended = threading.Event()
        # This and the next: written by the ticker's thread. The host's clock minus the broker's.
        self._ahead_seconds = 0.0
        self._forget_at = clock.monotonic() + FORGET_SECONDS

    def run(self) -> None:
        """Send each tick when it is due, until `end` is called."""
        with suppress(TemporaryError):  # each step compares again, and corrects a start with the host's clock
            self._compare_clocks()
        due = [self._first(declaration, self._now()) for declaration in self._declarations]
        while due and not self._ended.is_set():
            due = [self._step(entry) for entry in due]
            self._forget(due)
            seconds = min(entry.at for entry in due) - self._now() + JITTER_SECONDS * self._random()
            self._clock.wait(self._ended, min(max(seconds, 0.01), WAIT_SECONDS_MAX))

    def end(self) -> None:
        """Stop sending."""
        self._ended.set()

    def _compare_clocks(self) -> None:
        """Compare the host's clock with the broker's. Raises the errors of the broker."""
        self._ahead_seconds = self._clock.now() - self._broker.now()

    def _now(self) -> float:
        """Return the time by the broker's clock, as far as it is known."""
        return self._clock.now() - self._ahead_seconds

    def _first(self, declaration: HandlerDeclaration, now: float) -> _Due:
        schedule = declaration.schedule
        assert schedule is not None
        last = schedule.at_or_before(now)
        at = last if now - last <= CATCH_UP_SECONDS else schedule.after(now)
        keys = None if self._keys is None else self._keys(declaration)
        return _Due(declaration=declaration, schedule=schedule, at=at, keys=keys)

    def _step(self, due: _Due) -> _Due:
        try:
            self._compare_clocks()
        except Exception as error:  # the broker is unavailable, or any other fault: see `_try_send`
            self._bus.emit(
                ScheduledMessageFailed(handler=due.declaration.name, scheduled_at=due.at, error=_describe(error))
            )
            self._clock.wait(self._ended, RETRY_SECONDS * self._random())
            return due
        now = self._now()
        if due.at > now:  # the clock was set back, perhaps to before the previous tick
            return replace(due, at=min(due.at, due.schedule.after(now)))
        # After a suspend of the machine or a long failure: other workers have sent it, and brokers may have forgotten
        # that.
        if now - due.at > CATCH_UP_SECONDS:
            return self._first(due.declaration, now)
        if not self._try_send(due):
            self._clock.wait(self._ended, RETRY_SECONDS * self._random())
            return due
        return replace(due, at=due.schedule.after(max(now, due.at)))

    def _try_send(self, due: _Due) -> bool:
        """Return True if the tick was sent, by this worker or another."""
        try:
            if due.keys is not None:
                return self._send_claimed(due, due.keys)
            self._send(due)
        except Exception as error:  # any error: this thread must still send the ticks of all handlers
            self._bus.emit(
                ScheduledMessageFailed(handler=due.declaration.name, scheduled_at=due.at, error=_describe(error))
            )
            return False
        return True

    def _send_claimed(self, due: _Due, keys: IdempotencyKeys) -> bool:
        """Claim, send and record a tick. Return False while another worker holds the claim, to try again later."""
        begun = keys.begin(f"{due.at:.0f}")
        if not isinstance(begun, KeyBegun):
            return not isinstance(begun, KeyBusy)
        try:
            self._extend(begun.claim)
            self._send(due)
        except UnknownOutcome as error:  # it may be in the queue, and no tick is sent twice automatically
            begun.claim.finish("null")
            reason = f"{error}; it is not sent again"
            self._bus.emit(ScheduledMessageFailed(handler=due.declaration.name, scheduled_at=due.at, error=reason))
            return True
        except BaseException as error:
            with suppress(TemporaryError):  # then the claim ends with its lease
                begun.claim.fail(f"the tick was not sent: {error}")
            raise
        # The tick is sent. If this fails, the tick is sent again when the claim ends: late rather than never.
        begun.claim.finish("null")
        return True

    def _extend(self, claim: KeyClaim) -> None:
        """Extend a claim. Raises `TemporaryError` if it is lost or about to be; then another worker sends the tick."""
        held = claim.held
        extension = held.extender.extend(
            [held.id], lease_seconds=CLAIM_SECONDS, response_seconds=CLAIM_RESPONSE_SECONDS
        )
        if held.id in extension.lost or held.id in extension.locked:
            raise TemporaryError("the claim of the tick expired before the tick was sent, so another worker sends it")

    def _forget(self, due: Sequence[_Due]) -> None:
        """Delete expired tick records, at most once every `FORGET_SECONDS`."""
        if self._clock.monotonic() < self._forget_at:
            return
        self._forget_at = self._clock.monotonic() + FORGET_SECONDS
        with suppress(TemporaryError):
            for entry in due:
                if entry.keys is not None:
                    entry.keys.forget()

    def _send(self, due: _Due) -> None:
        codec: BodyCodec[Any] = BodyCodec(due.declaration.queue)
        outgoing = Outgoing(
            body=codec.encode(tick_body(due.at)),
            attributes=codec.attributes(),
            deduplication_id=f"{due.declaration.name}@{due.at:.0f}",
        )
        self._broker.send(due.declaration.queue.name, [outgoing])
        self._bus.emit(
            ScheduledMessageSent(handler=due.declaration.name, queue=due.declaration.queue.name, scheduled_at=due.at)
        )


def tick_body(at: float) -> dict[str, str]:
    """Return the body of a scheduled message: ``scheduled_at`` in ISO 8601.

    The queue's model needs a field of that name.
    """
    return {"scheduled_at": datetime.fromtimestamp(at, UTC).isoformat()}


def check_tick(declaration: HandlerDeclaration) -> None:
    """Raise `UsageError` if the queue's model does not accept the body of a tick."""
    codec: BodyCodec[Any] = BodyCodec(declaration.queue)
    try:
        body = codec.encode(tick_body(0.0))
        codec.decode(Message(id="tick", body=body, enqueued_at=0.0, attributes=codec.attributes()))
    except (UsageError, InvalidMessage) as error:
        raise UsageError(
            f"The handler {declaration.name} is scheduled, and its queue's model does not accept the body of a tick, "
            f'{{"scheduled_at": "<time>"}}: {error}'
        ) from error


def _describe(error: Exception) -> str:
    """Describe an error for an event: Penstock's own errors by their message, others with their type."""
    return str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
