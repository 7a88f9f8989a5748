"""All letters of a queue back at once, moved by the broker itself. SQS alone can."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from penstock.app.dead_letters import Asked, audited, has_letters, letter_queues
from penstock.app.dead_places import check_destination
from penstock.app.inspect import View
from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.messaging.broker import listed_name, names_second_tier
from penstock.replay.filters import source_of
from penstock.replay.operator import Stopped, Told


class Progress(Protocol):
    """How far a task is."""

    @property
    def moved(self) -> int: ...


class Task(Iterator[Progress], AbstractContextManager["Task"], Protocol):
    """Moves while it is iterated over; leaving the block before its end cancels it."""


@runtime_checkable
class Mover(Protocol):
    """A broker that moves whole queues by itself."""

    def move_all(self, source: str, destination: str | None = None, *, per_second: int | None = None) -> Task:
        """Without a destination: to the one queue whose dead letters these are."""
        ...


def check_movable(seen: View, asked: Asked, *, to: str | None) -> Mover:
    """Raises `UsageError` for a broker that cannot, for filters, of which a move knows none, and for a destination that
    holds letters."""
    if not isinstance(seen.broker, Mover):
        raise UsageError("--move is for SQS, which has tasks for it; leave it out here.")
    if asked.queue is None or not asked.wanted.asks_nothing or asked.limit is not None:
        raise UsageError("--move takes whole queues: give --queue, and --tier if need be, and no other filter.")
    if to is not None:
        check_destination(seen, to)
    return seen.broker


def move(
    seen: View, asked: Asked, *, to: str | None, rate: float | None, ledger: Ledger, stopped: Stopped, told: Told
) -> int:
    """Let every letter of the queues that are meant be moved; answers how many were, about.

    Raises `UsageError` as `check_movable` does.
    """
    mover = check_movable(seen, asked, to=to)
    moved = 0
    for queue in letter_queues(seen, asked):
        if stopped() or not has_letters(seen.broker, queue):
            continue
        details = {**asked.details, "to": to, "rate": rate}
        with audited(ledger, "move", queue=queue, details=details, stopped=stopped) as done:
            per_second = None if rate is None else max(1, int(rate))
            with mover.move_all(queue, to or _destination(queue), per_second=per_second) as task:
                for progress in task:
                    told(progress.moved - done.messages)
                    done.messages = progress.moved
                    if stopped():
                        break
        moved += done.messages
    return moved


def _destination(queue: str) -> str | None:
    """Of the second tier not the first one, whose dead letters these are as far as SQS knows."""
    return source_of(listed_name(queue)) if names_second_tier(listed_name(queue)) else None
