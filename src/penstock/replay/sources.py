"""Which queues share one first tier, and to which of them a dead letter goes back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.messaging.broker import listed_name, names_dead_letters
from penstock.messaging.death import death_of
from penstock.messaging.delivery import Delivery
from penstock.replay.policy import ReplayPolicy, SetAside


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A queue whose dead letters come back to it."""

    queue: str
    policy: ReplayPolicy
    retention_seconds: float | None = None  # of the queue; None: for ever, or nobody can tell


class Sources:
    """Those of one first tier: at least one."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._all = tuple(sources)
        self._by_name: Mapping[str, Source] = {listed_name(source.queue): source for source in sources}

    def __iter__(self) -> Iterator[Source]:
        return iter(self._all)

    def named(self, queue: str) -> Source | None:
        """The one of this name, URL or ARN."""
        return self._by_name.get(listed_name(queue))

    def of(self, letter: Delivery) -> Source | SetAside:
        """Where it died; or why nobody can say. What a letter says of itself may be forged: it opens no other queue.

        What the broker moved by itself nobody wrote a death on: one that it has is an older one, or the sender's.
        """
        death = death_of(letter.message.attributes)
        queue = None if death is None else death.queue
        if letter.moved_from is not None and not names_dead_letters(letter.moved_from):
            queue = letter.moved_from
        if queue is None:
            if len(self._all) == 1:
                return self._all[0]
            names = ", ".join(source.queue for source in self._all)
            return SetAside(reason=f"nothing says which queue it died in: {names} share this one")
        found = self.named(queue)
        return found or SetAside(reason=f"it died in the queue {queue[:200]}, whose dead letters do not come back here")
