"""Record the workers of one data directory on this host, and signal them.

Every worker writes a small record beside its lock: before it receives its first message, soon after every change, and
every few seconds while it lives. The lock proves that it lives; the record describes it.

`UnservedQueues` collects the reasons why a worker does not serve a queue: an unavailable service, or a halted queue.
`SeenAges` estimates message ages from the worker's own receives. They are in the record for commands on the same host.
On SQS the worker also exports them as a gauge, since a monitor on another host cannot see the receives.
"""

import json
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.app.held_messages import HeldMessage, HeldMessages
from penstock.app.processes import PROCESSES_FOLDER, ProcessRegistry, draft_of
from penstock.app.running_batches import BATCH_EVENTS, RecordedRun, RunningBatches
from penstock.events import (
    BreakerClosed,
    BreakerOpened,
    ConsumerHalted,
    Event,
    LeaseLost,
    LedgerAvailable,
    LedgerUnavailable,
    MessagesReceived,
    ReceiveEmpty,
    SelectiveListener,
    SettlementFailed,
    SettlementsApplied,
    StoreAvailable,
    StoreUnavailable,
    WorkerDraining,
    WorkerStarted,
)
from penstock.messaging.age_estimate import AgeEstimate
from penstock.messaging.broker import listed_name, names_dead_letters
from penstock.messaging.clock import Clock
from penstock.messaging.settlement import Release
from penstock.worker.liveness import LagSampler, Liveness
from penstock.worker.shutdown import StopSignal

if TYPE_CHECKING:
    from penstock.monitoring.metrics.meters import Meters


UNSERVED_EVENTS = frozenset({LedgerUnavailable, LedgerAvailable, ConsumerHalted, StoreUnavailable, StoreAvailable})


class UnservedQueues:
    """The reasons why this process's worker does not serve queues, collected from its events. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[str, dict[str, str]] = {}  # under the lock: sentences by queue and cause

    def __call__(self, event: Event) -> None:
        match event:
            case LedgerUnavailable():
                self._note(event.queues, "ledger", f"the ledger is unavailable: {event.error}")
            case LedgerAvailable():
                self._note(event.queues, "ledger", None)
            case StoreUnavailable():
                self._note(event.queues, event.store, f"the store {event.store} is unavailable: {event.error}")
            case StoreAvailable():
                self._note(event.queues, event.store, None)
            case ConsumerHalted():
                self._note((event.queue,), "handler", f"it is halted until a restart: {event.error}")
            case _:
                pass

    @property
    def sentences(self) -> Mapping[str, str]:
        """The reasons by queue; queues that are served are left out."""
        with self._lock:
            return {queue: "; ".join(reasons.values()) for queue, reasons in self._reasons.items() if reasons}

    def _note(self, queues: Sequence[str], cause: str, sentence: str | None) -> None:
        with self._lock:
            for queue in queues:
                reasons = self._reasons.setdefault(queue, {})
                reasons.pop(cause, None)
                if sentence is not None:
                    reasons[cause] = sentence


SEEN = frozenset({MessagesReceived, ReceiveEmpty})
GAUGE = "queue_oldest_visible_message_age_seconds"


class SeenAges(SelectiveListener):
    """Estimates of message ages, from the events on the worker's bus. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, AgeEstimate] = {}  # by queue; under the lock

    def wants(self, kind: type[Event]) -> bool:
        return kind in SEEN

    def __call__(self, event: Event) -> None:
        match event:
            case MessagesReceived(first_enqueued_at=float(enqueued_at)):
                with self._lock:
                    seen = self._seen.get(event.queue, AgeEstimate())
                    self._seen[event.queue] = seen.received(enqueued_at, now=self._clock.now())
            case ReceiveEmpty():
                with self._lock:
                    self._seen[event.queue] = self._seen.get(event.queue, AgeEstimate()).empty(now=self._clock.now())
            case _:
                pass

    @property
    def estimates(self) -> Mapping[str, AgeEstimate]:
        """The estimates by queue."""
        with self._lock:
            return dict(self._seen)

    @contextmanager
    def exported(self, meters: "Meters | None") -> Iterator[None]:
        """Update the gauge at each reading of the meters, inside the block."""
        if meters is None:
            yield
            return
        forget = meters.before_reading(lambda: self.update_gauge(meters))
        try:
            yield
        finally:
            forget()
            meters.replace(GAUGE, {})  # a worker that receives no more has no current estimate

    def update_gauge(self, meters: "Meters") -> None:
        """Set the gauge to the current estimates.

        A queue without an estimate has no value. DLQs are left out because they have gauges of their own.
        """
        now = self._clock.now()
        ages = {
            (queue, "estimated"): estimate.visible_age_seconds(now)
            for queue, estimate in self.estimates.items()
            if not names_dead_letters(listed_name(queue))
        }
        meters.replace(GAUGE, {labels: age for labels, age in ages.items() if age is not None})


BEAT_SECONDS = 2.0  # between two records without a change
GATHER_SECONDS = 0.2  # between a change and its record, to collect further changes
HEARD = frozenset(
    {
        BreakerClosed,
        BreakerOpened,
        LeaseLost,
        MessagesReceived,
        ReceiveEmpty,
        SettlementFailed,
        SettlementsApplied,
        WorkerDraining,
        WorkerStarted,
        *BATCH_EVENTS,
        *UNSERVED_EVENTS,
    }
)
SERVING, DRAINING, STOPPING = "serving", "draining", "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """A worker's own description. Times are epoch seconds of its host's clock."""

    worker: str
    host: str
    namespace: str  # the pid namespace of ``pid``: every container has its own
    pid: int
    version: str
    started_at: float
    state: str  # serving; draining: keeps running but fetches no more; stopping
    queues: tuple[str, ...]
    in_flight: int  # messages that it has leased
    beat_at: float
    paused: Mapping[str, str] = field(default_factory=dict)  # by queue: the error that opened its circuit breaker
    unserved: Mapping[str, str] = field(default_factory=dict)  # by queue: any other reason why it is not served
    seen: Mapping[str, AgeEstimate] = field(default_factory=dict)  # by queue: the age estimate from its receives
    settled: Mapping[str, int] = field(default_factory=dict)  # by queue: messages it settled, without releases
    metrics_address: str | None = None  # HOST:PORT of its metrics and health endpoint, if it has one
    concurrency: int | None = None  # messages that it handles at the same time; None: not serving yet
    held: tuple[HeldMessage, ...] = ()  # the oldest of ``in_flight``
    lag_seconds: float | None = None  # how late it runs its timers, at its last heartbeat
    troubles: tuple[str, ...] = ()  # threads that hang or have ended, which only a restart fixes
    memory_bytes: int | None = None  # resident; None if the system does not report it
    batches: tuple[RecordedRun, ...] = ()  # of pipelines, that it has claimed and not ended


_FIELDS = frozenset(field.name for field in fields(WorkerRecord))


class RecordWriter(SelectiveListener):
    """The writer of this process's worker record, updated by events on the worker's bus.

    The emitting threads call it; a thread of its own writes the file. Owned by `Presence`.
    """

    def __init__(
        self,
        path: Path,
        *,
        worker: str,
        version: str,
        stop: StopSignal,
        clock: Clock,
        metrics_address: Callable[[], str | None] = lambda: None,
        liveness: Liveness | None = None,
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
        self._liveness = liveness or Liveness(clock)
        self._lag = LagSampler(clock=clock, observe=lambda _: None, loop=lambda: self._liveness.loop())
        self._lag_seconds: float | None = None  # written by the thread that writes the file
        self._held = HeldMessages()
        self._batches = RunningBatches()
        self._paused: dict[str, str] = {}  # the error by queue; under the lock
        self._unserved = UnservedQueues()
        self._seen = SeenAges(clock)
        self._settled: dict[str, int] = {}  # by queue; under the lock
        self._queues: tuple[str, ...] = ()  # this and the next: written by the thread that starts the worker
        self._concurrency: int | None = None
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-record", daemon=True)

    def wants(self, kind: type[Event]) -> bool:
        return kind in HEARD

    def __call__(self, event: Event) -> None:
        match event:
            case MessagesReceived():
                self._held.add(event.queue, event.message_ids, at=self._clock.now())
                self._seen(event)
            case ReceiveEmpty():
                self._seen(event)
            case SettlementsApplied():
                self._held.remove(event.queue, event.message_ids)
                if settled := sum(not isinstance(settlement, Release) for settlement in event.settlements):
                    with self._lock:
                        self._settled[event.queue] = self._settled.get(event.queue, 0) + settled
            case LeaseLost() | SettlementFailed(lost=True):
                self._held.remove(event.queue, [event.message_id])
            case BreakerOpened():
                with self._lock:
                    self._paused[event.queue] = event.error
                self._changed.set()
            case BreakerClosed():
                with self._lock:
                    self._paused.pop(event.queue, None)
                self._changed.set()
            case WorkerStarted():  # write at once: the record of a serving worker must name its queues
                self._queues, self._concurrency = event.queues, event.concurrency
                self._try_to_write()
            case WorkerDraining():
                self._changed.set()
            case _ if type(event) in BATCH_EVENTS:
                self._batches(event)
            case _:
                self._unserved(event)
                self._changed.set()

    def start(self) -> None:
        """Write the first record and start the thread. Raises OSError if the record cannot be written."""
        self._write()
        self._thread.start()

    def end(self) -> None:
        """Stop writing. The file is deleted together with the lock."""
        self._ended.set()
        self._changed.set()
        self._thread.join(BEAT_SECONDS)

    def record(self) -> WorkerRecord:
        """Return the current record."""
        with self._lock:
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
            in_flight=self._held.count(),
            beat_at=self._clock.now(),
            paused=paused,
            unserved=self._unserved.sentences,
            seen=self._seen.estimates,
            settled=settled,
            metrics_address=self._metrics_address(),
            concurrency=self._concurrency,
            held=self._held.oldest(),
            lag_seconds=self._lag_seconds,
            troubles=tuple(self._liveness.troubles),
            memory_bytes=_memory_bytes(),
            batches=self._batches.newest(),
        )

    def _run(self) -> None:
        while True:
            due_at = self._clock.monotonic() + BEAT_SECONDS - GATHER_SECONDS
            changed = self._clock.wait(self._changed, BEAT_SECONDS - GATHER_SECONDS)
            self._lag_seconds = self._lag.sample(self._clock.monotonic() if changed else due_at)
            self._changed.clear()
            # An idle worker that was asked to stop has ended by now. It must not wait for a busy disk just to record
            # that it is stopping.
            if self._clock.wait(self._ended, GATHER_SECONDS):
                return
            self._try_to_write()

    def _try_to_write(self) -> None:
        with suppress(OSError):  # a full disk must not end the worker; readers see the record's age
            self._write()

    def _write(self) -> None:
        with self._writing:
            draft = draft_of(self._path)
            draft.write_text(json.dumps(asdict(self.record())), encoding="utf-8")
            draft.replace(self._path)


class Workers:
    """The living workers of one data directory, for status commands and signals.

    A broker shared by several hosts has other workers, which are invisible here.
    """

    def __init__(self, state: Path) -> None:
        self._folder = state / PROCESSES_FOLDER

    def records(self) -> Sequence[WorkerRecord]:
        """Return the records of all living workers that have one, the oldest worker first."""
        if not self._folder.is_dir():
            return ()
        registry = ProcessRegistry(self._folder)
        found = (_read(registry.record(worker)) for worker in registry.living())
        return sorted((record for record in found if record is not None), key=lambda record: record.started_at)

    def silent(self) -> Sequence[str]:
        """Return the ids of living processes without a record: an ingest, or a worker that is just starting."""
        if not self._folder.is_dir():
            return ()
        registry = ProcessRegistry(self._folder)
        return [worker for worker in registry.living() if _read(registry.record(worker)) is None]

    def signal(self, record: WorkerRecord, number: signal.Signals) -> bool:
        """Send a signal to a worker of this host; return True if it was sent.

        The process id may have been reused. So the process is opened first and the lock checked afterwards: while the
        lock is held, that process is the one that wrote the record.
        """
        registry = ProcessRegistry(self._folder)
        return _send(record.pid, number, only_if=lambda: registry.is_living(record.worker))


def is_local(record: WorkerRecord) -> bool:
    """Return True if the process id is valid here: same host, same container."""
    return (record.host, record.namespace) == (socket.gethostname(), process_namespace())


def process_namespace() -> str:
    """Return an id of this container's process id namespace; empty if the system has none."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _send(pid: int, number: signal.Signals, *, only_if: Callable[[], bool]) -> bool:
    try:
        if not hasattr(os, "pidfd_open"):  # on macOS: check, then signal, with a short race between them
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


def _memory_bytes() -> int | None:
    """Return the resident memory of this process; None if the system has no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize()


def _read(path: Path) -> WorkerRecord | None:
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        seen = {queue: AgeEstimate(**estimate) for queue, estimate in written.get("seen", {}).items()}
        known = {name: value for name, value in written.items() if name in _FIELDS}  # newer workers add fields
        lists = {
            "queues": tuple(written["queues"]),
            "held": tuple(
                HeldMessage(queue=held["queue"], message_id=held["message_id"], since=held["since"])
                for held in written.get("held", ())
            ),
            "troubles": tuple(written.get("troubles", ())),
            "batches": tuple(_running_batch(batch) for batch in written.get("batches", ())),
        }
        return WorkerRecord(**{**known, **lists, "seen": seen})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # deleted meanwhile, or of another version
        return None


def _running_batch(written: Mapping[str, Any]) -> RecordedRun:
    """Return a batch of a record; newer workers may add fields."""
    return RecordedRun(**{name: value for name, value in written.items() if name in RecordedRun.__slots__})
