"""The error hook: failures reach the function that the user gave, and nothing that it does reaches the work.

The first failure of its kind is told at once, and so is every final one; of the others one a minute, with how many
there were. The hook runs in a thread of its own; what waits for it is bounded, and the oldest is dropped.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.events import ChoosyListener, ErrorHookFailed, ErrorReportsDropped, Event, Listener
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.failure import failure_of
from penstock.messaging.fingerprints import fingerprint
from penstock.monitoring.occurrences import Occurrence, may_fail, occurrence_of

QUIET_SECONDS = 60.0
WAITING_MAX = 100  # each holds an exception, and with it the variables of its frames
FINGERPRINTS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorContext:
    """What is known of a failure. None: it has no such thing."""

    handler: str  # or the pipeline
    worker: str
    fingerprint: str  # handler|type|file:function
    error: str
    final: bool  # nothing tries it again
    occurrences: int  # of this fingerprint since it was reported last, this one included
    traceback: str | None  # without local variables
    queue: str | None = None
    message_id: str | None = None
    attempt: int | None = None
    object_uri: str | None = None
    attempt_id: str | None = None


ErrorHook = Callable[[BaseException | None, ErrorContext], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    occurrence: Occurrence
    fingerprint: str
    occurrences: int


@dataclass(slots=True)
class _Known:
    """A fingerprint. Both fields are under the reporter's lock."""

    reported_at: float
    occurrences: int = 0


class ErrorReporter(ChoosyListener):
    """A listener for the bus that calls the user's hook. Any thread may call it.

    ``tell`` hears what goes wrong with the hook itself: give it the log's listener.
    """

    def __init__(self, on_error: ErrorHook, *, worker: str, tell: Listener, clock: Clock | None = None) -> None:
        self._on_error = on_error
        self._worker = worker
        self._clock = SystemClock() if clock is None else clock
        self._complaints = _Complaints(tell, self._clock)
        self._lock = threading.Condition()
        self._known: OrderedDict[str, _Known] = OrderedDict()  # under the lock; the least recently met first
        self._waiting: deque[_Report] = deque()  # under the lock
        self._thread: threading.Thread | None = None  # under the lock; started by the first report
        self._dropped = 0  # under the lock
        self._idle = threading.Event()  # set and cleared under the lock: nothing waits and no hook runs
        self._idle.set()

    def hears(self, kind: type[Event]) -> bool:
        return may_fail(kind)

    def __call__(self, event: Event) -> None:
        try:
            occurrence = occurrence_of(event)
            if occurrence is not None:
                self._take(occurrence)
        except Exception as error:  # an exception of the user's may hold anything; the work must not suffer for it
            self._complaints.hook_failed(error)

    @property
    def dropped(self) -> int:
        """How many reports were lost because the hook was too slow."""
        return self._dropped

    def report(self, exception: BaseException, *, handler: str = "") -> None:
        """Report what no event tells: what ends a command, a worker or a child process."""
        failure = failure_of(exception)
        self._take(
            Occurrence(
                handler=handler, error_type=failure.error_type, error=failure.error, final=True, exception=exception
            )
        )

    def flush(self, seconds: float) -> bool:
        """Wait, at most so long, until the hook was called for all there is; answers whether it was."""
        return self._clock.wait(self._idle, seconds)

    def _take(self, occurrence: Occurrence) -> None:
        name = fingerprint(occurrence.handler, occurrence.error_type, occurrence.exception, occurrence.traceback)
        with self._lock:
            occurrences = self._due(name, final=occurrence.final)
            if occurrences is None:
                return
            if len(self._waiting) >= WAITING_MAX:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(_Report(occurrence=occurrence, fingerprint=name, occurrences=occurrences))
            self._idle.clear()
            self._start()
            self._lock.notify()

    def _due(self, name: str, *, final: bool) -> int | None:
        """How many occurrences to report now; None: this one only counts."""
        now = self._clock.monotonic()
        known = self._known.get(name)
        first = known is None
        if known is None:
            known = self._known[name] = _Known(reported_at=now)
            if len(self._known) > FINGERPRINTS_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(name)
        known.occurrences += 1
        if not (first or final or now - known.reported_at >= QUIET_SECONDS):
            return None
        occurrences, known.occurrences, known.reported_at = known.occurrences, 0, now
        return occurrences

    def _start(self) -> None:
        if self._thread is None:
            # A daemon: a hook that hangs must not keep the process. What matters is flushed before the end.
            self._thread = threading.Thread(target=self._work, name="penstock-error-hook", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            self._call(self._next())  # a call of its own: while it waits it must hold no exception

    def _call(self, report: _Report) -> None:
        try:
            self._on_error(report.occurrence.exception, self._context(report))
        except BaseException as error:  # SystemExit too: it would end this thread, and with it all reports
            self._complaints.hook_failed(error)
        self._complaints.reports_dropped(self.dropped)

    def _next(self) -> _Report:
        with self._lock:
            if not self._waiting:
                self._idle.set()
            while not self._waiting:
                self._lock.wait()
            return self._waiting.popleft()

    def _context(self, report: _Report) -> ErrorContext:
        failed = report.occurrence
        traceback = failed.traceback
        if traceback is None and failed.exception is not None:
            traceback = failure_of(failed.exception).traceback
        return ErrorContext(
            handler=failed.handler,
            worker=self._worker,
            fingerprint=report.fingerprint,
            error=failed.error,
            final=failed.final,
            occurrences=report.occurrences,
            traceback=traceback,
            queue=failed.queue,
            message_id=failed.message_id,
            attempt=failed.attempt,
            object_uri=failed.object_uri,
            attempt_id=failed.attempt_id,
        )


class _Complaints:
    """What goes wrong with the hook, told at most once a minute. Any thread may call it."""

    def __init__(self, tell: Listener, clock: Clock) -> None:
        self._tell = tell
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0  # under the lock; not told yet
        self._failed_at: float | None = None  # under the lock; when it was told last
        self._drops_told = 0  # under the lock
        self._dropped_at: float | None = None  # under the lock; as above

    def hook_failed(self, error: BaseException) -> None:
        with self._lock:
            self._failures += 1
            now = self._clock.monotonic()
            if self._failed_at is not None and now - self._failed_at < QUIET_SECONDS:
                return
            count, self._failures, self._failed_at = self._failures, 0, now
        self._tell(ErrorHookFailed(error=failure_of(error).summary, count=count))

    def reports_dropped(self, dropped: int) -> None:
        with self._lock:
            count = dropped - self._drops_told
            now = self._clock.monotonic()
            if count == 0 or (self._dropped_at is not None and now - self._dropped_at < QUIET_SECONDS):
                return
            self._drops_told, self._dropped_at = dropped, now
        self._tell(ErrorReportsDropped(count=count))
