"""Enqueue notifications for the objects of a scan, and detect when all of them have reached a terminal state.

An object that the scan found although the ledger has it as deleted or replaced is not done: that state is outdated.

`QueueDrainCheck` detects an empty queue. If a broker's counts are approximate, one check is no proof: on SQS they may
be 0 for a while after messages were sent or received. So the count must stay 0 for longer than a poll takes. The worker
that asks polls meanwhile, and a long poll queries every server that might have a message.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from penstock.errors import PenstockError
from penstock.events import SourceScanned
from penstock.ledger import Ledger
from penstock.ledger.records import TERMINAL, UNREAD, ObjectState
from penstock.messaging.broker import Broker
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.message import Outgoing
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.objects.notification import announce
from penstock.objects.reference import ObjectRef

CALM_SECONDS = 6.0  # a poll takes at most 5


class QueueDrainCheck:
    """Check whether one queue is empty. Used by one thread at a time."""

    def __init__(self, broker: Broker, queue: str, *, clock: Clock) -> None:
        self._broker = broker
        self._queue = queue
        self._clock = clock
        self._since: float | None = None  # monotonic: every check since then found no messages

    def messages(self) -> int:
        """Return the number of messages in any state, as exact as the broker can count."""
        return self._broker.stats(self._queue).messages

    def doubt(self) -> None:
        """Restart the check, because a message was sent."""
        self._since = None

    def sure(self) -> bool:
        """Return True if the queue is empty.

        With approximate counts, call it repeatedly: the first call returns False.
        """
        if self.messages():
            self._since = None
            return False
        if self._broker.capabilities.exact_stats:
            return True
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= CALM_SECONDS


SEND_CHUNK = 1_000  # messages per broker call


def announce_all(broker: Broker, queue: str, refs: Sequence[ObjectRef], *, probe: Probe = no_probe) -> None:
    """Send one notification per object. Repeats do no harm."""
    for start in range(0, len(refs), SEND_CHUNK):
        broker.send(queue, [Outgoing(body=announce(ref)) for ref in refs[start : start + SEND_CHUNK]])
        probe(Step.ANNOUNCED)


ANNOUNCEMENTS_MAX = 5  # of one object by one process; more of them are reported as an error

_SYSTEM_CLOCK = SystemClock()  # stateless


class PendingObjects:
    """The objects of a scan, and which of them are not in a terminal state yet. Objects can be added. Thread-safe."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        broker: Broker,
        pipeline: str,
        queue: str,
        free_the_dead: Callable[[], object],
        probe: Probe,
        objects: Sequence[ObjectRef],
        clock: Clock = _SYSTEM_CLOCK,
    ) -> None:
        """Create it with the first objects. ``free_the_dead`` releases whatever processes proven dead hold."""
        self._ledger = ledger
        self._broker = broker
        self._pipeline = pipeline
        self._queue = queue
        self._free_the_dead = free_the_dead
        self._probe = probe
        self._emptiness = QueueDrainCheck(broker, queue, clock=clock)
        self._lock = threading.RLock()  # guards every field below
        self._announcements: Counter[bytes] = Counter()
        self._refs: dict[bytes, ObjectRef] = {}
        self._outdated: dict[bytes, float] = {}  # end times of the states that the scan proved to be outdated
        self._unread: set[bytes] = set()  # ended like this since the scan: another scan may find them again
        self.before: dict[bytes, ObjectState] = {}
        self.unfinished: set[bytes] = set()
        self.take(objects)

    @property
    def size(self) -> int:
        """The number of objects."""
        return len(self._refs)

    def scanned(self, source: str) -> SourceScanned:
        """Return the event that reports the scan. Call it before the first notification is sent."""
        with self._lock:
            return SourceScanned(
                source=source, found=self.size, unfinished=len(self.unfinished), messages=self.messages()
            )

    def reached_before(self) -> bool:
        """Return True if nothing is left to do: neither objects nor messages that a killed process did not settle."""
        return not self.unfinished and not self._broker.stats(self._queue).visible

    def begin(self) -> None:
        """Send notifications, unless the queue holds messages.

        Messages of a killed process, or of one that runs at the same time, are processed first; `reached` then sends
        notifications for the remaining objects. Otherwise every crash would double the queue.
        """
        if not self.messages():
            self.announce()

    def take(self, objects: Iterable[ObjectRef]) -> Sequence[bytes]:
        """Add objects without sending notifications; return the ids of those that are not done."""
        refs = {ref.object_id: ref for ref in objects}
        with self._lock:
            known = dict(self._ledger.states(self._pipeline, list(refs))) if refs else {}
            outdated = self._ends_of_unread(known)
            for object_id in outdated:
                known.pop(object_id, None)
            new = [object_id for object_id in refs if known.get(object_id) not in TERMINAL]
            self._refs |= refs
            self._outdated |= outdated
            self._unread -= refs.keys()
            self.before |= known
            self.unfinished.update(new)
            return new

    def add(self, objects: Iterable[ObjectRef]) -> None:
        """Add objects that were found later, and send notifications for those that are new and not done."""
        with self._lock:
            new = self.take(
                [ref for ref in objects if ref.object_id not in self._refs or ref.object_id in self._unread]
            )
            self._send([self._refs[object_id] for object_id in new])

    def announce(self) -> None:
        """Send a notification for every unfinished object that no worker is processing. Repeats do no harm."""
        with self._lock:
            live = self._ledger.live(self._pipeline, list(self.unfinished))
            self._send([ref for object_id, ref in self._refs.items() if object_id in self.unfinished - live])

    def reached(self) -> bool:
        """Return True if all objects are done. Called by the idle worker.

        If the queue is empty but objects are not done (a message was purged, or its sender died between two steps),
        their notifications are sent again. Leftover messages for finished objects, delayed because another worker held
        the object, are processed before this returns True, so that none stays behind.
        """
        with self._lock:
            states = self._standing(self.unfinished)
            self._unread |= {object_id for object_id, state in states.items() if state in UNREAD}
            self.unfinished = {object_id for object_id in self.unfinished if states.get(object_id) not in TERMINAL}
            if self.unfinished:
                self._free_the_dead()
                if self._emptiness.sure():
                    self.announce()
                return False
            stats = self._broker.stats(self._queue)
            return not stats.visible and not stats.delayed

    def objects(self) -> Sequence[ObjectRef]:
        """Return all objects."""
        with self._lock:
            return list(self._refs.values())

    def states(self) -> dict[bytes, ObjectState]:
        """Return the current state of every object; unprocessed if the ledger does not know it."""
        with self._lock:
            known = self._standing(self._refs)
            return {object_id: known.get(object_id, ObjectState.UNPROCESSED) for object_id in self._refs}

    def _standing(self, object_ids: Collection[bytes]) -> dict[bytes, ObjectState]:
        """Return the states of these objects, without those that the scan proved to be outdated."""
        states = dict(self._ledger.states(self._pipeline, list(object_ids)))
        for object_id, ended_at in self._ends_of_unread(states).items():
            if self._outdated.get(object_id) == ended_at:
                del states[object_id]
        return states

    def _ends_of_unread(self, states: Mapping[bytes, ObjectState]) -> Mapping[bytes, float]:
        unread = [object_id for object_id, state in states.items() if state in UNREAD]
        return self._ledger.unread(self._pipeline, unread) if unread else {}

    def left(self) -> int:
        """Return the number of objects that are not in a terminal state."""
        return sum(1 for state in self.states().values() if state not in TERMINAL)

    def done_before(self) -> int:
        """Return the number of objects that were in a terminal state when they were found."""
        with self._lock:
            return sum(1 for state in self.before.values() if state in TERMINAL)

    def messages(self) -> int:
        """Return the number of messages in the queue in any state, as exact as the broker can count."""
        return self._emptiness.messages()

    def emptied(self) -> bool:
        """Return True if the queue is proven empty."""
        return self._emptiness.sure()

    def _send(self, missing: Sequence[ObjectRef]) -> None:
        if missing:
            self._emptiness.doubt()
        announce_all(self._broker, self._queue, missing, probe=self._probe)
        self._count(missing)

    def _count(self, refs: Sequence[ObjectRef]) -> None:
        self._announcements.update(ref.object_id for ref in refs)
        for ref in refs:
            if self._announcements[ref.object_id] > ANNOUNCEMENTS_MAX:
                raise PenstockError(
                    f"{ref.uri} was announced {ANNOUNCEMENTS_MAX} times and is still not done, nor dead; look at "
                    f"`penstock objects show` and `penstock dead list`, and report it."
                )
