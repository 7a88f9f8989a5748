"""The workers of one state folder on this host: what each says of itself, and how to reach them.

Every worker writes a small record beside its lock: at every change of its state, and every few seconds while it lives.
The lock is the proof that it lives; the record says the rest.
"""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from penstock.app.processes import PROCESSES_FOLDER, ProcessRegistry, draft_of
from penstock.events import (
    BreakerClosed,
    BreakerOpened,
    ChoosyListener,
    DeliverySettled,
    Event,
    LeaseLost,
    MessagesReceived,
    SettleFailed,
    WorkerDraining,
    WorkerStarted,
)
from penstock.messaging.clock import Clock
from penstock.worker.shutdown import StopSignal

BEAT_SECONDS = 2.0
HEARD = frozenset(
    {
        BreakerClosed,
        BreakerOpened,
        DeliverySettled,
        LeaseLost,
        MessagesReceived,
        SettleFailed,
        WorkerDraining,
        WorkerStarted,
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
    paused: Mapping[str, str] = field(default_factory=dict)  # by queue: the error that keeps it from being served


class RecordKeeper(ChoosyListener):
    """Keeps the record of the worker in this process. A listener for the bus; a thread of its own writes."""

    def __init__(self, path: Path, *, worker: str, version: str, stop: StopSignal, clock: Clock) -> None:
        self._path = path
        self._worker = worker
        self._version = version
        self._stop = stop
        self._clock = clock
        self._started_at = clock.now()
        self._lock = threading.Lock()
        self._held: dict[str, set[str]] = {}  # under the lock: message ids by queue
        self._paused: dict[str, str] = {}  # under the lock: the error, by queue
        self._queues: tuple[str, ...] = ()  # written by the thread that starts the worker
        self._changed = threading.Event()
        self._ended = False  # written by whoever ends it
        self._thread = threading.Thread(target=self._run, name="penstock-record", daemon=True)

    def hears(self, kind: type[Event]) -> bool:
        return kind in HEARD

    def __call__(self, event: Event) -> None:
        match event:
            case MessagesReceived():
                with self._lock:
                    self._held.setdefault(event.queue, set()).update(event.message_ids)
            case DeliverySettled() | LeaseLost():
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
            case WorkerStarted():
                self._queues = event.queues
                self._changed.set()
            case WorkerDraining():
                self._changed.set()
            case _:
                pass

    def start(self) -> None:
        """Write the first record, and go on. Raises OSError where it cannot be written."""
        self._write()
        self._thread.start()

    def end(self) -> None:
        """Write no more. The file goes with the lock."""
        self._ended = True
        self._changed.set()
        self._thread.join(BEAT_SECONDS)

    def record(self) -> WorkerRecord:
        """What there is to say now."""
        with self._lock:
            in_flight = sum(map(len, self._held.values()))
            paused = dict(self._paused)
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
        )

    def _let_go(self, queue: str, message_id: str) -> None:
        with self._lock:
            self._held.get(queue, set()).discard(message_id)

    def _run(self) -> None:
        while True:
            self._clock.wait(self._changed, BEAT_SECONDS)
            self._changed.clear()
            if self._ended:
                return
            with suppress(OSError):  # a full disk is no reason to end; the record grows old and shows it
                self._write()

    def _write(self) -> None:
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
        fields = json.loads(path.read_text(encoding="utf-8"))
        return WorkerRecord(**{**fields, "queues": tuple(fields["queues"])})
    except (OSError, ValueError, TypeError, KeyError):  # gone meanwhile, or of another version
        return None
