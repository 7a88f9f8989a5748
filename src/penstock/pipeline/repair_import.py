"""From what a table shows of a batch, and its record, to what the ledger is given: pure functions."""

from collections.abc import Sequence

import pyarrow as pa
from ulid import ULID

from penstock.errors import TableError
from penstock.ledger.records import Candidate, Carrier
from penstock.ledger.repair_records import ImportedBatch, ImportedObject
from penstock.pipeline.batch_record import BatchRecord, RecordedObject
from penstock.pipeline.gc import is_attempt_id
from penstock.pipeline.repair_tail import Tail
from penstock.sinks.manifest import DataFile, encode
from penstock.sinks.schema import additions
from penstock.sinks.schema import decode as decode_columns

_NO_CARRIER = Carrier(message_id="", enqueued_at=0.0)  # nobody knows which message named an imported object


def imported_batch(seq: int, attempt_id: str, *, tails: Sequence[Tail], record: BatchRecord | None) -> ImportedBatch:
    """``tails`` are those of the rows and of the quarantine. Without a record: its files, and no object."""
    rows, quarantine = tails
    if record is None:
        files, bad_files = files_of(rows, attempt_id), files_of(quarantine, attempt_id)
        return ImportedBatch(
            seq=seq,
            attempt_id=attempt_id,
            objects=(),
            rows=sum(file.rows for file in files),
            lines_quarantined=sum(file.rows for file in bad_files),
            manifest=encode(files),
            quarantine_manifest=encode(bad_files),
            claimed_at=_claimed_at(attempt_id),
            committed_at=_shown_since(tails, attempt_id),
        )
    return ImportedBatch(
        seq=seq,
        attempt_id=attempt_id,
        objects=[_imported_object(one) for one in record.objects],
        rows=record.rows,
        lines_quarantined=record.lines_quarantined,
        bytes=record.bytes,
        manifest=record.manifest,
        quarantine_manifest=record.quarantine_manifest,
        claimed_at=_claimed_at(attempt_id),
        committed_at=_shown_since(tails, attempt_id),
        stage_seconds=record.stage_seconds,
        spark_ui_url=record.spark_ui_url,
    )


def _shown_since(tails: Sequence[Tail], attempt_id: str) -> float | None:
    """The commit to the table is what is left of the time of the ledger's."""
    times = [shown.committed_at for tail in tails for shown in tail.shown if attempt_id in shown.files]
    return min((at for at in times if at is not None), default=None)


def _claimed_at(attempt_id: str) -> float | None:
    """Whoever claimed made the id, by a clock of its own."""
    return ULID.from_str(attempt_id).timestamp if is_attempt_id(attempt_id) else None


def files_of(tail: Tail, attempt_id: str) -> Sequence[DataFile]:
    """What the table shows of an attempt."""
    return [file for shown in tail.shown for file in shown.files.get(attempt_id, ())]


def widened(columns: pa.Schema | None, wanted: str | None, *, table: str) -> pa.Schema | None:
    """The columns with those that only ``wanted`` has; None where the two cannot go together."""
    if wanted is None:
        return columns
    if columns is None:
        return decode_columns(wanted)
    try:
        return pa.schema([*columns, *additions(columns, decode_columns(wanted), table=table)])
    except TableError:
        return None


def _imported_object(one: RecordedObject) -> ImportedObject:
    ref = one.ref
    return ImportedObject(
        candidate=Candidate(
            object_id=ref.object_id,
            bucket=ref.bucket,
            key=ref.key_bytes,
            size_bytes=ref.size_bytes,
            uri=ref.uri,
            carrier=_NO_CARRIER,
            version_id=ref.version_id,
            etag=ref.etag,
            sequencer=ref.sequencer,
        ),
        rows=one.rows,
        lines_quarantined=one.lines_quarantined,
    )
