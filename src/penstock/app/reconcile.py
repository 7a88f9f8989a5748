"""Reconcile: find objects that exist but were never processed, enqueue notifications for them, and record the result.

A reconcile only sends messages, so it can be repeated at will. It compares the ledger with the source's own listing or
with an S3 inventory of the source, as of a given time.
"""

import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.app.context import PipelineTools
from penstock.app.pending import announce_all
from penstock.app.reconcile_target import ReconcileScan, ReconcileTarget, scan_of
from penstock.errors import PenstockError
from penstock.events import ObjectsMissing, ReconcileFinished, ReconcileProgressed
from penstock.ledger.pipelines import ReconcileResult
from penstock.objects.scanner import CHUNK_OBJECTS
from penstock.pipeline.reconcile.alone import (
    MissingPrefix,
)

if TYPE_CHECKING:
    from penstock.pipeline.reconcile.alone import MissingAlone
    from penstock.pipeline.reconcile.missing import MissingObjects
    from penstock.pipeline.spark.runtime import Session


OLDER_THAN_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileRequest:
    """The options of one reconcile."""

    inventory: str | None = None  # the manifest, or the folder of lists; None: list the source
    older_than_seconds: float = OLDER_THAN_SECONDS  # younger objects may still have a notification in flight
    all_versions: bool = False  # in a versioned bucket: also overwritten versions
    dry_run: bool = False
    limit: int | None = None  # of messages
    rate: float | None = None  # messages per second


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileReport:
    """The result of one reconcile."""

    pipeline: str
    source: str  # a folder, a prefix in S3, or an inventory's manifest
    queue: str
    as_of: float  # epoch seconds: only objects stored before it were considered
    messages_waiting: int  # in the queue beforehand: their objects may be enqueued a second time
    dry_run: bool
    listed: int = 0
    missing: int = 0
    sent: int = 0  # messages, one per object
    prefixes: tuple[MissingPrefix, ...] = ()  # the folders with the most missing objects, in that order
    left_out: Mapping[str, int]  # count by reason: objects that are unknown but not missing
    problems: tuple[str, ...] = ()  # entries that could not be read
    seconds: float = 0.0
    stopped: bool = False  # before everything was compared or sent


def needs_spark(target: ReconcileTarget, request: ReconcileRequest) -> bool:
    """Return False if the comparison runs in this process: for an object handler without an inventory."""
    return not target.alone or request.inventory is not None


def reconcile(
    target: ReconcileTarget, request: ReconcileRequest, *, spark: "Session | None", tools: PipelineTools
) -> ReconcileReport:
    """Compare, send and record; a dry run only compares.

    A stop ends it soon and without a record; messages already sent stay sent. Without ``spark``, the source is listed
    and compared in this process, which is enough unless `needs_spark`. Raises `UserError` for a problem that a person
    has to fix, and `TemporaryError` if a retry may succeed.
    """
    began_at = tools.clock.monotonic()
    scan = scan_of(
        target,
        inventory=request.inventory,
        older_than_seconds=request.older_than_seconds,
        all_versions=request.all_versions,
        now=tools.clock.now(),
    )
    report = ReconcileReport(
        pipeline=target.pipeline,
        source=scan.source,
        queue=target.queue,
        as_of=scan.as_of,
        messages_waiting=_messages(target),
        dry_run=request.dry_run,
        left_out={},
    )
    try:
        if spark is None:
            report = _report_and_send(_find_alone(scan, tools), scan, request, report, tools)
        else:
            report = _on_spark(scan, request, report, spark, tools)
    except PenstockError:
        if not tools.stop.requested:  # otherwise the error comes from our own cancellation
            raise
        report = replace(report, stopped=True)
    report = replace(report, seconds=round(tools.clock.monotonic() - began_at, 3))
    if not report.stopped:
        if not request.dry_run:  # a dry run must not hide what the last real one sent
            _record(target, report)
        _emit_finished(report, tools)
    return report


def _on_spark(
    scan: ReconcileScan, request: ReconcileRequest, report: ReconcileReport, spark: "Session", tools: PipelineTools
) -> ReconcileReport:
    from penstock.app.reconcile_spark import missing_on_spark

    with missing_on_spark(scan, spark, tools) as found:
        return _report_and_send(found, scan, request, report, tools)


def _find_alone(scan: ReconcileScan, tools: PipelineTools) -> "MissingAlone":
    def on_listed(listed: int) -> None:
        tools.bus.emit(ReconcileProgressed(pipeline=scan.target.pipeline, unit="objects", done=listed, total=listed))

    return scan.missing_alone(seen_at=tools.clock.now(), stopped=lambda: tools.stop.requested, on_listed=on_listed)


def _report_and_send(
    missing: "MissingObjects | MissingAlone",
    scan: ReconcileScan,
    request: ReconcileRequest,
    report: ReconcileReport,
    tools: PipelineTools,
) -> ReconcileReport:
    with closing(missing) as found:
        report = replace(
            report,
            listed=found.listed,
            missing=found.count,
            prefixes=tuple(found.prefixes()),
            left_out={reason.value: number for reason, number in found.left_out.items()},
            problems=tuple(found.problems),
        )
        if tools.stop.requested:  # the result may be incomplete
            return replace(report, stopped=True)
        if report.missing:
            where = tuple(f"{prefix.uri}: {prefix.missing:,}" for prefix in report.prefixes)
            tools.bus.emit(
                ObjectsMissing(
                    pipeline=report.pipeline,
                    source=report.source,
                    as_of=report.as_of,
                    missing=report.missing,
                    folders=where,
                )
            )
        if report.missing and not request.dry_run:
            report = replace(report, sent=_send(scan.target, found, request, tools))
    return replace(report, stopped=tools.stop.requested)


def _send(
    target: ReconcileTarget, found: "MissingObjects | MissingAlone", request: ReconcileRequest, tools: PipelineTools
) -> int:
    """Send the notifications chunk by chunk, at most at the requested rate; return their number."""
    total = found.count if request.limit is None else min(found.count, request.limit)
    chunk_objects = CHUNK_OBJECTS if request.rate is None else max(1, min(CHUNK_OBJECTS, int(request.rate)))
    began_at, sent = tools.clock.monotonic(), 0
    stop_requested = threading.Event()
    with tools.stop.watched_by(stop_requested):
        for chunk in found.chunks(limit=request.limit, objects_max=chunk_objects):
            if tools.stop.requested:
                break
            announce_all(target.broker, target.queue, chunk, probe=tools.probe)
            sent += len(chunk)
            tools.bus.emit(ReconcileProgressed(pipeline=target.pipeline, unit="messages", done=sent, total=total))
            if request.rate is not None and sent < total:
                due_at = began_at + sent / request.rate
                tools.clock.wait(stop_requested, max(0.0, due_at - tools.clock.monotonic()))
    return sent


def _record(target: ReconcileTarget, report: ReconcileReport) -> None:
    target.ledger.record_reconciliation(
        ReconcileResult(
            pipeline=report.pipeline,
            as_of=report.as_of,
            source=report.source,
            listed=report.listed,
            missing=report.missing,
            sent=report.sent,
            seconds=report.seconds,
        )
    )


def _emit_finished(report: ReconcileReport, tools: PipelineTools) -> None:
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


def _messages(target: ReconcileTarget) -> int:
    return target.broker.stats(target.queue).messages
