"""Watch one replayed message until it is settled, to find out if the cause of the failures still exists.

It is settled once it is deleted from its queue and not back in a DLQ. A queue that cannot be browsed shows only whether
it is empty; while other messages keep it busy, the result stays unknown.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.dead_letters.reader import PAGE, dead_letters_in
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock
from penstock.messaging.death import death_of, earlier_deaths_of
from penstock.messaging.message import Message
from penstock.messaging.replay import REPLAY_ID_ATTRIBUTE

_POLL_SECONDS_MIN, _POLL_SECONDS_MAX = 0.2, 5.0
_PAUSE_SECONDS = 0.2
_EMPTY_POLLS = 2  # in a row, if the broker only estimates its counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A replayed message to watch."""

    queue: str  # the queue it was sent to
    message_id: str  # its id in that queue
    replay_id: str
    dead_letter_queues: Sequence[str]  # the queues it would be in after failing again


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryResult:
    """The result of watching, also as a sentence."""

    status: Literal["settled", "died", "unknown", "not watched"]
    text: str


def unwatched(canary: Canary) -> CanaryResult:
    """Return the result for a message that was sent but not watched."""
    return CanaryResult(status="not watched", text=f"it was sent to {canary.queue} and is not watched any more")


def watch(canary: Canary, broker: Broker, *, seconds: float, clock: Clock, stopped: Callable[[], bool]) -> CanaryResult:
    """Poll until the message is settled or dead-lettered, the time is over, or ``stopped`` returns True."""
    began_at = clock.monotonic()
    pause_seconds = _POLL_SECONDS_MIN
    empty = 0
    while True:
        polled_at = clock.monotonic()
        waiting = _in_queue(canary, broker)
        empty = 0 if waiting else empty + 1
        if not waiting and (broker.capabilities.exact_stats or empty >= _EMPTY_POLLS):
            return _search_dead_letters(canary, broker)
        if isinstance(waiting, Message) and _died_before(canary, waiting):
            return CanaryResult(status="died", text=f"it died, and was already replayed to {canary.queue} again")
        now = clock.monotonic()
        left = began_at + seconds - now
        if left <= 0 or stopped():
            return _undecided(canary, broker, seconds=now - began_at)
        # Polls become rarer with time, and the slower each of them is.
        pause_seconds = min(max(2 * pause_seconds, 2 * (now - polled_at)), _POLL_SECONDS_MAX)
        _pause(min(pause_seconds, left), clock, stopped)


def _in_queue(canary: Canary, broker: Broker) -> Message | bool:
    """Return the message, or False. For a queue that cannot be browsed, return True unless it is empty."""
    if not broker.capabilities.browsable:
        stats = broker.stats(canary.queue)
        return bool(stats.visible or stats.in_flight or stats.delayed)
    return next((message for message in _messages(broker, canary.queue) if _is_canary(canary, message)), False)


def _messages(broker: Broker, queue: str) -> Iterator[Message]:
    after: str | None = None
    while page := broker.browse(queue, messages_max=PAGE, after_id=after):
        yield from page
        after = page[-1].id


def _search_dead_letters(canary: Canary, broker: Broker) -> CanaryResult:
    """Search the DLQs after the message left its queue: a broker adds to the DLQ before it deletes from the queue."""
    for queue in canary.dead_letter_queues:
        with dead_letters_in(broker, queue) as dead_letters:
            for page in dead_letters.pages():
                if found := next(
                    (dead_letter for dead_letter in page if _is_canary(canary, dead_letter.message)), None
                ):
                    why = found.death.reason if found.death is not None else "no reason is recorded"
                    return CanaryResult(status="died", text=f"it died again, and is in {queue} as {found.id}: {why}")
    return CanaryResult(status="settled", text=f"it has left {canary.queue} and is not among the dead letters")


def _undecided(canary: Canary, broker: Broker, *, seconds: float) -> CanaryResult:
    if broker.capabilities.browsable:
        return CanaryResult(status="unknown", text=f"it is still in {canary.queue} after {seconds:.0f} s")
    died = _search_dead_letters(canary, broker)
    if died.status == "died":
        return died
    return CanaryResult(
        status="unknown",
        text=f"after {seconds:.0f} s it is not among the dead letters, but {canary.queue} is not empty, and SQS "
        "cannot report whether a single message is still there",
    )


def _is_canary(canary: Canary, message: Message) -> bool:
    return (
        message.id == canary.message_id
        or message.attributes.get(REPLAY_ID_ATTRIBUTE) == canary.replay_id
        or _died_before(canary, message)
    )


def _died_before(canary: Canary, message: Message) -> bool:
    death = death_of(message.attributes)
    history = [earlier.message_id for earlier in earlier_deaths_of(message.attributes)]
    return canary.message_id in (history if death is None else [*history, death.message_id])


def _pause(seconds: float, clock: Clock, stopped: Callable[[], bool]) -> None:
    until = clock.monotonic() + seconds
    while (left := until - clock.monotonic()) > 0 and not stopped():
        clock.wait(threading.Event(), min(left, _PAUSE_SECONDS))
