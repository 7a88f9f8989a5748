"""What a person sees of a long job: a bar on a terminal, a line now and then elsewhere; and what it lost.

How often a long job says how far it is.
"""

import shlex
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.cli.output import advice, counted, printable, talk
from penstock.events import (
    BatchClaimed,
    BatchCommitted,
    BatchProgressed,
    ErrorHookFailed,
    Event,
    ExecutionFailed,
    FaultsRepeated,
    HeartbeatFailed,
    ObjectFailed,
    ReceiveFailed,
    RunFailed,
    SchemaInferred,
    SourceCleaned,
    SourceScanned,
    SparkStarted,
    UpkeepFailed,
    WatchBegan,
    WatchDisturbed,
    WorkerDraining,
    WorkerStopped,
)

if TYPE_CHECKING:
    from penstock.app.pipelines.running import RunReport
    from penstock.operations.ingest.ingest import IngestReport


LINE_EVERY_SECONDS = 5.0


class ProgressPace:
    """Tells when a line is due. For one thread at a time."""

    def __init__(self, *, at_once: bool = False, monotonic: Callable[[], float] = time.monotonic) -> None:
        """``at_once``: the first line is."""
        self._monotonic = monotonic
        self._said_at = float("-inf") if at_once else monotonic()

    def is_due(self) -> bool:
        """Whether it is time for a line; the next one is due so long after that."""
        now = self._monotonic()
        if now - self._said_at < LINE_EVERY_SECONDS:
            return False
        self._said_at = now
        return True


CLEANUP = "cleanup"  # what a failed upkeep names, where the source was being cleaned up
CLEANED = {"tag": "tagged", "move": "moved", "delete": "deleted"}  # a cleanup's action, done
FAILURES_SHOWN = 20

_DOING = {
    ExecutionFailed: "a batch",
    UpkeepFailed: "publishing and sweeping",
    ReceiveFailed: "asking the queue",
    HeartbeatFailed: "extending what is held",
}


class IngestProgress:
    """Listens to an ingest. Events come from several threads; the lock makes them one story."""

    def __init__(self, *, options: str = "", monotonic: Callable[[], float] = time.monotonic) -> None:
        """``options`` lead the verbs of a hint to what is worked on."""
        self._options = options
        self._pace = ProgressPace(at_once=True, monotonic=monotonic)
        self.forced = False  # a thread would not end: written once, read when the job is over
        self._terminal = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._silent = False  # written once, before the job begins
        self._bar = _Bar() if self._terminal else None
        self._objects = 0  # this and the rest are written under the lock
        self._done = 0
        self._rows = 0
        self._failures = 0

    def __enter__(self) -> Self:
        return self

    def silence(self) -> None:
        """Show nothing from now on: the log goes to standard error instead."""
        self._silent = True
        if self._bar is not None:
            self._bar.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._count(event)
            if self._silent:
                return
            with suppress(OSError):  # the terminal has gone, and the job goes on without it
                self._show(event)

    def _count(self, event: Event) -> None:
        match event:
            case SourceScanned():
                self._objects = event.unfinished
            case BatchCommitted():
                self._done += event.objects
                self._rows += event.rows
            case ObjectFailed():
                self._failures += 1
                self._done += event.outcome != "retry"
            case WorkerStopped():
                self.forced = event.outcome == "forced"

    def _show(self, event: Event) -> None:
        match event:
            case BatchProgressed():
                self._progress(f"{event.tasks_done} of {event.tasks} tasks")
            case ObjectFailed() if self._failures <= FAILURES_SHOWN:
                self._say(_failure(event))
            case ObjectFailed() if self._failures == FAILURES_SHOWN + 1:
                self._say(f"further failures are not shown here; see `penstock objects list{self._options}`")
        for line in told(event):
            self._say(line)
        if self._bar is not None:
            self._bar.show(done=self._done, total=max(self._objects, self._done), rows=self._rows)

    def _progress(self, text: str) -> None:
        """Something moved; worth a line only now and then."""
        if self._bar is None and self._pace.is_due():
            total = f" of {self._objects:,}" if self._objects > self._done else ""  # more may come than were found
            talk(f"{self._done:,}{total} objects, {self._rows:,} rows; this batch: {text}")

    def _say(self, text: str) -> None:
        shown = printable(text)
        if self._bar is not None:
            self._bar.say(shown)
        else:
            talk(shown)


def told(event: Event) -> list[str]:
    """The lines that an event is worth whoever listens."""
    match event:
        case SourceScanned():
            waiting = f", {counted(event.messages, 'message')} in the queue" if event.messages else ""
            return [f"{counted(event.found, 'object')} found in {event.source}, {event.unfinished:,} to do{waiting}"]
        case WatchBegan():
            return [f"watching {event.source}; Ctrl-C ends it"]
        case WatchDisturbed():
            return [event.reason]
        case SchemaInferred():
            schema = f"schema inferred from a sample and remembered: {event.schema}"
            return [schema, *(f"  {note}" for note in event.notes)]
        case SparkStarted():
            started = f"Spark started in {event.seconds:.1f} s ({event.java})"
            return [*(f"Java: {note}" for note in event.notes), started]
        case BatchClaimed():
            return [f"batch of {counted(event.objects, 'object')}, {counted(event.bytes, 'byte')}"]
        case BatchCommitted():
            bad = f", {counted(event.lines_quarantined, 'line')} quarantined" if event.lines_quarantined else ""
            objects, rows = counted(event.objects, "object"), counted(event.rows, "row")
            return [f"batch {event.seq} committed: {objects}, {rows}{bad}"]
        case SourceCleaned():
            return [_cleaned(event)]
        case WorkerDraining() if event.reason != "done":
            return [f"stopping: what is in flight ({counted(event.in_flight, 'message')}) is finished or given back"]
        case _:
            return _trouble(event)


def _trouble(event: Event) -> list[str]:
    match event:
        case RunFailed():
            return [f"a run of {counted(event.objects, 'object')} failed: {event.error}"]
        case ExecutionFailed() | UpkeepFailed() | ReceiveFailed() | HeartbeatFailed():
            return [f"{_doing(event)} failed and is tried again: {event.error}"]
        case FaultsRepeated():
            return [f"the machinery failed {event.count:,} times in a row; its work is tried again: {event.error}"]
        case ErrorHookFailed():
            return [f"a failure could not be told ({event.hook}): {event.error}"]
        case _:
            return []


def _doing(event: Event) -> str:
    return (
        "cleaning up the source"
        if isinstance(event, UpkeepFailed) and event.handler == CLEANUP
        else _DOING[type(event)]
    )


def _cleaned(event: SourceCleaned) -> str:
    left_alone = f", {event.skipped:,} left alone" if event.skipped else ""
    return f"batch {event.seq}: {counted(event.objects, 'object')} {CLEANED[event.action]}{left_alone}"


def _failure(event: ObjectFailed) -> str:
    outcome = "to be tried again" if event.outcome == "retry" else event.outcome
    named = "" if event.object_uri in event.reason else f"{event.object_uri}: "
    return f"{outcome}: {named}{event.reason}"


class _Bar:
    """rich's progress bar on stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("objects, {task.fields[rows]:,} rows"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("ingesting", total=None, rows=0)
        self._progress.start()

    def show(self, *, done: int, total: int, rows: int) -> None:
        self._progress.update(self._task, completed=done, total=total or None, rows=rows)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()


def losses(report: "IngestReport | RunReport", options: str) -> list[str]:
    """What did not become rows, a line each."""
    told: list[str] = []
    if report.lines_quarantined:
        lines = counted(report.lines_quarantined, "bad line")
        told.append(f"Quarantined: {lines}, in {report.quarantine_table}, with the reason.")
    if report.objects_dead:
        dead = counted(report.objects_dead, "object")
        told.append(f"Dead: {dead}; `penstock objects list{options} --only dead` says why. {_again(report, options)}")
    if report.objects_gone:
        told.append(f"Gone: {counted(report.objects_gone, 'object')}, deleted before they were read.")
    return told


def _again(report: "IngestReport | RunReport", options: str) -> str:
    """What brings failed objects back. The letters of a queue that was named lie with that queue's broker."""
    queue = getattr(report, "queue", None)
    if queue is not None:
        command = f"penstock dead replay --queue {shlex.quote(queue)}"
        return f"Once the cause is repaired, `{command}` sends its dead letters back."
    told = advice(options, handler=getattr(report, "pipeline", None))
    return f"{told} Then run the same command again."
