"""Exit codes that verbs choose themselves; those of errors stand on their classes in `penstock.errors`.

Leaving in order: SIGTERM and Ctrl-C ask for it, and nothing hangs the process afterwards.
"""

import os
import signal
import sys
import threading
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


@contextmanager
def stoppable() -> "Iterator[StopSignal]":
    """A stop signal that SIGTERM and SIGINT set, as long as the block lasts."""
    from penstock.worker.shutdown import STOPPING, StopSignal  # here, so that `penstock --help` need not load a worker

    stop = StopSignal()
    stop.install(*STOPPING)  # in a terminal Ctrl-Z should suspend, not make a job fetch no more
    try:
        yield stop
    finally:
        stop.remove()


def stopped_code(stop: "StopSignal") -> int:
    """The exit code of a job that was stopped before all of it was done."""
    return INTERRUPTED if stop.signal_number == signal.SIGINT else TEMPORARY_FAILURE


def leave_job(report: "IngestReport | RunReport", stop: "StopSignal", *, forced: bool) -> None:
    """End a job on Spark with its exit code. ``forced``: something of it does not end."""
    if forced:  # waiting for it would outlast the stop timeout
        leave_now(stopped_code(stop))
    if report.stopped:
        raise typer.Exit(stopped_code(stop))
    if report.objects_dead:
        raise typer.Exit(CHECK_FOUND_PROBLEMS)


def leave_now(exit_code: int) -> NoReturn:
    """Leave without waiting for any thread. What was printed is written out; everything else is in the ledger."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def leave_in_time(stop: "StopSignal", seconds: float, exit_code: int) -> None:
    """See to it that the process has ended so long after the first request to stop: each part of stopping has its own
    bound, and this one is that of all of them together, before the platform's SIGKILL."""
    threading.Thread(target=_leave_after, args=(stop, seconds, exit_code), name="penstock-leaving", daemon=True).start()


def _leave_after(stop: "StopSignal", seconds: float, exit_code: int) -> None:
    asked = threading.Event()
    with stop.watched_by(asked):
        while not stop.requested:  # a pause and a call for stacks wake it, too, and are no stop
            asked.wait()
            asked.clear()
    threading.Event().wait(seconds)
    leave_now(exit_code)


def leave_within(seconds: float, exit_code: int) -> None:
    """See to it that the process has ended by then, whatever thread of a library would keep it from that."""
    timer = threading.Timer(seconds, leave_now, (exit_code,))
    timer.daemon = True
    timer.start()
