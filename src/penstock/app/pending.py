"""Enqueue notifications for the objects of a scan, and detect when all of them have reached a terminal state.

An object that the scan found although the ledger has it as deleted or replaced is not done: that state is outdated.
Nor is a processed one if another version was committed after it and the pipeline replaces rows: it has changed back.

`QueueDrainCheck` detects an empty queue. If a broker's counts are approximate, one check proves nothing: on SQS they
may be 0 for a while after messages were sent or received. So the count must stay 0 for longer than a poll takes. The
worker polls meanwhile, and a long poll queries every server that might have a message.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from penstock.errors import PenstockError
from penstock.events import SourceScanned
from penstock.ledger import Ledger
from penstock.ledger.records import TERMINAL, UNREAD, ObjectState, OnChange
from penstock.messaging.broker import SEND_CHUNK, Broker
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.message import Outgoing
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.objects.notification import announce
from penstock.objects.reference import ObjectRef

STATES_AT_ONCE = 1_000  # objects of one query
CALM_SECONDS = 6.0  # longer than a poll, which takes at most 5 s


class QueueDrainCheck:
    """Check whether one queue is empty. Used by one thread at a time."""

    def __init__(self, broker: Broker, queue: str, *, clock: Clock) -> None:
        self._broker = broker
        self._queue = queue
        self._clock = clock
        self._empty_since: float | None = None  # monotonic: every sample since then found no messages
        self._sampled_at = 0.0  # monotonic: the last sample

    def messages(self) -> int:
        """Return the number of messages in any state, as exact as the broker can count."""
        return self._broker.stats(self._queue).messages

    def is_empty(self) -> bool:
        """Return True if the broker knows of no message. Reads no more if there are many of them."""
        return self._broker.is_empty(self._queue)

    @property
    def is_drained(self) -> bool:
        """True if the samples prove that the queue is empty: the last one if counts are exact, else several."""
        if self._empty_since is None:
            return False
        return self._broker.capabilities.exact_stats or self._sampled_at - self._empty_since >= CALM_SECONDS

    def sample(self) -> None:
        """Look for messages. With approximate counts, call it repeatedly until `is_drained`."""
        is_empty = self.is_empty()
        self._sampled_at = self._clock.monotonic()
        if not is_empty:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = self._sampled_at

    def restart(self) -> None:
        """Discard the samples, because a message was sent."""
        self._empty_since = None


def announce_all(broker: Broker, queue: str, refs: Sequence[ObjectRef], *, probe: Probe = no_probe) -> None:
    """Send one notification per object. Repeats do no harm."""
    for start in range(0, len(refs), SEND_CHUNK):
        broker.send(queue, [Outgoing(body=announce(ref)) for ref in refs[start : start + SEND_CHUNK]])
        probe(Step.ANNOUNCED)


ANNOUNCEMENTS_MAX = 5  # notifications of one object by one process; more of them are an error

_SYSTEM_CLOCK = SystemClock()  # stateless


def always_add() -> OnChange:
    """Return the rule for objects that change of a pipeline or object handler that replaces no rows."""
    return OnChange.ADD


class PendingObjects:
    """The objects of a scan, and which of them are not in a terminal state yet. Objects can be added. Thread-safe."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        broker: Broker,
        pipeline: str,
        queue: str,
        release_dead: Callable[[], object],
        probe: Probe,
        objects: Sequence[ObjectRef],
        change_rule: Callable[[], OnChange] = always_add,
        clock: Clock = _SYSTEM_CLOCK,
    ) -> None:
        """``objects`` are the first ones. ``release_dead`` releases everything that dead processes hold.

        ``change_rule`` returns what the pipeline does with objects that change.
        """
        self._ledger = ledger
        self._broker = broker
        self._pipeline = pipeline
        self._queue = queue
        self._release_dead = release_dead
        self._change_rule = change_rule
        self._probe = probe
        self.drain_check = QueueDrainCheck(broker, queue, clock=clock)
        self._lock = threading.RLock()  # guards every field below
        self._announcements: Counter[bytes] = Counter()
        self._refs: dict[bytes, ObjectRef] = {}
        self._outdated: dict[bytes, float] = {}  # end times of outdated states: the scan found these objects
        self._begun: set[bytes] = set()  # not done, but in the ledger when its states were last read
        self._unread: set[bytes] = set()  # deleted or replaced since the scan: another scan may find them again
        self._processed: set[bytes] = set()  # for good: their states are not read again
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

    def has_work(self) -> bool:
        """Return True if objects are not done, or messages are visible that a killed process did not settle."""
        return bool(self.unfinished) or bool(self._broker.stats(self._queue).visible)

    def begin(self) -> None:
        """Send notifications, unless the queue holds messages.

        Messages of a killed process, or of one that runs at the same time, are processed first; `advance` then sends
        notifications for the remaining objects. Otherwise every crash would double the queue.
        """
        if self.drain_check.is_empty():
            self.announce()

    def take(self, objects: Iterable[ObjectRef]) -> Sequence[bytes]:
        """Add objects without sending notifications; return the ids of those that are not done."""
        refs = {ref.object_id: ref for ref in objects}
        with self._lock:
            known = dict(self._ledger.states(self._pipeline, list(refs))) if refs else {}
            outdated = self._ends_of_unread(known)
            for object_id in (*outdated, *self._changed_back(known)):
                known.pop(object_id, None)
            new = [object_id for object_id in refs if known.get(object_id) not in TERMINAL]
            self._refs |= refs
            self._outdated |= outdated
            self._unread -= refs.keys()
            for object_id in refs.keys() & self._processed:
                self._announcements.pop(object_id, None)  # those before were for another time that it was there
            self._processed -= refs.keys()
            self._begun.update(object_id for object_id in new if object_id in known)
            self.before |= known
            self._processed |= _processed(known)
            self.unfinished.update(new)
            return new

    def add(self, objects: Iterable[ObjectRef]) -> None:
        """Add objects that were found later, and send notifications for those that are new and not done."""
        objects = list(objects)
        with self._lock:
            # The scan may have found objects again whose end was not read yet.
            self._read_states([ref.object_id for ref in objects if ref.object_id in self.unfinished])
            again = self._unread
            if self._change_rule().replaces:  # an object that changed back is in an earlier version again
                again = again | self._processed
            new = self.take([ref for ref in objects if ref.object_id not in self._refs or ref.object_id in again])
            self._send([self._refs[object_id] for object_id in new])

    def announce(self) -> None:
        """Send a notification for every unfinished object that no worker is processing. Repeats do no harm."""
        with self._lock:
            begun = self._begun & self.unfinished  # no worker processes an object that the ledger does not know
            free = self.unfinished - (self._ledger.live(self._pipeline, list(begun)) if begun else set())
            self._send([ref for object_id, ref in self._refs.items() if object_id in free])

    def advance(self) -> None:
        """Find out whether all objects are done, and release whatever processes proven dead hold.

        It is called after every batch, so it must not grow with the objects: it does not count the messages, and while
        there are any, it stops reading states at an object that is not done. If the queue is empty but objects are not
        done (a message was purged, or its sender died between two steps), their notifications are sent
        again. The queue is sampled before the states are read: an object that another process finishes in between, and
        whose message it deletes, is then known to be done.
        """
        with self._lock:
            if not self.unfinished:
                if not self.drain_check.is_empty():
                    self._release_dead()
                return
            self._release_dead()
            self.drain_check.sample()
            if not self.drain_check.is_drained:
                self._end_finished()
                return
            self._read_states(list(self.unfinished))
            if self.unfinished:
                self.announce()

    def _end_finished(self) -> None:
        """Remove finished objects from the unfinished ones, until a query returns one that is not finished."""
        while chunk := list(itertools.islice(self.unfinished, STATES_AT_ONCE)):
            self._read_states(chunk)
            if not self.unfinished.isdisjoint(chunk):
                return

    def _read_states(self, object_ids: Collection[bytes]) -> None:
        """Read the states of some unfinished objects, and remove those that are finished."""
        if not object_ids:
            return
        states = self._current_states(object_ids)
        finished = {object_id for object_id, state in states.items() if state in TERMINAL}
        self._unread |= {object_id for object_id, state in states.items() if state in UNREAD}
        self._processed |= _processed(states)
        self.unfinished -= finished
        self._begun.difference_update(object_ids)
        self._begun |= states.keys() - finished

    def is_done(self) -> bool:
        """Return True if all objects were done at the last `advance`, and the queue holds no messages.

        Repeated notifications of finished objects count too: the delayed ones, which met an object held by another
        worker, and those in flight. A stopping worker releases the messages that it has received and not begun, so they
        would stay in the queue.
        """
        return not self.unfinished and self.drain_check.is_empty()

    def objects(self) -> Sequence[ObjectRef]:
        """Return all objects."""
        with self._lock:
            return list(self._refs.values())

    def states(self) -> dict[bytes, ObjectState]:
        """Return the current state of every object; unprocessed if the ledger does not know it."""
        with self._lock:
            states = dict.fromkeys(self._refs, ObjectState.UNPROCESSED)
            states.update(self._current_states(self._refs.keys() - self._processed))
            states.update(dict.fromkeys(self._processed, ObjectState.PROCESSED))
            return states

    def left(self) -> int:
        """Return the number of objects that are not in a terminal state."""
        return sum(1 for state in self.states().values() if state not in TERMINAL)

    def done_before(self) -> int:
        """Return the number of objects that were in a terminal state when they were found."""
        with self._lock:
            return sum(1 for state in self.before.values() if state in TERMINAL)

    def messages(self) -> int:
        """Return the number of messages in the queue in any state, as exact as the broker can count."""
        return self.drain_check.messages()

    def _current_states(self, object_ids: Collection[bytes]) -> dict[bytes, ObjectState]:
        """Return the states of these objects, without those that the scan proved to be outdated."""
        states = dict(self._ledger.states(self._pipeline, list(object_ids)))
        for object_id, ended_at in self._ends_of_unread(states).items():
            if self._outdated.get(object_id) == ended_at:
                del states[object_id]
        for object_id in self._changed_back(states):
            del states[object_id]
        return states

    def _changed_back(self, states: Mapping[bytes, ObjectState]) -> set[bytes]:
        """Return the processed objects whose rows another version has replaced since: they have to be read again."""
        processed = _processed(states)
        if not processed or not self._change_rule().replaces:
            return set()
        return self._ledger.superseded(self._pipeline, processed)

    def _ends_of_unread(self, states: Mapping[bytes, ObjectState]) -> Mapping[bytes, float]:
        unread = [object_id for object_id, state in states.items() if state in UNREAD]
        return self._ledger.unread(self._pipeline, unread) if unread else {}

    def _send(self, missing: Sequence[ObjectRef]) -> None:
        if missing:
            self.drain_check.restart()
        announce_all(self._broker, self._queue, missing, probe=self._probe)
        self._count(missing)

    def _count(self, refs: Sequence[ObjectRef]) -> None:
        for ref in refs:
            self._announcements[ref.object_id] += 1
            if self._announcements[ref.object_id] > ANNOUNCEMENTS_MAX:
                raise PenstockError(
                    f"{ANNOUNCEMENTS_MAX} notifications were sent for {ref.uri}, and it is neither processed nor "
                    f"failed; look at `penstock objects show` and `penstock dead list`, and report this as a bug."
                )


def _processed(states: Mapping[bytes, ObjectState]) -> set[bytes]:
    return {object_id for object_id, state in states.items() if state is ObjectState.PROCESSED}
