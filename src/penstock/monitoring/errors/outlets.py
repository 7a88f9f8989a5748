"""Run each error hook or service in a thread of its own, so that a slow one blocks nothing and a failing one is logged.

Its queue of reports is bounded; when full, the oldest report is dropped. `Throttle` limits how often a recurring
problem is reported.
"""

import threading
from collections import deque
from dataclasses import dataclass

from penstock.events import ErrorHookFailed, ErrorReportsDropped, Listener
from penstock.messaging.clock import Clock
from penstock.messaging.failure import failure_of
from penstock.monitoring.errors.occurrences import ErrorContext, ErrorHook, Occurrence


class Throttle:
    """Due the first time, then once every ``every_seconds``. Not thread-safe: threads that share one need a lock."""

    def __init__(self, every_seconds: float, clock: Clock) -> None:
        self._every_seconds = every_seconds
        self._clock = clock
        self._reported_at: float | None = None  # monotonic

    def begin_if_due(self) -> bool:
        """Return True if a report is due now, and start the next interval. A caller that gets True must report."""
        now = self._clock.monotonic()
        if self._reported_at is not None and now - self._reported_at < self._every_seconds:
            return False
        self._reported_at = now
        return True

    def begin_anew(self) -> None:
        """Make the next report due at once, after a success or for a new recipient."""
        self._reported_at = None


QUIET_SECONDS = 60.0
WAITING_MAX = 100  # each holds an exception, and with it the variables of its frames


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """One failure, queued for a hook."""

    process: str
    worker: str
    occurrence: Occurrence
    fingerprint: str
    occurrences: int

    def context(self) -> ErrorContext:
        """Return the hook's argument. Formats the traceback here, in the hook's thread, because that takes a while."""
        failed = self.occurrence
        traceback = failed.traceback
        if traceback is None and failed.exception is not None:
            traceback = failure_of(failed.exception).traceback
        return ErrorContext(
            process=self.process,
            handler=failed.handler,
            worker=self.worker,
            fingerprint=self.fingerprint,
            error=failed.error,
            final=failed.final,
            occurrences=self.occurrences,
            traceback=traceback,
            queue=failed.queue,
            message_id=failed.message_id,
            attempt=failed.attempt,
            object_uri=failed.object_uri,
            attempt_id=failed.attempt_id,
            subject=failed.subject,
        )


class ErrorHookThread:
    """The queue of reports for one hook, which is called in its own thread, in order. Thread-safe."""

    def __init__(self, name: str, hook: ErrorHook, *, emit: Listener, clock: Clock) -> None:
        self.name = name
        self._hook = hook
        self._clock = clock
        self._complaints = HookFailures(name, emit, clock)
        self._lock = threading.Condition()
        self._waiting: deque[ErrorReport] = deque()  # guarded by _lock
        self._thread: threading.Thread | None = None  # guarded by _lock; started by the first report
        self._dropped = 0  # guarded by _lock; reports lost because the hook was too slow
        self._idle = threading.Event()  # set and cleared under the lock: no report waits and no hook runs
        self._idle.set()

    def put(self, report: ErrorReport) -> None:
        """Queue a report for the hook. Raises `RuntimeError` if no thread can be started for it."""
        with self._lock:
            self._start()
            if len(self._waiting) >= WAITING_MAX:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(report)
            self._idle.clear()
            self._lock.notify()

    def flush(self, seconds: float) -> bool:
        """Wait until the hook was called for all reports. Return False if that takes longer than ``seconds``."""
        return self._clock.wait(self._idle, seconds)

    def _start(self) -> None:
        if self._thread is None:
            # A daemon: a hook that hangs must not keep the process alive. Important reports are flushed before the end.
            thread = threading.Thread(target=self._work, name="penstock-error-hook", daemon=True)
            thread.start()
            self._thread = thread

    def _work(self) -> None:
        while True:
            self._call(self._next())  # in a call of its own, so that no exception is referenced while waiting

    def _call(self, report: ErrorReport) -> None:
        try:
            self._hook(report.occurrence.exception, report.context())
        except BaseException as error:  # SystemExit too: it would end this thread, and with it all reports
            self._complaints.report_hook_failure(error)
        self._complaints.report_drops(self._dropped)

    def _next(self) -> ErrorReport:
        with self._lock:
            if not self._waiting:
                self._idle.set()
            while not self._waiting:
                self._lock.wait()
            return self._waiting.popleft()


class HookFailures:
    """Emit events about the failures of one hook, each kind at most once a minute. Thread-safe."""

    def __init__(self, hook: str, emit: Listener, clock: Clock) -> None:
        self._hook = hook
        self._emit = emit
        self._lock = threading.Lock()
        self._failures = 0  # not emitted yet; this and the next three fields are guarded by _lock
        self._failure_throttle = Throttle(QUIET_SECONDS, clock)
        self._drops_reported = 0
        self._drop_throttle = Throttle(QUIET_SECONDS, clock)

    def report_hook_failure(self, error: BaseException) -> None:
        """Count an exception of the hook, and emit `ErrorHookFailed` if due."""
        with self._lock:
            self._failures += 1
            if not self._failure_throttle.begin_if_due():
                return
            count, self._failures = self._failures, 0
        self._emit(ErrorHookFailed(hook=self._hook, error=failure_of(error).summary, count=count))

    def report_drops(self, dropped: int) -> None:
        """Emit `ErrorReportsDropped` if due. ``dropped`` is the total so far."""
        with self._lock:
            count = dropped - self._drops_reported
            if count == 0 or not self._drop_throttle.begin_if_due():
                return
            self._drops_reported = dropped
        self._emit(ErrorReportsDropped(hook=self._hook, count=count))
