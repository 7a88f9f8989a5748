"""Whether a queue is empty.

Where a broker's counts are only nearly right (SQS: they may be 0 for a while after messages were sent, or received),
one look is no proof. So they have to say it for longer than a poll takes: the worker that asks polls meanwhile, and a
poll that waits asks every server that might have a message.
"""

from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock

CALM_SECONDS = 6.0  # a poll is 5 at most


class Emptiness:
    """Of one queue. Asked by one thread at a time."""

    def __init__(self, broker: Broker, queue: str, *, clock: Clock) -> None:
        self._broker = broker
        self._queue = queue
        self._clock = clock
        self._since: float | None = None  # monotonic: since then all looks found nothing

    def messages(self) -> int:
        """How many there are, in any state, as near as the broker can tell."""
        return self._broker.stats(self._queue).messages

    def doubt(self) -> None:
        """Something was sent to it."""
        self._since = None

    def sure(self) -> bool:
        """Whether there is nothing. Where counts are only nearly right, ask again: the first answer is never yes."""
        if self.messages():
            self._since = None
            return False
        if self._broker.capabilities.exact_stats:
            return True
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= CALM_SECONDS
