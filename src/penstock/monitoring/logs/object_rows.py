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


def _merged(event: events.BatchPublished) -> object:
    return event.merged or None


def _left(name: str, level: Level, msg: str) -> LogRow:
    return LogRow(name=name, level=level, msg=msg, fields=_LEFT)


OBJECT_ROWS: Rows = {
    events.ObjectStarted: LogRow(
        name="object.started",
        level="info",
        msg="An attempt started to process the object.",
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
    events.ObjectInterrupted: LogRow(
        name="object.interrupted",
        level="info",
        msg="The attempt was interrupted, for no fault of the object. The object is released.",
        fields={**_OBJECT, "reason": "reason"},
    ),
    events.ObjectSkipped: LogRow(
        name="object.skipped",
        level="info",
        msg="A message named the object, but there was nothing to do.",
        fields=_NAMED,
    ),
    events.ObjectFailed: LogRowCases(
        by=lambda event: event.outcome,
        rows={
            "retry": _left("object.retrying", "warning", "The object failed. It will be retried."),
            "gone": _left("object.deleted", "warning", "The object was deleted before it was processed."),
            "superseded": _left("object.superseded", "info", "The object was replaced before it was processed."),
        },
        otherwise=_left("object.failed", "error", "The object failed and is not retried."),
    ),
    events.ObjectCallRetrying: LogRow(
        name="object.call_retrying",
        level="warning",
        msg="A call inside the handler failed and is retried there.",
        fields={**_OBJECT, "tries": "tries", "delay_s": "delay_seconds", **ERROR},
    ),
    events.LinesQuarantined: LogRow(
        name="lines.quarantined",
        level="warning",
        msg="Lines of the object could not be read. They were quarantined.",
        fields={"pipeline": "pipeline", "object": "object_uri", **same("count", "reasons"), "sample": _sample},
    ),
    events.ColumnsAdded: LogRow(
        name="columns.added",
        level="info",
        msg="A batch added columns for new fields.",
        fields={"pipeline": "pipeline", "columns": "columns"},
    ),
    events.UnknownFieldsFound: LogRow(
        name="fields.unknown",
        level="info",
        msg="The object has fields that no column takes.",
        fields={"pipeline": "pipeline", "object": "object_uri", **same("fields", "others")},
    ),
    events.WrongTypesRescued: LogRow(
        name="types.rescued",
        level="warning",
        msg="The object has values of another type than their column. The column is null, and _rescued has them.",
        fields={"pipeline": "pipeline", "object": "object_uri", **same("fields", "others")},
    ),
}

BATCH_ROWS: Rows = {
    events.BatchClaimed: LogRow(
        name="batch.claimed",
        level="info",
        msg="An attempt claimed the objects of the batch.",
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
        msg="The files of the batch were written. They are not committed yet.",
        fields={**_BATCH, **same("rows", "lines_quarantined"), "duration_s": "seconds"},
    ),
    events.BatchCommitted: LogRow(
        name="batch.committed",
        level="info",
        msg="The batch was committed.",
        fields={
            **_BATCH,
            **same(
                "seq",
                "objects",
                "rows",
                "lines_quarantined",
                "bytes",
                "replaced_objects",
                "replaced_rows",
                "grown_objects",
                "appended_rows",
            ),
            "duration_s": "seconds",
        },
    ),
    events.BatchPublished: LogRow(
        name="batch.published",
        level="info",
        msg="All batches up to this one are visible in the table.",
        fields={**same("pipeline", "sink", "seq", "table_version"), "merged": _merged, "duration_s": "seconds"},
    ),
    events.ForeignCommit: LogRow(
        name="table.foreign_commit",
        level="info",
        msg="Another writer committed to the table.",
        fields=same("pipeline", "sink", "version", "operation", "engine"),
    ),
    events.CommitOverwritten: LogRow(
        name="table.commit_overwritten",
        level="error",
        msg="Another writer replaced a commit. The lost batches were published again.",
        fields=same(
            "pipeline", "sink", "version", "operation", "engine", "first_seq", "last_seq", "files", "table_version"
        ),
    ),
    events.CompactionUndone: LogRowCases(
        by=lambda event: event.table_version is None,
        rows={
            True: LogRow(
                name="table.rows_twice",
                level="error",
                msg="A compaction contradicts a commit of another writer. Some rows are in the table twice.",
                fields=with_error("pipeline", "sink", "version"),
            )
        },
        otherwise=LogRow(
            name="table.compaction_undone",
            level="warning",
            msg="A compaction contradicted a commit of another writer. It was undone.",
            fields=same("pipeline", "sink", "version", "table_version"),
        ),
    ),
    events.LedgerRolledBack: LogRow(
        name="ledger.rolled_back",
        level="error",
        msg="The ledger lost batches. Publishing continues from the table's position. Run `penstock reconcile`.",
        fields=same("pipeline", "sink", "missing_seq"),
    ),
    events.LedgerRepairStarted: LogRow(
        name="ledger.repair_started",
        level="warning",
        msg="The repair of a rolled-back ledger from its table started.",
        fields=same("pipeline", "common_seq", "table_seq"),
    ),
    events.LedgerRepairFinished: LogRow(
        name="ledger.repair_finished",
        level="warning",
        msg="The ledger contains every batch of the table again.",
        fields=same("pipeline", "batches", "objects", "renumbered", "withdrawn", "abandoned"),
    ),
    events.GarbageCollected: LogRow(
        name="garbage.collected",
        level="info",
        msg="Files that belong to no batch and no version of the table were deleted.",
        fields=same("pipeline", "attempts", "compactions", "files", "bytes"),
    ),
    events.TableCompacted: LogRow(
        name="table.compacted",
        level="info",
        msg="Small files of the table were merged.",
        fields=same("pipeline", "sink", "table_version", "files_before", "files_after", "bytes_before", "bytes_after"),
    ),
    events.CheckpointFailed: LogRow(
        name="table.checkpoint_failed",
        level="warning",
        msg="The table's checkpoint or version hint could not be written, or old metadata could not be deleted. The "
        "rows are published; each commit tries again.",
        fields=with_error("pipeline", "sink", "version"),
    ),
    events.TableRegistered: LogRow(
        name="table.registered",
        level="info",
        msg="The table has an entry in the data catalog.",
        fields=same("pipeline", "sink", "entry", "change"),
    ),
    events.TableNotRegistered: LogRow(
        name="table.not_registered",
        level="warning",
        msg="The table could not be registered in the data catalog. Its rows are published; it is tried again later.",
        fields=with_error("pipeline", "sink", "entry"),
    ),
    events.RunFailed: LogRow(
        name="run.failed",
        level="error",
        msg="A run failed, and its cause could not be traced to an object.",
        fields={**_BATCH, **with_error("objects")},
    ),
    events.FaultsRepeated: LogRow(
        name="faults.repeated",
        level="warning",
        msg="Several infrastructure faults in a row. They do not count as attempts; all objects are retried.",
        fields=with_error("pipeline", "count"),
    ),
    events.AttemptAbandoned: LogRow(
        name="attempt.abandoned",
        level="info",
        msg="The attempt ended without a commit.",
        fields={**_BATCH, "reason": "reason"},
    ),
    events.SourceScanned: LogRow(
        name="source.scanned",
        level="info",
        msg="A source was scanned.",
        fields=same("source", "found", "unfinished", "messages"),
    ),
    events.ObjectsArchived: LogRow(
        name="objects.archived",
        level="info",
        msg="Rows of objects processed long ago were moved from the ledger to the archive.",
        fields=same("pipeline", "objects", "files"),
    ),
    events.SourceCleaned: LogRow(
        name="source.cleaned",
        level="info",
        msg="Objects of a published batch were tagged, moved or deleted at their source.",
        fields=same("pipeline", "action", "seq", "objects", "skipped", "reasons"),
    ),
    events.WatchStarted: LogRow(
        name="watch.started",
        level="info",
        msg="The ingest watches its source for new objects.",
        fields=same("source"),
    ),
    events.WatchDegraded: LogRow(
        name="watch.degraded",
        level="warning",
        msg="A watched folder was deleted, or its notifications fail. Watching continues.",
        fields=same("source", "reason"),
    ),
    events.SchemaInferred: LogRow(
        name="schema.inferred",
        level="info",
        msg="A schema was inferred from a sample and stored.",
        fields=same("pipeline", "schema", "notes"),
    ),
    events.SparkStarted: LogRow(
        name="spark.started",
        level="info",
        msg="A Spark session was started.",
        fields={**same("java", "notes"), "duration_s": "seconds"},
    ),
    events.SparkAwaited: LogRow(
        name="spark.awaited",
        level="warning",
        msg="Spark's executors have not begun to work; the worker waits for them.",
        fields=same("spark"),
    ),
}

RECONCILE_ROWS: Rows = {
    events.ReconcileProgressed: LogRow(
        name="reconcile.progressed",
        level="debug",
        msg="A reconcile made progress.",
        fields=same("pipeline", "unit", "done", "total"),
    ),
    events.ObjectsMissing: LogRow(
        name="objects.missing",
        level="error",
        msg="Objects were never processed because their notifications were lost.",
        fields=same("pipeline", "source", "as_of", "missing", "folders"),
    ),
    events.ObjectsOverdue: LogRow(
        name="objects.overdue",
        level="error",
        msg="Objects have waited too long to be processed.",
        fields={
            **same("pipeline", "overdue"),
            "oldest_age_s": "oldest_age_seconds",
            "after_s": "after_seconds",
        },
    ),
    events.ReconcileFinished: LogRow(
        name="reconcile.finished",
        level="info",
        msg="A reconcile compared the source with the ledger.",
        fields={**same("pipeline", "source", "as_of", "listed", "missing", "sent"), "duration_s": "seconds"},
    ),
}
