"""Collect the messages that a worker has leased, for its record."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest

HELD_MAX = 100  # messages in a record, the oldest ones


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMessage:
    """A message that a worker has leased. Times are epoch seconds of its host's clock."""

    queue: str
    message_id: str
    since: float  # when the worker received it


class HeldMessages:
    """The leased messages of one worker. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._received: dict[str, dict[str, float]] = {}  # times by message id, by queue; under the lock

    def add(self, queue: str, message_ids: Sequence[str], *, at: float) -> None:
        """Record messages that were received at ``at``."""
        with self._lock:
            self._received.setdefault(queue, {}).update(dict.fromkeys(message_ids, at))

    def remove(self, queue: str, message_ids: Sequence[str]) -> None:
        """Forget messages that were settled or lost."""
        with self._lock:
            received = self._received.get(queue, {})
            for message_id in message_ids:
                received.pop(message_id, None)

    def count(self) -> int:
        """Return the number of messages."""
        with self._lock:
            return sum(map(len, self._received.values()))

    def oldest(self, count_max: int = HELD_MAX) -> tuple[HeldMessage, ...]:
        """Return the messages held for longest, the oldest first."""
        with self._lock:
            found = [(at, queue, one) for queue, ids in self._received.items() for one, at in ids.items()]
        return tuple(
            HeldMessage(queue=queue, message_id=message_id, since=at)
            for at, queue, message_id in nsmallest(count_max, found)
        )
