"""The names of a queue's keys. Together they lie in one slot of a cluster, those of its dead letters beside them."""

import random
from urllib.parse import quote, unquote

from penstock.messaging.broker import DEAD_LETTER_SUFFIX, SECOND_TIER_SUFFIX

_PLAIN = (
    " !$&'()*+,/;=?@[]^|~"  # besides letters, digits and -._ : what a name keeps as it is; braces and % it does not
)


def new_store() -> str:
    """A name for a queue that the server has to make: ids and receipts of it never meet those of another one.

    Asked for with every turn, and so not of the system's random numbers, which cost as much as a message (measured).
    """
    return f"{random.getrandbits(64):016x}"


def _shortened(name: str) -> str:
    """The name of the queue whose dead letters lie there, if the name says so."""
    for suffix in (DEAD_LETTER_SUFFIX, SECOND_TIER_SUFFIX):
        if name.endswith(suffix) and name != suffix:
            return name.removesuffix(suffix)
    return name


class QueueKeys:
    """The keys of all queues under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.queues = f"{prefix}:queues"
        self._prefix = prefix
        self._streams: dict[str, str] = {}  # any thread's: the same name gives the same key

    def base(self, queue: str) -> str:
        """What each key of the queue begins with: ``penstock:{orders}``, and for its dead letters
        ``penstock:{orders}-dlq`` and ``penstock:{orders}-dead``."""
        name = self._head(queue)
        return f"{self._prefix}:{{{quote(name, safe=_PLAIN)}}}{queue.removeprefix(name)}"

    def stream(self, queue: str) -> str:
        """The stream of what is handed over."""
        found = self._streams.get(queue)
        if found is None:
            found = self._streams[queue] = f"{self.base(queue)}:stream"
        return found

    def unescaped_stream(self, queue: str) -> str | None:
        """The key that a foreign sender takes for the stream if it writes the queue's name as it is; None if that is
        the stream."""
        if queue != self._head(queue):
            return None  # dead letters, which no foreign client sends
        plain = f"{self._prefix}:{{{queue}}}:stream"
        return None if plain == self.stream(unquote(queue)) else plain  # its own, or another queue's

    @staticmethod
    def _head(queue: str) -> str:
        """The name of the queue to whose keys those of the dead letters in ``queue`` belong."""
        name = queue
        while (shorter := _shortened(name)) != name:
            name = shorter
        return name

    def wake(self, queue: str) -> str:
        """The list in which a sender leaves a token."""
        return f"{self.base(queue)}:wake"

    def settings(self, queue: str) -> str:
        """The hash of what the queue was told."""
        return f"{self.base(queue)}:queue"
