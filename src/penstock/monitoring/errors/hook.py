"""Report failures to the user's error hook and to the services in the settings, without effect on the work.

The first failure with a fingerprint is reported at once, and so is every final one; of the others one a minute, with
the number of occurrences. Each hook runs in a thread of its own.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from penstock.events import Event, Listener, SelectiveListener
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.failure import failure_of, fingerprint
from penstock.monitoring.errors.occurrences import ErrorContext, ErrorHook, Occurrence, may_fail, occurrence_of
from penstock.monitoring.errors.outlets import QUIET_SECONDS, ErrorHookThread, ErrorReport, HookFailures

__all__ = ["ON_ERROR", "ErrorContext", "ErrorHook", "ErrorReporter"]

ON_ERROR = "on_error"  # the name of the user's own hook
FINGERPRINTS_MAX = 1_000
NO_SERVICES: Mapping[str, ErrorHook] = MappingProxyType({})


@dataclass(slots=True)
class _KnownFailure:
    """A fingerprint that was reported. Both fields are guarded by the reporter's lock."""

    reported_at: float
    occurrences: int = 0


class ErrorReporter(SelectiveListener):
    """A bus listener that calls the user's hook, if there is one, and each of the ``services``. Thread-safe.

    ``process`` is the kind of this process. ``emit`` receives the events about a hook's own failures: pass the log's
    listener.
    """

    def __init__(
        self,
        on_error: ErrorHook | None,
        *,
        worker: str,
        emit: Listener,
        services: Mapping[str, ErrorHook] = NO_SERVICES,
        process: str = "worker",
        clock: Clock | None = None,
    ) -> None:
        self._worker = worker
        self._process = process
        self._clock = SystemClock() if clock is None else clock
        hooks = {**({} if on_error is None else {ON_ERROR: on_error}), **services}
        self._hook_threads = [ErrorHookThread(name, hook, emit=emit, clock=self._clock) for name, hook in hooks.items()]
        self._complaints = HookFailures(ON_ERROR, emit, self._clock)
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _KnownFailure] = OrderedDict()  # guarded by _lock; least recently seen first

    def wants(self, kind: type[Event]) -> bool:
        return may_fail(kind)

    def __call__(self, event: Event) -> None:
        try:
            occurrence = occurrence_of(event)
            if occurrence is not None:
                self._take(occurrence)
        except Exception as error:  # a user's exception may do anything when inspected; the work must not be affected
            self._complaints.report_hook_failure(error)

    @property
    def hooks(self) -> tuple[str, ...]:
        """Return the names of all hooks."""
        return tuple(thread.name for thread in self._hook_threads)

    def report(self, exception: BaseException, *, handler: str = "", subject: str | None = None) -> None:
        """Report an exception that ends a command, a worker or a child process and is in no event."""
        try:
            failure = failure_of(exception)
            self._take(
                Occurrence(
                    handler=handler,
                    error_type=failure.error_type,
                    error=failure.error,
                    final=True,
                    exception=exception,
                    subject=subject,
                )
            )
        except Exception as error:  # the caller raises the reported exception; no other may replace it
            self._complaints.report_hook_failure(error)

    def flush(self, seconds: float) -> bool:
        """Wait until every hook was called for all reports. Return False if that takes longer than ``seconds``."""
        return not self.unfinished(seconds)

    def unfinished(self, seconds: float) -> tuple[str, ...]:
        """Wait as `flush` does. Return the names of the hooks that have not finished."""
        ends_at = self._clock.monotonic() + seconds
        return tuple(
            thread.name
            for thread in self._hook_threads
            if not thread.flush(max(ends_at - self._clock.monotonic(), 0.0))
        )

    def _take(self, occurrence: Occurrence) -> None:
        name = fingerprint(occurrence.handler, occurrence.error_type, occurrence.exception, occurrence.traceback)
        with self._lock:  # also around the puts: every hook gets the failures in the same order
            occurrences = self._count_occurrence(name, final=occurrence.final)
            if occurrences is None:
                return
            report = ErrorReport(
                process=self._process,
                worker=self._worker,
                occurrence=occurrence,
                fingerprint=name,
                occurrences=occurrences,
            )
            for thread in self._hook_threads:
                thread.put(report)

    def _count_occurrence(self, name: str, *, final: bool) -> int | None:
        """Return the number of occurrences to report now; None if this one is only counted."""
        now = self._clock.monotonic()
        known = self._known.get(name)
        first = known is None
        if known is None:
            known = self._known[name] = _KnownFailure(reported_at=now)
            if len(self._known) > FINGERPRINTS_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(name)
        known.occurrences += 1
        if not (first or final or now - known.reported_at >= QUIET_SECONDS):
            return None
        occurrences, known.occurrences, known.reported_at = known.occurrences, 0, now
        return occurrences
