"""Progress of long jobs on stderr: a bar on a terminal, else a line at intervals; and their losses."""

import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from penstock.cli.output import printable, talk
from penstock.events import (
    BatchClaimed,
    BatchCommitted,
    BatchProgressed,
    ColumnsAdded,
    DeliveryAcked,
    DeliverySettled,
    ErrorHookFailed,
    Event,
    ExecutionFailed,
    FaultsRepeated,
    HeartbeatFailed,
    JobFailed,
    ObjectFailed,
    ObjectFinished,
    ObjectStarted,
    ReceiveFailed,
    RunFailed,
    SchemaInferred,
    SelectiveListener,
    SourceCleaned,
    SourceScanned,
    SparkAwaited,
    SparkStarted,
    WatchDegraded,
    WatchStarted,
    WorkerDraining,
    WorkerStopped,
)
from penstock.messaging.wording import counted, worded
from penstock.operations.advice import advice

if TYPE_CHECKING:
    from penstock.app.pipelines.running import RunReport
    from penstock.operations.ingest.ingest import IngestReport


LINE_EVERY_SECONDS = 5.0


class ProgressPace:
    """Decide when a progress line is due. Used by one thread at a time."""

    def __init__(self, *, at_once: bool = False, monotonic: Callable[[], float] = time.monotonic) -> None:
        """``at_once``: the first line is due immediately."""
        self._monotonic = monotonic
        self._printed_at = float("-inf") if at_once else monotonic()

    def begin_if_due(self) -> bool:
        """Return True if a line is due. The next one is due after the interval, counted from this call."""
        now = self._monotonic()
        if now - self._printed_at < LINE_EVERY_SECONDS:
            return False
        self._printed_at = now
        return True


CLEANUP = "cleanup"  # the handler in events about cleaning up the source
CLEANED = {"tag": "tagged", "move": "moved", "delete": "deleted"}  # past participle of a cleanup's action
FAILURES_SHOWN = 20
UNKNOWN_SHOWN = 5  # names of fields in a summary
# Not shown, and a batch has many thousands.
_OF_EACH_OBJECT = (ObjectStarted, ObjectFinished, DeliveryAcked, DeliverySettled)

_DOING = {
    ExecutionFailed: "a batch",
    JobFailed: "publishing and sweeping",
    ReceiveFailed: "receiving from the queue",
    HeartbeatFailed: "extending leases and claims",
}


class IngestProgress(SelectiveListener):
    """The listener that shows an ingest. Events come from several threads; a lock serializes them."""

    def __init__(self, *, options: str = "", monotonic: Callable[[], float] = time.monotonic) -> None:
        """``options`` select the same table or app in the commands of hints."""
        self._options = options
        self._pace = ProgressPace(at_once=True, monotonic=monotonic)
        self.forced = False  # a thread does not end: written once, read after the job
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
        """Show nothing more: the log goes to standard error instead."""
        self._silent = True
        if self._bar is not None:
            self._bar.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def wants(self, kind: type[Event]) -> bool:
        return kind not in _OF_EACH_OBJECT

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._count(event)
            if self._silent:
                return
            with suppress(OSError):  # the terminal is gone; the job continues
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
                self._write(_failure(event))
            case ObjectFailed() if self._failures == FAILURES_SHOWN + 1:
                self._write(f"further failures are not shown here; see `penstock objects list{self._options}`")
        for line in event_lines(event):
            self._write(line)
        if self._bar is not None:
            self._bar.show(done=self._done, total=max(self._objects, self._done), rows=self._rows)

    def _progress(self, text: str) -> None:
        """Print a progress line if one is due."""
        if self._bar is None and self._pace.begin_if_due():
            # More objects may arrive than were found.
            total = counted(max(self._objects, self._done), "object")
            done = f"{self._done:,} of {total}" if self._objects > self._done else total
            talk(f"{done}, {counted(self._rows, 'row')}; this batch: {text}")

    def _write(self, text: str) -> None:
        shown = printable(text)
        if self._bar is not None:
            self._bar.write(shown)
        else:
            talk(shown)


def event_lines(event: Event) -> list[str]:
    """Return the lines to print for an event."""
    match event:
        case SourceScanned():
            waiting = f", {counted(event.messages, 'message')} in the queue" if event.messages else ""
            return [f"{counted(event.found, 'object')} found in {event.source}, {event.unfinished:,} to do{waiting}"]
        case WatchStarted():
            return [f"watching {event.source}; Ctrl-C ends it"]
        case WatchDegraded():
            return [event.reason]
        case SchemaInferred():
            schema = f"schema inferred from a sample and recorded: {event.schema}"
            return [schema, *(f"  {note}" for note in event.notes)]
        case SparkAwaited():
            return [f"waiting for executors of Spark ({event.spark}): has its cluster free cores? Ctrl-C ends the wait"]
        case SparkStarted():
            started = f"Spark started in {event.seconds:.1f} s ({event.java})"
            return [*(f"Java: {note}" for note in event.notes), started]
        case BatchClaimed():
            return [f"batch of {counted(event.objects, 'object')}, {counted(event.bytes, 'byte')}"]
        case BatchCommitted():
            bad = f", {counted(event.lines_quarantined, 'line')} quarantined" if event.lines_quarantined else ""
            objects, rows = counted(event.objects, "object"), counted(event.rows, "row")
            gone = f", {counted(event.replaced_rows, 'earlier row')} replaced" if event.replaced_objects else ""
            grown = f", {counted(event.appended_rows, 'row')} appended" if event.grown_objects else ""
            return [f"batch {event.seq} committed: {objects}, {rows}{gone}{grown}{bad}"]
        case ColumnsAdded():
            columns = ", ".join(f"{name} {kind}" for name, kind in event.columns.items())
            return [f"{worded(len(event.columns), 'column', 'columns')} added for new fields: {columns}"]
        case SourceCleaned():
            return [_cleaned(event)]
        case WorkerDraining() if event.reason != "done":
            return [f"stopping: {counted(event.in_flight, 'message')} in flight will be finished or released"]
        case _:
            return _trouble(event)


def _trouble(event: Event) -> list[str]:
    match event:
        case RunFailed():
            return [f"a run of {counted(event.objects, 'object')} failed: {event.error}"]
        case ExecutionFailed() | JobFailed() | ReceiveFailed() | HeartbeatFailed():
            return [f"{_doing(event)} failed and is retried: {event.error}"]
        case FaultsRepeated():
            return [f"the infrastructure failed {event.count:,} times in a row; its work is retried: {event.error}"]
        case ErrorHookFailed():
            return [f"a failure could not be reported ({event.hook}): {event.error}"]
        case _:
            return []


def _doing(event: Event) -> str:
    return "cleaning up the source" if isinstance(event, JobFailed) and event.job == CLEANUP else _DOING[type(event)]


def _cleaned(event: SourceCleaned) -> str:
    left_alone = f", {event.skipped:,} left alone" if event.skipped else ""
    return f"batch {event.seq}: {counted(event.objects, 'object')} {CLEANED[event.action]}{left_alone}"


def _failure(event: ObjectFailed) -> str:
    outcome = "to be retried" if event.outcome == "retry" else event.outcome
    named = "" if event.object_uri in event.reason else f"{event.object_uri}: "
    return f"{outcome}: {named}{event.reason}"


class _Bar:
    """The progress bar on stderr."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}, {task.fields[rows]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("ingesting", total=None, unit="objects", rows=counted(0, "row"))
        self._progress.start()

    def show(self, *, done: int, total: int, rows: int) -> None:
        unit, shown = worded(total, "object", "objects"), counted(rows, "row")
        self._progress.update(self._task, completed=done, total=total or None, unit=unit, rows=shown)

    def write(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()


def losses(report: "IngestReport | RunReport", options: str) -> list[str]:
    """Return a line for each kind of input that did not become rows."""
    remarks: list[str] = []
    if report.lines_quarantined:
        lines = counted(report.lines_quarantined, "bad line")
        remarks.append(f"Quarantined: {lines}, in {report.quarantine_table}, with the reason.")
    if report.unknown_fields:
        fields = counted(len(report.unknown_fields), "unknown field")
        objects = counted(report.unknown_objects, "object")
        remarks.append(f"{fields} in {objects}: {_by_field(report.unknown_fields, options)}")
    if report.wrong_type_fields:
        objects = counted(report.wrong_type_objects, "object")
        remarks.append(
            f"Values of another type than their column in {objects}, kept in _rescued: "
            f"{_by_field(report.wrong_type_fields, options)}"
        )
    if report.objects_dead:
        dead = counted(report.objects_dead, "object")
        remarks.append(
            f"Dead: {dead}; `penstock objects list{options} --only dead` shows why. {_again(report, options)}"
        )
    if report.objects_gone:
        subject = worded(
            report.objects_gone, "{} object, deleted before it was", "{} objects, deleted before they were"
        )
        remarks.append(f"Gone: {subject} read.")
    return remarks


def grown(report: "IngestReport | RunReport") -> list[str]:
    """Return a line for the objects of which only appended lines were read, if there are any."""
    if not report.grown_objects:
        return []
    rows = worded(report.appended_rows, "{} row was", "{} rows were")
    return [f"{worded(report.grown_objects, '{} file', '{} files')} grew: {rows} appended."]


def merged(report: "IngestReport | RunReport") -> list[str]:
    """Return the sentence about a merge by key; none if rows are added, or if there were none."""
    rows = report.merged_rows
    if not rows or not any(rows.values()):
        return []
    text = (
        f"Merged by key: {counted(rows['inserted'], 'row')} inserted, {rows['updated']:,} updated, "
        f"{rows['deleted']:,} deleted, {worded(rows['left_out'], '{} older one', '{} older ones')} left out."
    )
    return [text]


def replaced(report: "IngestReport | RunReport") -> list[str]:
    """Return a line for the objects whose earlier versions were replaced or that were read again, if there are any."""
    if report.objects_reread:
        return [_reread(report)]
    if not report.replaced_objects:
        return []
    if not report.replaced_rows:
        without = (
            "{} file changed: its earlier version had no rows.",
            "{} files changed: their earlier versions had no rows.",
        )
        return [worded(report.replaced_objects, *without)]
    changed = worded(report.replaced_objects, "{} file changed: its", "{} files changed: their")
    return [f"{changed} {worded(report.replaced_rows, '{} earlier row was', '{} earlier rows were')} replaced."]


def _reread(report: "IngestReport | RunReport") -> str:
    """Return the line if some of the replaced rows are of objects that did not change."""
    again, changed = report.objects_reread, max(0, report.replaced_objects - report.objects_reread)
    them = worded(again, "{} object read again", "{} objects read again")
    if changed:
        them += f", and {worded(changed, '{} file changed', '{} files changed')}"
    whose = "its" if again + changed == 1 else "their"
    if not report.replaced_rows:
        return f"{them}: the table had none of {whose} rows."
    return f"{them}: {whose} {worded(report.replaced_rows, '{} earlier row was', '{} earlier rows were')} replaced."


def replayed(report: "IngestReport | RunReport") -> list[str]:
    """Return a line for the objects of which the bad lines were read again, if there are any."""
    if not report.objects_replayed:
        return []
    return [f"Replayed: the bad lines of {counted(report.objects_replayed, 'object')}."]


def warning_of(report: "IngestReport | RunReport", options: str) -> list[str]:
    """Return the last line of a report if objects have too many bad lines."""
    if not report.warned_objects:
        return []
    lines, objects = counted(report.warned_lines, "bad line"), counted(report.warned_objects, "object")
    command = f"`penstock quarantine list{options} --warnings`"
    return [f"Warning: {lines} in {objects}, over 5% of their lines; {command} shows them, and what to do."]


def _by_field(fields: Mapping[str, int], options: str) -> str:
    named = [f"{name} ({counted(rows, 'row')})" for name, rows in fields.items()]
    more = f" and {len(named) - UNKNOWN_SHOWN:,} more" if len(named) > UNKNOWN_SHOWN else ""
    shown = f"{', '.join(named[:UNKNOWN_SHOWN])}{more}"
    return f"{shown}; `penstock objects show{options} OBJECT` has those of one object."


def _again(report: "IngestReport | RunReport", options: str) -> str:
    """Return how to bring failed objects back. With a named queue, the dead letters are at that queue's broker."""
    queue = getattr(report, "queue", None)
    if queue is not None:
        command = f"penstock dead replay --queue {shlex.quote(queue)}"
        return f"Once the cause is fixed, `{command}` sends its dead letters back."
    hint = advice(options, handler=getattr(report, "pipeline", None))
    return f"{hint} Then run the same command again."
