"""Exit codes that commands choose themselves, and leaving in time.

The codes of errors are on their classes in `penstock.errors`. SIGTERM and Ctrl-C ask a command to stop; after that no
thread keeps the process alive.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from penstock.app.pipelines.running import RunReport
    from penstock.operations.ingest.ingest import IngestReport
    from penstock.worker.shutdown import StopSignal


FAILED = 1
CHECK_FOUND_PROBLEMS = 3
TEMPORARY_FAILURE = 75
INTERRUPTED = 130

WORK_END_SECONDS = 0.5  # for threads that were asked to end and are about to


@contextmanager
def stoppable() -> "Iterator[StopSignal]":
    """Yield a stop signal that SIGTERM and SIGINT set while the block runs."""
    from penstock.worker.shutdown import STOPPING, StopSignal  # slow to import, and `penstock --help` needs no worker

    stop = StopSignal()
    stop.install(*STOPPING)  # in a terminal Ctrl-Z should suspend, not make a job fetch no more
    try:
        yield stop
    finally:
        stop.remove()


def stopped_code(stop: "StopSignal") -> int:
    """Return the exit code of a job that was stopped before everything was done."""
    return INTERRUPTED if stop.signal_number == signal.SIGINT else TEMPORARY_FAILURE


def leave_job(report: "IngestReport | RunReport", stop: "StopSignal", *, forced: bool) -> None:
    """End a job on Spark with its exit code. ``forced``: a thread of it does not end."""
    if forced:  # waiting for it would outlast the stop timeout
        leave_now(stopped_code(stop))
    if report.stopped:
        raise typer.Exit(stopped_code(stop))
    if report.objects_dead:
        raise typer.Exit(CHECK_FOUND_PROBLEMS)


def leave(exit_code: int) -> NoReturn:
    """Exit at the end of a command. Its last step, also after an error.

    A thread inside a library such as deltalake or Arrow may crash the process if the interpreter shuts down meanwhile,
    and the exit code becomes that of the crash. If one is left, the process ends without that shutdown.
    """
    if threading.active_count() > 1 and _work_is_left():
        leave_now(exit_code)
    sys.exit(exit_code)


def _work_is_left() -> bool:
    """Wait shortly for threads at work; return True if one does not end."""
    from penstock.messaging.threads import WorkThread  # slow to import, and not loaded if no thread was started

    threads = [thread for thread in threading.enumerate() if isinstance(thread, WorkThread)]
    end_at = time.monotonic() + WORK_END_SECONDS
    for thread in threads:
        thread.join(max(end_at - time.monotonic(), 0.0))
    return any(thread.is_alive() for thread in threads)


def leave_now(exit_code: int) -> NoReturn:
    """Exit without waiting for any thread. Output is flushed; everything else is in the ledger."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def leave_in_time(stop: "StopSignal", seconds: float, exit_code: int) -> None:
    """Exit this many seconds after the first request to stop, even if threads still run.

    Each part of stopping has its own limit; this is the limit of all together, before the platform's SIGKILL.
    """
    threading.Thread(target=_leave_after, args=(stop, seconds, exit_code), name="penstock-leaving", daemon=True).start()


def _leave_after(stop: "StopSignal", seconds: float, exit_code: int) -> None:
    stop_requested = threading.Event()
    with stop.watched_by(stop_requested):
        while not stop.requested:  # a pause and a call for stacks wake it, too, and are no stop
            stop_requested.wait()
            stop_requested.clear()
    threading.Event().wait(seconds)
    leave_now(exit_code)


def ignore_handled_signals() -> None:
    """Ignore the signals that have a Python handler, in a process that is about to exit. Main thread only.

    The interpreter resets them to their default action as it shuts down: a second Ctrl-C would end the process with
    the signal instead of its exit code. Ignored signals stay ignored.
    """
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)


def leave_within(seconds: float, exit_code: int) -> None:
    """Exit after this many seconds, even if a thread of a library still runs."""
    timer = threading.Timer(seconds, leave_now, (exit_code,))
    timer.daemon = True
    timer.start()
