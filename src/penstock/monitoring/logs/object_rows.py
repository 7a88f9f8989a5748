"""Log rows for objects, and for the batches, runs and reconciles that process them."""

from collections.abc import Mapping

from penstock import events
from penstock.monitoring.logs.rows import ERROR, Level, LogRow, LogRowCases, Rows, Source, same, with_error

_OBJECT: Mapping[str, Source] = {"pipeline": "pipeline", "object": "object_uri", "attempt_id": "attempt_id"}
_NAMED: Mapping[str, Source] = {"pipeline": "pipeline", "object": "object_uri", "reason": "reason"}
_LEFT: Mapping[str, Source] = {**_OBJECT, "reason": "reason", "error.type": "error_type", "exception": "traceback"}
_BATCH = same("pipeline", "attempt_id")


def _sample(event: events.LinesQuarantined) -> object:
    return [f"{offset}: {reason}" for offset, reason in event.sample]


def _left(name: str, level: Level, msg: str) -> LogRow:
    return LogRow(name=name, level=level, msg=msg, fields=_LEFT)


OBJECT_ROWS: Rows = {
    events.ObjectStarted: LogRow(
        name="object.started",
        level="info",
        msg="An attempt begins to work on the object.",
        fields={**_OBJECT, "attempt": "attempt"},
    ),
    events.ObjectTakenOver: LogRow(
        name="object.taken_over",
        level="warning",
        msg="The attempt before this one ended with its worker or its lease.",
        fields={**_OBJECT, **same("attempt", "from_worker", "from_attempt_id", "reason")},
    ),
    events.ObjectFinished: LogRow(
        name="object.finished",
        level="info",
        msg="The object is recorded as processed.",
        fields={**_OBJECT, **same("rows", "lines_quarantined")},
    ),
    events.ObjectGivenBack: LogRow(
        name="object.given_back",
        level="info",
        msg="The attempt was broken off, for no fault of the object's; it is free for another.",
        fields={**_OBJECT, "reason": "reason"},
    ),
    events.ObjectSkipped: LogRow(
        name="object.skipped",
        level="info",
        msg="There was nothing to do for the object.",
        fields=_NAMED,
    ),
    events.ObjectFailed: LogRowCases(
        by=lambda event: event.outcome,
        rows={
            "retry": _left("object.retrying", "warning", "The object failed; another attempt follows."),
            "gone": _left("object.gone", "warning", "The object does not exist any more."),
            "superseded": _left("object.superseded", "info", "The object exists in another version."),
        },
        otherwise=_left("object.failed", "error", "The object is given up on."),
    ),
    events.ObjectCallRetrying: LogRow(
        name="object.call_retrying",
        level="warning",
        msg="A call inside the handler failed and is tried again there.",
        fields={**_OBJECT, "tries": "tries", "delay_s": "delay_seconds", **ERROR},
    ),
    events.LinesQuarantined: LogRow(
        name="lines.quarantined",
        level="warning",
        msg="Lines of the object could not be read and are in the quarantine.",
        fields={"pipeline": "pipeline", "object": "object_uri", **same("count", "reasons"), "sample": _sample},
    ),
}

BATCH_ROWS: Rows = {
    events.BatchClaimed: LogRow(
        name="batch.claimed",
        level="info",
        msg="An attempt holds the objects of the batch.",
        fields={**_BATCH, **same("objects", "bytes"), "duration_s": "seconds"},
    ),
    events.BatchProgressed: LogRow(
        name="batch.progressed",
        level="debug",
        msg="Spark finished some tasks of the run.",
        fields={**_BATCH, **same("tasks_done", "tasks")},
    ),
    events.BatchWritten: LogRow(
        name="batch.written",
        level="info",
        msg="The files of the batch are written and not yet committed.",
        fields={**_BATCH, **same("rows", "lines_quarantined"), "duration_s": "seconds"},
    ),
    events.BatchCommitted: LogRow(
        name="batch.committed",
        level="info",
        msg="The batch counts.",
        fields={**_BATCH, **same("seq", "objects", "rows", "lines_quarantined", "bytes"), "duration_s": "seconds"},
    ),
    events.BatchPublished: LogRow(
        name="batch.published",
        level="info",
        msg="All batches up to this one are visible in the table.",
        fields={**same("pipeline", "sink", "seq", "table_version"), "duration_s": "seconds"},
    ),
    events.LedgerRolledBack: LogRow(
        name="ledger.rolled_back",
        level="error",
        msg="The ledger lost batches that it had before; publishing begins again at the table's position.",
        fields=same("pipeline", "sink", "lost_seq"),
    ),
    events.LedgerRepairBegan: LogRow(
        name="ledger.repair_began",
        level="warning",
        msg="A ledger that was rolled back is about to be brought up to its table.",
        fields=same("pipeline", "agrees_at", "shown_at"),
    ),
    events.LedgerRepairEnded: LogRow(
        name="ledger.repaired",
        level="warning",
        msg="The ledger has what the table shows.",
        fields=same("pipeline", "batches", "objects", "moved", "withdrawn", "abandoned"),
    ),
    events.GarbageCollected: LogRow(
        name="garbage.collected",
        level="info",
        msg="Files that no batch and no version of the table names were deleted.",
        fields=same("pipeline", "attempts", "compactions", "files", "bytes"),
    ),
    events.TableCompacted: LogRow(
        name="table.compacted",
        level="info",
        msg="Small files of the table were merged.",
        fields=same("pipeline", "sink", "table_version", "files_before", "files_after", "bytes_before", "bytes_after"),
    ),
    events.RunFailed: LogRow(
        name="run.failed",
        level="error",
        msg="A run failed, and no object could be named as the cause.",
        fields={**_BATCH, **with_error("objects")},
    ),
    events.FaultsRepeated: LogRow(
        name="faults.repeated",
        level="warning",
        msg="The machinery failed several times in a row; no attempt is counted, and all objects are tried again.",
        fields=with_error("pipeline", "count"),
    ),
    events.AttemptAbandoned: LogRow(
        name="attempt.abandoned",
        level="info",
        msg="The attempt was given up; it can commit no more.",
        fields={**_BATCH, "reason": "reason"},
    ),
    events.SourceScanned: LogRow(
        name="source.scanned",
        level="info",
        msg="A folder was walked.",
        fields=same("source", "found", "unfinished", "messages"),
    ),
    events.ObjectsArchived: LogRow(
        name="objects.archived",
        level="info",
        msg="Rows of objects processed long ago left the ledger for the archive.",
        fields=same("pipeline", "objects", "files"),
    ),
    events.SourceCleaned: LogRow(
        name="source.cleaned",
        level="info",
        msg="Objects of a published batch were tagged, moved or deleted at their source.",
        fields=same("pipeline", "action", "seq", "objects", "skipped", "reasons"),
    ),
    events.WatchBegan: LogRow(
        name="watch.began",
        level="info",
        msg="An ingest stays up and takes what comes.",
        fields=same("source"),
    ),
    events.WatchDisturbed: LogRow(
        name="watch.disturbed",
        level="warning",
        msg="A folder that is watched is gone, or its notifications fail.",
        fields=same("source", "reason"),
    ),
    events.SchemaInferred: LogRow(
        name="schema.inferred",
        level="info",
        msg="A schema was made from a sample and is remembered.",
        fields=same("pipeline", "schema", "notes"),
    ),
    events.SparkStarted: LogRow(
        name="spark.started",
        level="info",
        msg="A Spark session is there.",
        fields={**same("java", "notes"), "duration_s": "seconds"},
    ),
}

RECONCILE_ROWS: Rows = {
    events.ReconcileProgressed: LogRow(
        name="reconcile.progressed",
        level="debug",
        msg="A reconcile went on.",
        fields=same("pipeline", "what", "done", "total"),
    ),
    events.ObjectsMissing: LogRow(
        name="reconcile.missing",
        level="error",
        msg="Objects are there that were never processed: their announcements were lost.",
        fields=same("pipeline", "source", "as_of", "missing", "where"),
    ),
    events.ObjectsOverdue: LogRow(
        name="objects.overdue",
        level="error",
        msg="Objects wait to be processed for longer than they should.",
        fields={
            **same("pipeline", "overdue"),
            "oldest_age_s": "oldest_age_seconds",
            "after_s": "after_seconds",
        },
    ),
    events.ReconcileFinished: LogRow(
        name="reconcile.finished",
        level="info",
        msg="What is there was compared with what is known.",
        fields={**same("pipeline", "source", "as_of", "listed", "missing", "sent"), "duration_s": "seconds"},
    ),
}
