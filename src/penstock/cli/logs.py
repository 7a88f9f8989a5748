"""`penstock admin logs`: diagnose problems from log lines, and print the history of an object."""

import dataclasses
import gzip
import io
import json
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from penstock.cli.exits import CHECK_FOUND_PROBLEMS
from penstock.cli.options import object_uri
from penstock.cli.output import Json, print_json, print_table, printable, talk
from penstock.cli.progress import ProgressPace
from penstock.errors import UsageError
from penstock.handlers.durations import seconds_of
from penstock.messaging.wording import counted
from penstock.monitoring.diagnoses import Diagnoser, Diagnoses, Found, LogLine, OutageFinding, Story, Unwrapping
from penstock.monitoring.diagnoses.lines import LINE_BYTES_MAX
from penstock.monitoring.logs.lines import moment

app = typer.Typer(no_args_is_help=True)

STDIN = "-"
GZIP = b"\x1f\x8b"
SPOOL_BYTES = 16 * 1024 * 1024  # before it goes to the disk
SHOWN = 20


@app.callback()
def _root() -> None:
    """Read the logs of workers and ingests."""


@app.command()
def diagnose(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Logs of any number of workers, also .gz; - for stdin.")
    ],
    object_: Annotated[
        str | None, typer.Option("--object", metavar="URI", help="Print the history of this object.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only lines since then: 2026-11-22T07:00Z, or 2h (ago)."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only lines before then.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="Findings shown per section.")] = SHOWN,
    json_: Json = False,
) -> None:
    """Find failed, interrupted and lost work in worker logs.

    Lists objects and messages that failed, died with their worker, were taken over or interrupted, with the attempt
    that finished them later; objects that were skipped as processed but never finished; and outages of services. For
    messages that died, the log needs the event message.started, which is written at level debug.

    Lines of other programs are ignored and counted. Wrappers of CloudWatch, Docker, journald and Kubernetes are
    removed. Exit code 3: something died with its worker or was skipped wrongly, or no line is about the --object.
    """
    window = _TimeWindow(since=_moment("--since", since), until=_moment("--until", until))
    for file in files:
        _check(file)
    story = None if object_ is None else Story(object_uri(object_))
    with tempfile.SpooledTemporaryFile(SPOOL_BYTES, "w+", encoding="utf-8") as spool:
        diagnoser = Diagnoser(spool)  # type: ignore[arg-type]  # a text file, which typeshed does not say of it
        read = _FileReader(window)
        for line in read.all(files):
            _take(line, diagnoser, story)
        found = diagnoser.diagnoses()
    read.check()
    summary = read.summary(len(files), diagnoser)
    timeline = None if story is None else story.lines()
    if json_:
        print_json(document(found, summary=summary, story=timeline, limit=limit))
    else:
        talk(_sentence(summary))
        if object_ is None or timeline is None:
            print_diagnoses(found, limit=limit, lines=read.ours)
        else:
            print_story(timeline, found, uri=object_uri(object_))
    if found.is_wrong or (timeline is not None and not timeline):
        raise typer.Exit(CHECK_FOUND_PROBLEMS)


def _take(line: LogLine, diagnoser: Diagnoser, story: Story | None) -> None:
    if story is None or story.take(line):
        diagnoser.take(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimeWindow:
    """The window of --since and --until, in the log's notation of times."""

    since: str | None
    until: str | None

    def holds(self, ts: str) -> bool:
        return (self.since is None or ts >= self.since) and (self.until is None or ts < self.until)


class _FileReader:
    """The reader of the log files, which counts lines. Used by one thread."""

    def __init__(self, window: _TimeWindow) -> None:
        self.ours = 0  # of Penstock, in the window
        self._window = window
        self._pace = ProgressPace()
        self._lines = 0
        self._others = 0  # of other programs, or torn
        self._metrics = 0  # of ours, among the log
        self._outside = 0

    def all(self, files: Sequence[str]) -> Iterator[LogLine]:
        for file in files:
            unwrapping = Unwrapping()
            with _opened(file) as stream:
                for raw in _raw_lines(stream):
                    self._lines += 1
                    self._progress()
                    for line in unwrapping.lines(raw):
                        if line is None:
                            self._others += 1
                        elif not self._window.holds(line.ts):
                            self._outside += 1
                        else:
                            self.ours += 1
                            yield line
            self._metrics += unwrapping.metrics

    def check(self) -> None:
        """Raise `UsageError` if no line is from Penstock's log: that does not show that all is well."""
        if not self.ours and not self._outside:
            raise UsageError(
                f"None of {counted(self._lines, 'line')} is a JSON log line of Penstock, so there is nothing to "
                "diagnose. The console format cannot be read. Processes log JSON with PENSTOCK_LOG_FORMAT=json "
                "(setting log_format), and automatically if standard error is not a terminal."
            )

    def summary(self, files: int, diagnoser: Diagnoser) -> dict[str, int | str | None]:
        """Return counts of what was read."""
        return {
            "files": files,
            "lines": self._lines,
            "ours": self.ours,
            "others": self._others,
            "metrics": self._metrics,
            "outside": self._outside,
            "first": diagnoser.first_ts,
            "last": diagnoser.last_ts,
        }

    def _progress(self) -> None:
        if self._lines % 10_000 == 0 and self._pace.begin_if_due():
            talk(f"{counted(self._lines, 'line')} read")


def _sentence(summary: dict[str, int | str | None]) -> str:
    lines, ours, others = (int(summary[name] or 0) for name in ("lines", "ours", "others"))
    span = f", from {summary['first']} to {summary['last']}" if summary["first"] else ""
    metrics = f"; {counted(int(summary['metrics'] or 0), 'line')} of metrics" if summary["metrics"] else ""
    passed = f"; {counted(others, 'line')} of other programs ignored" if others else ""
    outside = f"; {int(summary['outside'] or 0):,} outside --since and --until" if summary["outside"] else ""
    files = counted(int(summary["files"] or 0), "file")
    return f"{counted(lines, 'line')} of {files} read, {ours:,} of Penstock{span}{metrics}{passed}{outside}."


def _raw_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines that are not blank. A line that is too long to be Penstock's is cut, and then ignored."""
    while raw := stream.readline(LINE_BYTES_MAX):
        rest = raw
        while len(rest) == LINE_BYTES_MAX and not rest.endswith(b"\n"):
            rest = stream.readline(LINE_BYTES_MAX)
            raw = b"(too long)"
        if not raw.isspace():
            yield raw


def _check(file: str) -> None:
    if file == STDIN:
        return
    path = Path(file)
    if path.is_dir():
        raise UsageError(f"{file} is a folder; name the log files in it, as in {file.rstrip('/')}/*.log.")
    if not path.exists():
        raise UsageError(f"There is no file {file}.")


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    """Return the file's lines, decompressed if necessary. Raises `UsageError` if it cannot be opened."""
    with ExitStack() as stack, _readable(file):
        raw: Any = sys.stdin.buffer if file == STDIN else stack.enter_context(Path(file).open("rb"))
        buffered = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)
        packed = buffered.peek(len(GZIP))[: len(GZIP)] == GZIP
        opened: Any = stack.enter_context(gzip.open(buffered)) if packed else buffered
        yield opened


@contextmanager
def _readable(file: str) -> Iterator[None]:
    """Turn the errors of a damaged or unreadable file into a `UsageError`."""
    name = "standard input" if file == STDIN else file
    try:
        yield
    except EOFError as error:
        raise UsageError(f"{name} ends in the middle of the compressed data; is it still being written?") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{name} is damaged: gzip cannot read it ({error}).") from error
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}.") from error


def _moment(option: str, text: str | None) -> str | None:
    """Return a time as the log writes it; a duration is subtracted from now. Raise `UsageError` if it is neither."""
    if text is None:
        return None
    try:
        given = datetime.fromisoformat(text)
        epoch_seconds = (given if given.tzinfo is not None else given.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        try:
            epoch_seconds = time.time() - seconds_of(option, text)
        except UsageError as error:
            raise UsageError(
                f"{option} {text!r} is not a time: write one such as 2026-11-22T07:00Z, or 2h for two hours ago."
            ) from error
    return moment(epoch_seconds)


REASON_CHARS = 160
_DETAILS = ("reason", "rows", "lines_quarantined", "count", "seq", "tries", "error.type", "error.message", "message_id")

_SECTIONS: Mapping[str, tuple[str, str, str]] = {
    "wrongly_processed": (
        "Skipped as processed, but never finished",
        "no earlier line reports that the object was processed",
        (
            "`penstock objects show URI` names the attempt on record. If that attempt is older than these logs, read "
            "its logs too: all is well. Otherwise look for the object's rows in the table, by its column _object."
        ),
    ),
    "died": (
        "Died with their worker",
        "an attempt without an end, and no later attempt",
        (
            "The worker was killed (SIGKILL, out of memory) or is still working: see its last line, and `penstock "
            "admin workers list`. A message is delivered again when its lease expires. `penstock objects show URI` "
            "shows the state of an object; if its message is missing, `penstock reconcile` sends a new one."
        ),
    ),
    "failed": (
        "Failed",
        "dead-lettered or not retried",
        "`penstock dead show` prints reason and traceback. Fix the cause, then run `penstock dead replay`.",
    ),
    "taken_over": (
        "Taken over from another worker",
        "the lease of that worker expired because it died or hung",
        (
            "Effects outside Penstock may have happened twice: `penstock admin logs diagnose --object URI`, or the "
            "lines of the message, show both attempts."
        ),
    ),
    "interrupted": (
        "Interrupted by a shutdown",
        "released for another attempt",
        "Those without a later attempt wait in their queue: `penstock status` shows if the queue has a consumer.",
    ),
    "finished": (
        "Finished",
        "time and attempt of the first finish; use it to trace wrong rows in the table",
        "`--object URI` prints the history of one object, `penstock objects show URI` its batch.",
    ),
}

_OUTAGES = {
    "breaker": "queue {} paused",
    "ledger": "ledger unavailable",
    "store": "store {} unavailable",
    "monitor_poll": "monitor could not poll {}",
}


def print_diagnoses(found: Diagnoses, *, limit: int, lines: int) -> None:
    """Print a section per diagnosis: the count, the first findings, and what to do."""
    if not lines:
        print("No line of Penstock is within --since and --until, so there is nothing to diagnose.")
        return
    for name, (title, meaning, advice) in _SECTIONS.items():
        _print_section(title, meaning, advice, getattr(found, name), limit=limit)
    _print_outages(found.outages, limit=limit)
    for remark in found.remarks:
        talk(remark)


def print_story(lines: Sequence[LogLine], found: Diagnoses, *, uri: str) -> None:
    """Print every line about the object, then what is wrong with it."""
    print_table(
        ("time", "event", "worker", "attempt", "details"),
        [
            (
                line.ts,
                line.event,
                line.name("worker") or "",
                line.name("attempt_id") or line.fields.get("attempt") or "",
                "; ".join(_details(line)),
            )
            for line in lines
        ],
        empty=printable(f"These logs have no line about {uri}."),
    )
    for name, (title, meaning, advice) in _SECTIONS.items():
        if name != "finished" and getattr(found, name):
            _print_section(title, meaning, advice, getattr(found, name), limit=len(lines))


def document(
    found: Diagnoses, *, summary: Mapping[str, Any], story: Sequence[LogLine] | None, limit: int
) -> Mapping[str, Any]:
    """Return the diagnoses as a JSON document."""
    diagnoses = {
        name: {"count": len(getattr(found, name)), "first": [_row(finding) for finding in getattr(found, name)[:limit]]}
        for name in _SECTIONS
    }
    outages = {"count": len(found.outages), "first": [_outage_row(outage) for outage in found.outages[:limit]]}
    result: dict[str, Any] = {"read": dict(summary), **diagnoses, "outages": outages, "remarks": list(found.remarks)}
    return result if story is None else {**result, "story": [dict(line.fields) for line in story]}


def _print_section(title: str, meaning: str, advice: str, found: Sequence[Found], *, limit: int) -> None:
    if not found:
        print(f"{title}: none.")
        return
    print(f"\n{title}: {_how_many(found)} ({meaning}).")
    for finding in found[:limit]:
        print(printable(f"  {finding.ts}  {finding.name}{_facts(finding)}"))
    if len(found) > limit:
        print(f"  ... and {len(found) - limit:,} more; --limit shows them.")
    print(f"  -> {advice}\n")


def _print_outages(found: Sequence[OutageFinding], *, limit: int) -> None:
    if not found:
        print("Outages: none.")
        return
    print(f"\nOutages: {len(found):,} (a breaker was open, or a service was unavailable).")
    for finding in found[:limit]:
        end = "no end in these logs" if finding.ended_ts is None else f"until {finding.ended_ts}{_lasted(finding)}"
        facts = [
            _OUTAGES[finding.what].format(finding.name),
            counted(finding.workers, "worker"),
            _cut(finding.error or ""),
        ]
        print(printable(f"  {finding.began_ts}  {end}" + "".join(f", {fact}" for fact in facts if fact)))
    if len(found) > limit:
        print(f"  ... and {len(found) - limit:,} more; --limit shows them.")
    print("  -> No message is lost in an outage: messages wait. Check the service that the error names.\n")


def _lasted(outage: OutageFinding) -> str:
    seconds = _seconds_of(outage)
    return "" if seconds is None else f" ({seconds:,.0f} s)"


def _seconds_of(outage: OutageFinding) -> float | None:
    try:
        return (datetime.fromisoformat(outage.ended_ts or "") - datetime.fromisoformat(outage.began_ts)).total_seconds()
    except ValueError:  # it did not end, or digits that are no time
        return None


def _outage_row(outage: OutageFinding) -> Mapping[str, Any]:
    row = {**dataclasses.asdict(outage), "seconds": _seconds_of(outage)}
    return {name: value for name, value in row.items() if value is not None}


def _how_many(found: Sequence[Found]) -> str:
    objects = len({(finding.place, finding.name) for finding in found if finding.kind == "object"})
    messages = len({(finding.place, finding.name) for finding in found if finding.kind == "message"})
    counts = [counted(objects, "object")] if objects else []
    counts += [counted(messages, "message")] if messages else []
    return ", ".join(counts)


def _facts(finding: Found) -> str:
    facts = [
        f"{finding.place}" if finding.place else "",
        f"attempt {finding.attempt_id or finding.attempt}" if finding.attempt_id or finding.attempt else "",
        f"by {finding.worker}" if finding.worker else "",
        f"from attempt {finding.from_attempt or '?'} of {finding.from_worker}" if finding.from_worker else "",
        f"{finding.times} times" if finding.times > 1 else "",
        f"its last line: {finding.worker_last_ts}" if finding.worker_last_ts else "",
        _cut(finding.reason) if finding.reason and finding.reason != "already_processed" else "",
    ]
    if finding.later is not None:
        attempt = finding.later.attempt_id or finding.later.attempt or "?"
        facts.append(f"finished {finding.later.ts} by attempt {attempt} of {finding.later.worker or '?'}")
    return "".join(f", {fact}" for fact in facts if fact)


def _details(line: LogLine) -> Iterator[str]:
    for name in _DETAILS:
        if name in line.fields and not (name == "message_id" and line.event.startswith("object.")):
            value = line.fields[name]
            yield f"{name}={_cut(value if isinstance(value, str) else json.dumps(value))}"


def _row(finding: Found) -> Mapping[str, Any]:
    return {name: value for name, value in dataclasses.asdict(finding).items() if value is not None}


def _cut(text: str) -> str:
    return text if len(text) <= REASON_CHARS else text[:REASON_CHARS] + "..."
