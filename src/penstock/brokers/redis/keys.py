"""The names of a queue's keys. They lie in one slot of a cluster, together with those of its dead-letter queues."""

import random
from urllib.parse import quote, unquote

from penstock.messaging.broker import DEAD_LETTER_SUFFIX, FINAL_DLQ_SUFFIX

_PLAIN = " !$&'()*+,/;=?@[]^|~"  # kept unescaped, with letters, digits and -._ ; braces and % are escaped


def new_store() -> str:
    """Return a store name, for use if the server has to create the queue. It keeps ids and receipt handles unique.

    Each turn needs one, so it does not come from the system's random source, which costs as much as a message
    (measured).
    """
    return f"{random.getrandbits(64):016x}"


class QueueKeys:
    """The keys of all queues under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.queues = f"{prefix}:queues"
        self._prefix = prefix
        self._streams: dict[str, str] = {}  # written by any thread: a name always maps to the same key

    def base(self, queue: str) -> str:
        """Return the beginning of the queue's keys: ``penstock:{orders}``, and for its dead letters
        ``penstock:{orders}-dlq`` and ``penstock:{orders}-dead``.
        """
        name = self._head(queue)
        return f"{self._prefix}:{{{quote(name, safe=_PLAIN)}}}{queue.removeprefix(name)}"

    def stream(self, queue: str) -> str:
        """Return the key of the stream of deliveries."""
        found = self._streams.get(queue)
        if found is None:
            found = self._streams[queue] = f"{self.base(queue)}:stream"
        return found

    def unescaped_stream(self, queue: str) -> str | None:
        """Return the stream key that a foreign sender would use with the unescaped queue name; None if that is the
        right key.
        """
        if queue != self._head(queue):
            return None  # a dead-letter queue, to which no foreign client sends
        plain = f"{self._prefix}:{{{queue}}}:stream"
        return None if plain == self.stream(unquote(queue)) else plain  # the stream of this queue, or of another

    def wake_key(self, queue: str) -> str:
        """Return the key of the list for the wake-up token."""
        return f"{self.base(queue)}:wake"

    def settings(self, queue: str) -> str:
        """Return the key of the hash with the queue's settings."""
        return f"{self.base(queue)}:queue"

    @staticmethod
    def _head(queue: str) -> str:
        """Return the name of the source queue, without any dead-letter suffixes."""
        name = queue
        while (shorter := _shortened(name)) != name:
            name = shorter
        return name


def _shortened(name: str) -> str:
    """Return the name without its dead-letter suffix, if it has one."""
    for suffix in (DEAD_LETTER_SUFFIX, FINAL_DLQ_SUFFIX):
        if name.endswith(suffix) and name != suffix:
            return name.removesuffix(suffix)
    return name
