"""What a scan found, in a terminal state: announcing it, and when that is reached.

An object that a scan found although the ledger has it as deleted or replaced is not done: that end is out of date.

Whether a queue is empty.

Where a broker's counts are only nearly right (SQS: they may be 0 for a while after messages were sent, or received),
one look is no proof. So they have to say it for longer than a poll takes: the worker that asks polls meanwhile, and a
poll that waits asks every server that might have a message.

Sending notifications for objects that are there.
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

CALM_SECONDS = 6.0  # a poll is 5 at most


class QueueDrainCheck:
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


SEND_CHUNK = 1_000  # messages handed to the broker in one call


def announce_all(broker: Broker, queue: str, refs: Sequence[ObjectRef], *, probe: Probe = no_probe) -> None:
    """Send one notification an object. Repeats do no harm."""
    for start in range(0, len(refs), SEND_CHUNK):
        broker.send(queue, [Outgoing(body=announce(ref)) for ref in refs[start : start + SEND_CHUNK]])
        probe(Step.ANNOUNCED)


ANNOUNCEMENTS_MAX = 5  # of one object by one process, before we say that something is wrong with it

_SYSTEM_CLOCK = SystemClock()  # holds no state


class PendingObjects:
    """Every object of a scan in a terminal state. Objects may be added; any thread may call it."""

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
        """``free_the_dead`` frees what processes proven dead hold."""
        self._ledger = ledger
        self._broker = broker
        self._pipeline = pipeline
        self._queue = queue
        self._free_the_dead = free_the_dead
        self._probe = probe
        self._emptiness = QueueDrainCheck(broker, queue, clock=clock)
        self._lock = threading.RLock()  # every field below is read and written under it
        self._announcements: Counter[bytes] = Counter()
        self._refs: dict[bytes, ObjectRef] = {}
        self._outdated: dict[bytes, float] = {}  # when those ended that the scan found although they were never read
        self._unread: set[bytes] = set()  # that ended so since then: another scan may find them again
        self.before: dict[bytes, ObjectState] = {}
        self.unfinished: set[bytes] = set()
        self.take(objects)

    @property
    def size(self) -> int:
        """How many objects there are."""
        return len(self._refs)

    def scanned(self, source: str) -> SourceScanned:
        """Return the event that reports the scan. Call it before anything is announced."""
        with self._lock:
            return SourceScanned(
                source=source, found=self.size, unfinished=len(self.unfinished), messages=self.messages()
            )

    def reached_before(self) -> bool:
        """Whether there is nothing to do, not even messages that a killed process did not live to settle."""
        return not self.unfinished and not self._broker.stats(self._queue).visible

    def begin(self) -> None:
        """Announce, unless messages of a process that was killed, or of one beside us, still wait: those are worked
        off first, and `reached` announces what they did not name. Else every death would double the queue."""
        if not self.messages():
            self.announce()

    def take(self, objects: Iterable[ObjectRef]) -> Sequence[bytes]:
        """Make them part of the goal, without a word; answers those that are not done."""
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
        """Objects that were found later: announced at once unless they are done, or known already."""
        with self._lock:
            new = self.take(
                [ref for ref in objects if ref.object_id not in self._refs or ref.object_id in self._unread]
            )
            self._send([self._refs[object_id] for object_id in new])

    def announce(self) -> None:
        """Send a notification for every unfinished object that nobody works on. Repeats do no harm."""
        with self._lock:
            live = self._ledger.live(self._pipeline, list(self.unfinished))
            self._send([ref for object_id, ref in self._refs.items() if object_id in self.unfinished - live])

    def reached(self) -> bool:
        """Asked by the idle worker. Where messages are gone but objects are not done (a message was purged, or its
        sender died between two steps), they are announced again. Messages that only repeat what is done, and wait
        because somebody was at it, are worked off before we say yes, so that none stays behind."""
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
        """All of them."""
        with self._lock:
            return list(self._refs.values())

    def states(self) -> dict[bytes, ObjectState]:
        """Where every object stands now; what the ledger never saw is unprocessed."""
        with self._lock:
            known = self._standing(self._refs)
            return {object_id: known.get(object_id, ObjectState.UNPROCESSED) for object_id in self._refs}

    def _standing(self, object_ids: Collection[bytes]) -> dict[bytes, ObjectState]:
        """Where these stand, without those whose end is the one that the scan proved to be out of date."""
        states = dict(self._ledger.states(self._pipeline, list(object_ids)))
        for object_id, ended_at in self._ends_of_unread(states).items():
            if self._outdated.get(object_id) == ended_at:
                del states[object_id]
        return states

    def _ends_of_unread(self, states: Mapping[bytes, ObjectState]) -> Mapping[bytes, float]:
        unread = [object_id for object_id, state in states.items() if state in UNREAD]
        return self._ledger.unread(self._pipeline, unread) if unread else {}

    def left(self) -> int:
        """How many are in no terminal state."""
        return sum(1 for state in self.states().values() if state not in TERMINAL)

    def done_before(self) -> int:
        """How many were in a terminal state when they were found."""
        with self._lock:
            return sum(1 for state in self.before.values() if state in TERMINAL)

    def messages(self) -> int:
        """How many are in the queue, in any state, as near as the broker can tell."""
        return self._emptiness.messages()

    def emptied(self) -> bool:
        """Whether there are none in the queue for sure."""
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
