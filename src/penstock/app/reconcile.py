"""Reconcile: find objects that are there and were never processed, announce them anew, and put on record what came of
it. Nothing but messages is sent, so it may be done as often as one likes.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ulid import ULID

from penstock.app.announcing import announce_all
from penstock.app.reconcile_look import Look, look_at
from penstock.app.reconcile_target import Target
from penstock.app.tools import Tools
from penstock.errors import PenstockError
from penstock.events import ObjectsMissing, ReconcileFinished, ReconcileProgressed
from penstock.ledger.reconciliations import Comparison
from penstock.objects.scan_report import CHUNK_OBJECTS
from penstock.pipeline.reconcile.scope import Prefix

if TYPE_CHECKING:
    from penstock.pipeline.reconcile.alone import MissingAlone
    from penstock.pipeline.reconcile.missing import Missing
    from penstock.pipeline.session import Session

OLDER_THAN_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileRequest:
    """What was asked for."""

    inventory: str | None = None  # its manifest, or the folder of its lists; None: the source is listed
    older_than_seconds: float = OLDER_THAN_SECONDS  # younger objects may still be on their way
    all_versions: bool = False  # of a bucket that keeps versions: those that were overwritten, too
    dry_run: bool = False
    limit: int | None = None  # messages
    rate: float | None = None  # messages a second


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileReport:
    """What came of it."""

    pipeline: str
    source: str  # what was looked through: a folder, a prefix in S3, or an inventory's manifest
    queue: str
    as_of: float  # epoch seconds: objects stored before were looked at
    messages_waiting: int  # in the queue before: what they announce may be announced once more
    dry_run: bool
    listed: int = 0
    missing: int = 0
    sent: int = 0  # messages, one an object
    prefixes: tuple[Prefix, ...] = ()  # the first folders, those with the most missing ones first
    left_out: Mapping[str, int]  # why, how many: objects that nobody knows and that are not missing
    problems: tuple[str, ...] = ()  # what could not be looked at
    seconds: float = 0.0
    stopped: bool = False  # before all was looked at or sent


def needs_spark(target: Target, request: ReconcileRequest) -> bool:
    """Return True unless the comparison is made in this process: for an object handler's listing."""
    return not target.alone or request.inventory is not None


def reconcile(target: Target, request: ReconcileRequest, *, spark: "Session | None", tools: Tools) -> ReconcileReport:
    """Look, send and record; a dry run only looks. A stop ends it soon and without a record; what was sent stays sent.

    Without ``spark`` the source is listed and compared here, which `needs_spark` says is enough. Raises `UserError` for
    what a person has to mend, `TemporaryError` where another try may succeed.
    """
    began_at = tools.clock.monotonic()
    look = look_at(
        target,
        inventory=request.inventory,
        older_than_seconds=request.older_than_seconds,
        all_versions=request.all_versions,
        now=tools.clock.now(),
    )
    report = ReconcileReport(
        pipeline=target.pipeline,
        source=look.source,
        queue=target.queue,
        as_of=look.as_of,
        messages_waiting=_messages(target),
        dry_run=request.dry_run,
        left_out={},
    )
    try:
        if spark is None:
            report = _found_and_sent(_alone(look, tools), look, request, report, tools)
        else:
            report = _on_spark(look, request, report, spark, tools)
    except PenstockError:
        if not tools.stop.requested:  # else it is our own cancelling that failed them
            raise
        report = replace(report, stopped=True)
    report = replace(report, seconds=round(tools.clock.monotonic() - began_at, 3))
    if not report.stopped:
        if not request.dry_run:  # a mere look must not hide what the last one sent
            _record(target, report)
        _tell(report, tools)
    return report


def _on_spark(
    look: Look, request: ReconcileRequest, report: ReconcileReport, spark: "Session", tools: Tools
) -> ReconcileReport:
    from penstock.pipeline.reconcile.jobs import jobs

    tag = f"reconcile-{ULID()}"
    with _stoppable(tools, spark, tag), jobs(spark, tag, report.pipeline, tools.bus):
        return _found_and_sent(look.missing(spark), look, request, report, tools)


def _alone(look: Look, tools: Tools) -> "MissingAlone":
    def told(listed: int) -> None:
        tools.bus.emit(ReconcileProgressed(pipeline=look.target.pipeline, what="objects", done=listed, total=listed))

    return look.missing_alone(seen_at=tools.clock.now(), stopped=lambda: tools.stop.requested, told=told)


def _found_and_sent(
    looked: "Missing | MissingAlone", look: Look, request: ReconcileRequest, report: ReconcileReport, tools: Tools
) -> ReconcileReport:
    with closing(looked) as found:
        report = replace(
            report,
            listed=found.listed,
            missing=found.count,
            prefixes=tuple(found.prefixes()),
            left_out={reason.value: number for reason, number in found.left_out.items()},
            problems=tuple(found.problems),
        )
        if tools.stop.requested:  # what was found by then may be a part of it
            return replace(report, stopped=True)
        if report.missing:
            where = tuple(f"{prefix.uri}: {prefix.missing:,}" for prefix in report.prefixes)
            tools.bus.emit(
                ObjectsMissing(
                    pipeline=report.pipeline,
                    source=report.source,
                    as_of=report.as_of,
                    missing=report.missing,
                    where=where,
                )
            )
        if report.missing and not request.dry_run:
            report = replace(report, sent=_send(look.target, found, request, tools))
    return replace(report, stopped=tools.stop.requested)


def _send(target: Target, found: "Missing | MissingAlone", request: ReconcileRequest, tools: Tools) -> int:
    """Announce them, a chunk at a time; answers how many."""
    total = found.count if request.limit is None else min(found.count, request.limit)
    chunk_objects = CHUNK_OBJECTS if request.rate is None else max(1, min(CHUNK_OBJECTS, int(request.rate)))
    began_at, sent = tools.clock.monotonic(), 0
    asked = threading.Event()
    with tools.stop.watched_by(asked):
        for chunk in found.chunks(limit=request.limit, objects_max=chunk_objects):
            if tools.stop.requested:
                break
            announce_all(target.broker, target.queue, chunk, probe=tools.probe)
            sent += len(chunk)
            tools.bus.emit(ReconcileProgressed(pipeline=target.pipeline, what="messages", done=sent, total=total))
            if request.rate is not None and sent < total:
                due_at = began_at + sent / request.rate
                tools.clock.wait(asked, max(0.0, due_at - tools.clock.monotonic()))
    return sent


def _record(target: Target, report: ReconcileReport) -> None:
    target.ledger.record_reconciliation(
        Comparison(
            pipeline=report.pipeline,
            as_of=report.as_of,
            source=report.source,
            listed=report.listed,
            missing=report.missing,
            sent=report.sent,
            seconds=report.seconds,
        )
    )


def _tell(report: ReconcileReport, tools: Tools) -> None:
    tools.bus.emit(
        ReconcileFinished(
            pipeline=report.pipeline,
            source=report.source,
            as_of=report.as_of,
            listed=report.listed,
            missing=report.missing,
            sent=report.sent,
            seconds=report.seconds,
        )
    )


@contextmanager
def _stoppable(tools: Tools, spark: "Session", tag: str) -> Iterator[None]:
    """A stop cancels what Spark is at. Other requests, such as for stacks, wake the watcher too and change nothing."""
    from penstock.pipeline.reconcile.jobs import cancelled_when

    cancel = threading.Event()
    asked = threading.Event()
    ended = threading.Event()

    def pass_on() -> None:
        while not ended.is_set():
            asked.wait()
            asked.clear()
            if tools.stop.requested:
                cancel.set()
                return

    with tools.stop.watched_by(asked), cancelled_when(cancel, spark, tag):
        threading.Thread(target=pass_on, name="penstock-reconcile-stop", daemon=True).start()
        try:
            yield
        finally:
            ended.set()
            asked.set()


def _messages(target: Target) -> int:
    return target.broker.stats(target.queue).messages
