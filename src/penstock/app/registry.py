"""The workers of one state folder on this host: what each says of itself, and how to reach them.

Every worker writes a small record beside its lock: before it takes its first message, soon after every change of its
state, and every few seconds while it lives. The lock is the proof that it lives; the record says the rest.

Why a worker does not serve a queue: a service that the queue needs is away, or the queue was halted.

What a worker's own receives say of ages: in its record, for those who look on its host; and on SQS as a gauge of the
worker itself, since the monitor may be on another host, which sees nothing of them.
"""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.app.processes import PROCESSES_FOLDER, ProcessRegistry, draft_of
from penstock.events import (
    BreakerClosed,
    BreakerOpened,
    ChoosyListener,
    DeliverySettled,
    Event,
    LeaseLost,
    LedgerAway,
    LedgerBack,
    LineHalted,
    MessagesReceived,
    QueueSeenEmpty,
    SettleFailed,
    StoreAway,
    StoreBack,
    WorkerDraining,
    WorkerStarted,
)
from penstock.messaging.age_estimate import AgeEstimate
from penstock.messaging.broker import listed_name, names_dead_letters
from penstock.messaging.clock import Clock
from penstock.messaging.settlement import Release
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.monitoring.metrics.meters import Meters


UNSERVED_EVENTS = frozenset({LedgerAway, LedgerBack, LineHalted, StoreAway, StoreBack})


class UnservedQueues:
    """The reasons for the worker of this process, collected from its events. A listener; any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[str, dict[str, str]] = {}  # under the lock: by queue and cause, as sentences

    def __call__(self, event: Event) -> None:
        match event:
            case LedgerAway():
                self._note(event.queues, "ledger", f"the ledger is away: {event.error}")
            case LedgerBack():
                self._note(event.queues, "ledger", None)
            case StoreAway():
                self._note(event.queues, event.store, f"the store {event.store} is away: {event.error}")
            case StoreBack():
                self._note(event.queues, event.store, None)
            case LineHalted():
                self._note((event.queue,), "handler", f"it is halted until a restart: {event.error}")
            case _:
                pass

    @property
    def sentences(self) -> Mapping[str, str]:
        """The reasons, by queue; queues that are served are left out."""
        with self._lock:
            return {queue: "; ".join(reasons.values()) for queue, reasons in self._reasons.items() if reasons}

    def _note(self, queues: Sequence[str], cause: str, sentence: str | None) -> None:
        with self._lock:
            for queue in queues:
                reasons = self._reasons.setdefault(queue, {})
                reasons.pop(cause, None)
                if sentence is not None:
                    reasons[cause] = sentence


SEEN = frozenset({MessagesReceived, QueueSeenEmpty})
GAUGE = "queue_oldest_visible_message_age_seconds"


class SeenAges(ChoosyListener):
    """A listener for the worker's bus. Any thread may call it, and read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, AgeEstimate] = {}  # under the lock, by queue

    def hears(self, kind: type[Event]) -> bool:
        return kind in SEEN

    def __call__(self, event: Event) -> None:
        match event:
            case MessagesReceived(first_enqueued_at=float(enqueued_at)):
                with self._lock:
                    seen = self._seen.get(event.queue, AgeEstimate())
                    self._seen[event.queue] = seen.received(enqueued_at, now=self._clock.now())
            case QueueSeenEmpty():
                with self._lock:
                    self._seen[event.queue] = self._seen.get(event.queue, AgeEstimate()).empty(now=self._clock.now())
            case _:
                pass

    @property
    def estimates(self) -> Mapping[str, AgeEstimate]:
        """By queue."""
        with self._lock:
            return dict(self._seen)

    @contextmanager
    def exported(self, meters: "Meters | None") -> Iterator[None]:
        """Until the block ends the gauge is looked up when the meters are read."""
        if meters is None:
            yield
            return
        forget = meters.before_reading(lambda: self.look_up(meters))
        try:
            yield
        finally:
            forget()
            meters.replace(GAUGE, {})  # who receives no more knows no more

    def look_up(self, meters: "Meters") -> None:
        """Set the gauge to what is so now; a queue of which nothing is known has no value, and letters have
        gauges of their own."""
        now = self._clock.now()
        ages = {
            (queue, "estimated"): estimate.visible_age_seconds(now)
            for queue, estimate in self.estimates.items()
            if not names_dead_letters(listed_name(queue))
        }
        meters.replace(GAUGE, {labels: age for labels, age in ages.items() if age is not None})


BEAT_SECONDS = 2.0  # between two records while nothing changes
GATHER_SECONDS = 0.2  # from a change until it is written, with what else changes meanwhile
HEARD = frozenset(
    {
        BreakerClosed,
        BreakerOpened,
        DeliverySettled,
        LeaseLost,
        MessagesReceived,
        QueueSeenEmpty,
        SettleFailed,
        WorkerDraining,
        WorkerStarted,
        *UNSERVED_EVENTS,
    }
)
SERVING, DRAINING, STOPPING = "serving", "draining", "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """What a worker says of itself. Times are epoch seconds, its host's clock."""

    worker: str
    host: str
    namespace: str  # which numbering of processes ``pid`` is of: containers have one each
    pid: int
    version: str
    started_at: float
    state: str  # serving; draining: fetches no more and stays; stopping
    queues: tuple[str, ...]
    in_flight: int  # messages whose lease it holds
    beat_at: float
    paused: Mapping[str, str] = field(default_factory=dict)  # by queue: the error for which its breaker is open
    unserved: Mapping[str, str] = field(default_factory=dict)  # by queue: any other reason why it is not served
    seen: Mapping[str, AgeEstimate] = field(default_factory=dict)  # by queue: what its receives say of ages
    settled: Mapping[str, int] = field(default_factory=dict)  # by queue: messages that left it through this worker
    metrics_address: str | None = None  # HOST:PORT where it answers for its metrics and its health, if it does


_FIELDS = frozenset(one.name for one in fields(WorkerRecord))


class RecordKeeper(ChoosyListener):
    """Keeps the record of the worker in this process. A listener for the bus; a thread of its own writes."""

    def __init__(
        self,
        path: Path,
        *,
        worker: str,
        version: str,
        stop: StopSignal,
        clock: Clock,
        metrics_address: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._path = path
        self._worker = worker
        self._version = version
        self._stop = stop
        self._clock = clock
        self._metrics_address = metrics_address
        self._started_at = clock.now()
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        self._held: dict[str, set[str]] = {}  # under the lock: message ids by queue
        self._paused: dict[str, str] = {}  # under the lock: the error, by queue
        self._unserved = UnservedQueues()
        self._seen = SeenAges(clock)
        self._settled: dict[str, int] = {}  # under the lock, by queue
        self._queues: tuple[str, ...] = ()  # written by the thread that starts the worker
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-record", daemon=True)

    def hears(self, kind: type[Event]) -> bool:
        return kind in HEARD

    def __call__(self, event: Event) -> None:
        match event:
            case MessagesReceived():
                with self._lock:
                    self._held.setdefault(event.queue, set()).update(event.message_ids)
                self._seen(event)
            case QueueSeenEmpty():
                self._seen(event)
            case DeliverySettled():
                self._let_go(event.queue, event.message_id, left=not isinstance(event.settlement, Release))
            case LeaseLost():
                self._let_go(event.queue, event.message_id)
            case SettleFailed(lost=True):
                self._let_go(event.queue, event.message_id)
            case BreakerOpened():
                with self._lock:
                    self._paused[event.queue] = event.error
                self._changed.set()
            case BreakerClosed():
                with self._lock:
                    self._paused.pop(event.queue, None)
                self._changed.set()
            case WorkerStarted():  # whoever sees it at work finds in its record what it serves
                self._queues = event.queues
                self._try_to_write()
            case WorkerDraining():
                self._changed.set()
            case _:
                self._unserved(event)
                self._changed.set()

    def start(self) -> None:
        """Write the first record, and go on. Raises OSError where it cannot be written."""
        self._write()
        self._thread.start()

    def end(self) -> None:
        """Write no more. The file goes with the lock."""
        self._ended.set()
        self._changed.set()
        self._thread.join(BEAT_SECONDS)

    def record(self) -> WorkerRecord:
        """What there is to say now."""
        with self._lock:
            in_flight = sum(map(len, self._held.values()))
            paused, settled = dict(self._paused), dict(self._settled)
        return WorkerRecord(
            worker=self._worker,
            host=socket.gethostname(),
            namespace=process_namespace(),
            pid=os.getpid(),
            version=self._version,
            started_at=self._started_at,
            state=STOPPING if self._stop.requested else DRAINING if self._stop.paused else SERVING,
            queues=self._queues,
            in_flight=in_flight,
            beat_at=self._clock.now(),
            paused=paused,
            unserved=self._unserved.sentences,
            seen=self._seen.estimates,
            settled=settled,
            metrics_address=self._metrics_address(),
        )

    def _let_go(self, queue: str, message_id: str, *, left: bool = False) -> None:
        with self._lock:
            self._held.get(queue, set()).discard(message_id)
            if left:
                self._settled[queue] = self._settled.get(queue, 0) + 1

    def _run(self) -> None:
        while True:
            self._clock.wait(self._changed, BEAT_SECONDS - GATHER_SECONDS)
            self._changed.clear()
            # An idle worker that is told to stop has ended by then: it need not wait for a disk that has other things
            # to do, to say for a moment that it is stopping.
            if self._clock.wait(self._ended, GATHER_SECONDS):
                return
            self._try_to_write()

    def _try_to_write(self) -> None:
        with suppress(OSError):  # a full disk is no reason to end; the record grows old and shows it
            self._write()

    def _write(self) -> None:
        with self._writing:
            draft = draft_of(self._path)
            draft.write_text(json.dumps(asdict(self.record())), encoding="utf-8")
            draft.replace(self._path)


class Workers:
    """The living workers of a state folder, for those who look and those who send signals.

    A broker that several hosts share has other workers besides, which cannot be seen from here.
    """

    def __init__(self, state: Path) -> None:
        self._folder = state / PROCESSES_FOLDER

    def records(self) -> Sequence[WorkerRecord]:
        """Of every worker that lives, and has said something of itself; the oldest first."""
        if not self._folder.is_dir():
            return ()
        registry = ProcessRegistry(self._folder)
        found = (_read(registry.record(worker)) for worker in registry.living())
        return sorted((record for record in found if record is not None), key=lambda record: record.started_at)

    def silent(self) -> Sequence[str]:
        """The ids of living processes that keep no record: an ingest, or a worker in its first moment."""
        if not self._folder.is_dir():
            return ()
        registry = ProcessRegistry(self._folder)
        return [worker for worker in registry.living() if _read(registry.record(worker)) is None]

    def signal(self, record: WorkerRecord, number: signal.Signals) -> bool:
        """Send a signal to a worker of this host; answers whether it was there to get it.

        A process id may belong to somebody else by now. So the process is taken hold of first, and the lock looked at
        afterwards: while the lock is held, that process is the one that wrote the record.
        """
        registry = ProcessRegistry(self._folder)
        return _send(record.pid, number, only_if=lambda: registry.is_living(record.worker))


def is_local(record: WorkerRecord) -> bool:
    """Whether that process has its number in our numbering: the same host, the same container."""
    return (record.host, record.namespace) == (socket.gethostname(), process_namespace())


def process_namespace() -> str:
    """What tells the process numbers of one container from those of another; empty where there is no such thing."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _send(pid: int, number: signal.Signals, *, only_if: Callable[[], bool]) -> bool:
    try:
        if not hasattr(os, "pidfd_open"):  # not on macOS; then there is a moment in between
            if only_if():
                os.kill(pid, number)
                return True
            return False
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not only_if():
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def _read(path: Path) -> WorkerRecord | None:
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        seen = {queue: AgeEstimate(**estimate) for queue, estimate in written.get("seen", {}).items()}
        known = {name: value for name, value in written.items() if name in _FIELDS}  # newer workers add others
        return WorkerRecord(**{**known, "queues": tuple(written["queues"]), "seen": seen})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # gone meanwhile, or of another version
        return None
