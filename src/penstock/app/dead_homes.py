"""Which queue a dead letter goes back to: the first of those it tells of whose dead letters do lie where it is.

What a letter says of its death is an attribute, and whoever sends messages can write those. So it is believed only
where the broker says the same: else a person who sends letters back would send them wherever a stranger likes.
"""

from functools import lru_cache

from penstock.app.queues import tiers
from penstock.errors import ConfigurationError
from penstock.messaging.broker import Broker, listed_name
from penstock.replay.filters import origins_of
from penstock.replay.letters import Letter

ANSWERS_MAX = 1_000  # that are remembered: letters may name any number of queues


class Homes:
    """The queues of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known = set(broker.queue_names()) if broker.capabilities.creates_queues else None
        self._is_home = lru_cache(maxsize=ANSWERS_MAX)(self._lie_there)

    def of(self, letter: Letter) -> str | None:
        """None where it tells of no such queue, or of none that is there."""
        return next((queue for queue in origins_of(letter) if self._is_home(queue, letter.queue)), None)

    def _lie_there(self, queue: str, letters: str) -> bool:
        if self._known is not None and queue not in self._known:
            return False
        try:
            return listed_name(letters) in map(listed_name, tiers(self._broker, queue))
        except ConfigurationError:  # no queue can have that name, or it is not ours to ask about
            return False
