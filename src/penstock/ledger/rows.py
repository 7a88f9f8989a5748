"""Convert records to table rows and back: objects, attempts and batches first, then works. Pure functions."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeAlias

from sqlalchemy import Row

from penstock.ledger.records import (
    AttemptFailure,
    AttemptRow,
    AttemptState,
    BatchOutcome,
    BatchRecord,
    BatchRow,
    Claimable,
    FailedObject,
    ObjectAttempt,
    ObjectResult,
    ObjectRow,
    ObjectState,
    OriginalMessage,
    PipelineRow,
    UnknownCounts,
    WorkAttempt,
    WorkDone,
    WorkEnd,
    WorkOwner,
    WorkRow,
    WorkState,
)
from penstock.ledger.rules import check_handler, failure_note, split_note, storable, stored_reason, work_id_of

AnyRow: TypeAlias = "Row[*tuple[Any, ...]]"
Values = dict[str, Any]  # parameters of one statement, by column

_RECORD_COLUMNS = tuple(field.name for field in fields(BatchRecord))

# The object's state after a failure. A retried object is free again; the other states are final.
_STATE_AFTER = {
    AttemptFailure.RETRY: ObjectState.UNPROCESSED,
    AttemptFailure.DEAD: ObjectState.DEAD,
    AttemptFailure.DELETED: ObjectState.DELETED,
    AttemptFailure.SUPERSEDED: ObjectState.SUPERSEDED,
}


def uri_digest(uri: str) -> bytes:
    """Return 16 bytes that represent a uri in an index."""
    return hashlib.sha256(uri.encode()).digest()[:16]


def new_object(pipeline: str, candidate: Claimable) -> Values:
    """Return the row of an object that the ledger does not know yet."""
    uri = storable(candidate.uri)
    return {
        "pipeline": pipeline,
        "object_id": candidate.object_id,
        "bucket": storable(candidate.bucket),
        "key": candidate.key,
        "uri": uri,
        "uri_digest": uri_digest(uri),
        "size_bytes": candidate.size_bytes,
        "version_id": _optional(candidate.version_id),
        "etag": _optional(candidate.etag),
        "sequencer": _optional(candidate.sequencer),
    }


def new_claimed_object(opening: Values, candidate: Claimable) -> Values:
    """Return the row of a new object that an attempt claims at once."""
    original_message = candidate.original_message
    row = new_object(opening["in_pipeline"], candidate)
    row["attempt_id"] = opening["fresh"]
    row["carrier_message_id"] = storable(original_message.message_id)
    row["carrier_enqueued_at"] = original_message.enqueued_at
    row["carrier_replay_id"] = _optional(original_message.replay_id)
    return row


def wanted_object(object_id: bytes, original_message: OriginalMessage) -> Values:
    """Return the row of ``wanted`` for an object that this message names."""
    return {
        "object_id": object_id,
        "message_id": storable(original_message.message_id),
        "enqueued_at": original_message.enqueued_at,
        "replay_id": _optional(original_message.replay_id),
    }


def leaving_object(ended: ObjectResult | FailedObject) -> Values:
    """Return the row of ``leaving`` for an object of a batch."""
    return _processed(ended) if isinstance(ended, ObjectResult) else _failed(ended)


def _processed(result: ObjectResult) -> Values:
    return {
        "object_id": result.object_id,
        "state": ObjectState.PROCESSED.value,
        "outcome": None,
        "reason": None,
        "note": None,
        "rows": result.rows,
        "lines_quarantined": result.lines_quarantined,
        "refund": 0,
        "unattributed": 0,
        "missing": 0,
        "unknown_fields": unknown_text(result.unknown),
    }


def _failed(failed: FailedObject) -> Values:
    return {
        "object_id": failed.object_id,
        "state": _STATE_AFTER[failed.failure].value,
        "outcome": failed.failure.value,
        "reason": stored_reason(failed.reason),
        "note": failure_note(failed.reason, failed.traceback),
        "rows": None,
        "lines_quarantined": None,
        "refund": int(failed.uncounted),
        "unattributed": int(failed.unattributed),
        "missing": int(failed.missing or failed.failure is AttemptFailure.DELETED),
        "unknown_fields": None,
    }


def new_batch(outcome: BatchOutcome, *, seq: int, schema_id: int) -> Values:
    """Return the row of ``batches`` without the time, which the database sets."""
    return {
        "pipeline": outcome.pipeline,
        "seq": seq,
        "attempt_id": outcome.attempt_id,
        "schema_id": schema_id,
        "objects": len(outcome.processed),
        **{name: getattr(outcome.record, name) for name in _RECORD_COLUMNS},
        "stage_seconds": json.dumps(dict(outcome.record.stage_seconds)),
        "spark_ui_url": _optional(outcome.record.spark_ui_url),
        "transform": _optional(outcome.record.transform),
        "replaces": outcome.record.replaces or None,
        "tombstones": outcome.record.tombstones or None,
    }


def original_message_of(row: AnyRow) -> OriginalMessage | None:
    """Return the original message in a row of ``objects``; None if the object was never claimed."""
    if row.carrier_message_id is None:
        return None
    return OriginalMessage(
        message_id=row.carrier_message_id, enqueued_at=row.carrier_enqueued_at, replay_id=row.carrier_replay_id
    )


def pipeline_row(row: AnyRow) -> PipelineRow:
    return PipelineRow(
        id=row.id,
        next_seq=row.next_seq,
        schema_id=row.schema_id,
        table_schema=row.table_schema,
        source_schema=row.source_schema,
        source_options=row.source_options,
        added_columns=added_columns(row.added_columns),
        transform=row.transform,
        merge=row.merge,
    )


def added_columns(text: str | None) -> dict[str, str]:
    """Return the types by name in a stored text."""
    return {} if text is None else dict(json.loads(text))


def with_added(text: str | None, more: Mapping[str, str]) -> str | None:
    """Return the stored text with more columns; a known one keeps its type. Names are compared without case."""
    known = added_columns(text)
    names = {name.lower() for name in known}
    known |= {name: kind for name, kind in more.items() if name.lower() not in names}
    return json.dumps(list(known.items()), separators=(",", ":")) if known else None


def unknown_text(unknown: UnknownCounts | None) -> str | None:
    """Return the fields without a column, and the values of another type, as text; None if there are none."""
    if unknown is None:
        return None
    counts = {name: value for name, value in asdict(unknown).items() if value}
    return json.dumps(counts, separators=(",", ":")) if counts else None


def unknown_of(text: str | None) -> UnknownCounts | None:
    """Return what `unknown_text` stored."""
    return None if text is None else UnknownCounts(**json.loads(text))


def batch_row(row: AnyRow) -> BatchRow:
    columns = {name: getattr(row, name) for name in _RECORD_COLUMNS}
    return BatchRow(
        pipeline=row.pipeline,
        seq=row.seq,
        attempt_id=row.attempt_id,
        record=BatchRecord(
            **columns
            | {
                "stage_seconds": json.loads(row.stage_seconds),
                "replaces": row.replaces or "",
                "tombstones": row.tombstones or "",
            }
        ),
        table_schema=row.table_schema,
        objects=row.objects,
        committed_at=row.committed_at,
        worker=row.worker,
        schema_id=row.schema_id,
        grown_objects=int(row.grown_objects or 0),
        appended_rows=int(row.appended_rows or 0),
    )


def attempt_row(row: AnyRow) -> AttemptRow:
    return AttemptRow(
        id=row.id,
        pipeline=row.pipeline,
        state=AttemptState(row.state),
        worker=row.worker,
        started_at=row.started_at,
        ended_at=row.ended_at,
        lease_until=row.lease_until,
        reason=row.reason,
    )


def object_row(row: AnyRow) -> ObjectRow:
    return ObjectRow(
        object_id=row.object_id,
        uri=row.uri,
        bucket=row.bucket,
        key=row.key,
        size_bytes=row.size_bytes,
        version_id=row.version_id,
        etag=row.etag,
        state=ObjectState(row.state),
        attempts=row.charged - row.refunds,
        batch_seq=row.batch_seq,
        rows=row.rows,
        lines_quarantined=row.lines_quarantined,
        reason=row.reason,
        first_seen_at=row.first_seen_at,
        ended_at=row.ended_at,
        original_message=original_message_of(row),
        unknown=unknown_of(row.unknown_fields),
    )


_OUTCOME_WITH_ATTEMPT = {AttemptState.OPEN: "open", AttemptState.COMMITTED: "processed"}


def object_attempt(row: AnyRow) -> ObjectAttempt:
    """Convert a row of ``object_attempts``. An object without an outcome of its own has its attempt's outcome."""
    attempt_outcome = _OUTCOME_WITH_ATTEMPT.get(AttemptState(row.attempt_state), row.attempt_outcome)
    reason, traceback = split_note(row.reason) if row.outcome else (row.attempt_reason, None)
    return ObjectAttempt(
        attempt_id=row.attempt_id,
        worker=row.worker,
        started_at=row.started_at,
        ended_at=row.ended_at,
        outcome=row.outcome or attempt_outcome,
        reason=reason,
        traceback=traceback,
    )


def _optional(text: str | None) -> str | None:
    return None if text is None else storable(text)


def new_work(
    handler: str,
    key: str,
    *,
    attempt_id: str,
    worker: str,
    lease_seconds: float,
    owner: WorkOwner | None,
    retention_seconds: float | None,
) -> Values:
    """Return the parameters for a first or later attempt of a work, without the times, which the database sets."""
    check_handler(handler)
    return {
        "of_work": work_id_of(handler, key, owner),
        "of_handler": storable(handler),
        "of_key": stored_reason(key),
        "fresh": attempt_id,
        "by_worker": storable(worker),
        "lease_seconds": lease_seconds,
        "of_app": None if owner is None else storable(owner.app),
        "of_queue": None if owner is None else storable(owner.queue),
        "keep_seconds": retention_seconds,
    }


def previous_attempt(row: AnyRow) -> WorkAttempt | None:
    """Return the last attempt that ended without completing the work."""
    if row.last_attempt_id is None:
        return None
    return WorkAttempt(
        attempt_id=row.last_attempt_id,
        worker=row.last_worker,
        started_at=row.last_started_at,
        ended_at=row.last_ended_at,
        outcome=WorkEnd(row.last_outcome),
        reason=row.last_reason,
    )


def work_done(row: AnyRow) -> WorkDone:
    return WorkDone(outcome=row.outcome, completed_at=row.ended_at, worker=row.worker, attempt_id=row.attempt_id)


def work_row(row: AnyRow) -> WorkRow:
    state = WorkState(row.state)
    return WorkRow(
        work_id=row.work_id,
        handler=row.handler,
        key=row.key,
        app=row.app,
        queue=row.queue,
        state=state,
        attempts=row.attempts,
        attempt_id=row.attempt_id,
        worker=row.worker,
        started_at=row.started_at,
        lease_until=row.lease_until if state is WorkState.OPEN else None,
        outcome=row.outcome,
        completed_at=row.ended_at if state is WorkState.DONE else None,
        first_seen_at=row.first_seen_at,
        previous=previous_attempt(row),
    )
