"""One error hook, or one service, with a thread of its own: a slow one keeps nobody waiting, a failing one is told of.

What waits for it is bounded, and the oldest is dropped.

How often people are told of what goes wrong again and again.
"""

import threading
from collections import deque
from dataclasses import dataclass

from penstock.events import ErrorHookFailed, ErrorReportsDropped, Listener
from penstock.messaging.clock import Clock
from penstock.messaging.failure import failure_of
from penstock.monitoring.errors.occurrences import ErrorContext, ErrorHook, Occurrence


class Throttle:
    """The first time it is due, and then once in so many seconds. Whoever uses it from several threads locks it."""

    def __init__(self, every_seconds: float, clock: Clock) -> None:
        self._every_seconds = every_seconds
        self._clock = clock
        self._told_at: float | None = None  # monotonic

    def is_due(self) -> bool:
        """Whether to tell of it now; who is answered yes does."""
        now = self._clock.monotonic()
        if self._told_at is not None and now - self._told_at < self._every_seconds:
            return False
        self._told_at = now
        return True

    def begin_anew(self) -> None:
        """It went well meanwhile, or somebody else listens: the next time is a first one."""
        self._told_at = None


QUIET_SECONDS = 60.0
WAITING_MAX = 100  # each holds an exception, and with it the variables of its frames


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """One failure on its way to a hook."""

    process: str
    worker: str
    occurrence: Occurrence
    fingerprint: str
    occurrences: int

    def context(self) -> ErrorContext:
        """For the hook. Writing a traceback takes a while, so it is made where nobody waits for it."""
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
    """Calls a hook with what is put in, in order. Any thread may call it."""

    def __init__(self, name: str, hook: ErrorHook, *, tell: Listener, clock: Clock) -> None:
        self.name = name
        self._hook = hook
        self._clock = clock
        self._complaints = HookFailures(name, tell, clock)
        self._lock = threading.Condition()
        self._waiting: deque[ErrorReport] = deque()  # under the lock
        self._thread: threading.Thread | None = None  # under the lock; started by the first report
        self._dropped = 0  # under the lock; reports lost because the hook was too slow
        self._idle = threading.Event()  # set and cleared under the lock: nothing waits and no hook runs
        self._idle.set()

    def put(self, report: ErrorReport) -> None:
        """Let the hook be called with it, soon. Raises RuntimeError where there is no thread to be had for it."""
        with self._lock:
            self._start()
            if len(self._waiting) >= WAITING_MAX:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(report)
            self._idle.clear()
            self._lock.notify()

    def flush(self, seconds: float) -> bool:
        """Wait, at most so long, until the hook was called for all there is; answers whether it was."""
        return self._clock.wait(self._idle, seconds)

    def _start(self) -> None:
        if self._thread is None:
            # A daemon: a hook that hangs must not keep the process. What matters is flushed before the end.
            thread = threading.Thread(target=self._work, name="penstock-error-hook", daemon=True)
            thread.start()
            self._thread = thread

    def _work(self) -> None:
        while True:
            self._call(self._next())  # a call of its own: while it waits it must hold no exception

    def _call(self, report: ErrorReport) -> None:
        try:
            self._hook(report.occurrence.exception, report.context())
        except BaseException as error:  # SystemExit too: it would end this thread, and with it all reports
            self._complaints.hook_failed(error)
        self._complaints.reports_dropped(self._dropped)

    def _next(self) -> ErrorReport:
        with self._lock:
            if not self._waiting:
                self._idle.set()
            while not self._waiting:
                self._lock.wait()
            return self._waiting.popleft()


class HookFailures:
    """What goes wrong with a hook, told at most once a minute. Any thread may call it."""

    def __init__(self, hook: str, tell: Listener, clock: Clock) -> None:
        self._hook = hook
        self._tell = tell
        self._lock = threading.Lock()
        self._failures = 0  # not told yet; this and the next three: under the lock
        self._of_failures = Throttle(QUIET_SECONDS, clock)
        self._drops_told = 0
        self._of_drops = Throttle(QUIET_SECONDS, clock)

    def hook_failed(self, error: BaseException) -> None:
        """It raised."""
        with self._lock:
            self._failures += 1
            if not self._of_failures.is_due():
                return
            count, self._failures = self._failures, 0
        self._tell(ErrorHookFailed(hook=self._hook, error=failure_of(error).summary, count=count))

    def reports_dropped(self, dropped: int) -> None:
        """So many reports were dropped until now."""
        with self._lock:
            count = dropped - self._drops_told
            if count == 0 or not self._of_drops.is_due():
                return
            self._drops_told = dropped
        self._tell(ErrorReportsDropped(hook=self._hook, count=count))
