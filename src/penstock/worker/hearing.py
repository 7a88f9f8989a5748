"""Being told of arrivals, so that an idle worker begins at once what comes."""

import threading
from collections.abc import Sequence, Set

from penstock.messaging.broker import Broker, Listening


class Hearing:
    """Whether the broker is to tell of the next arrival, and whether it did. The I/O thread's, but for the telling."""

    def __init__(self, *, broker: Broker, queues: Sequence[str], wake: threading.Event) -> None:
        self._broker = broker
        self._queues = queues
        self._wake = wake
        self._listening: Listening | None = None
        self._wanted: Set[str] = frozenset()  # said last, and not answered so far
        self._told = False  # set by the broker's thread, unset by the I/O thread

    @property
    def wanted(self) -> Set[str]:
        """The queues of which the next arrival is going to be told, or was."""
        return self._wanted

    def open(self) -> None:
        """Begin to listen."""
        self._listening = self._broker.listen(self._queues, self._tell)

    def want(self, queues: Set[str]) -> None:
        """Of which queues arrivals are to be told from here on; cheap to repeat."""
        if self._wanted != queues and self._listening is not None:
            self._wanted = queues
            self._listening.want(queues)

    def told(self) -> bool:
        """Whether the broker told of an arrival since this was asked last; then `want` has to be said again."""
        if not self._told:
            return False
        self._told, self._wanted = False, frozenset()
        return True

    def close(self) -> None:
        """Listen no more."""
        if self._listening is not None:
            self._listening.close()

    def _tell(self) -> None:
        self._told = True  # before waking: who is awake looks here
        self._wake.set()
