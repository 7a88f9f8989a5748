"""Bring processed objects back, for claims of versions that changed back, retractions and reopenings.

Each of them locks the progress of the archive first, so that no object moves there meanwhile. Archived objects get a
row in ``objects`` again, since their identity alone would keep them from ever being processed again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Insert, bindparam, delete, select, update

from penstock.ledger.archive import ARCHIVING, RetiredObject
from penstock.ledger.records import ObjectState
from penstock.ledger.rows import AnyRow, Values, uri_digest
from penstock.ledger.rules import failure_note, storable
from penstock.ledger.schema import archived_objects, archives, objects, progress
from penstock.ledger.sets import filtered, slices

_LOCK_ARCHIVING = (
    select(progress.c.done_seq)
    .where(progress.c.pipeline == bindparam("in_pipeline"), progress.c.task == ARCHIVING)
    .with_for_update()
)
_of_archived = (archived_objects.c.pipeline == bindparam("in_pipeline")) & archived_objects.c.object_id.in_(
    bindparam("of_objects", expanding=True)
)
_ARCHIVES_OF = select(archived_objects.c.object_id, archived_objects.c.archive_id).where(_of_archived)
_LEAVE_ARCHIVE = delete(archived_objects).where(_of_archived)
_SHRINK = (
    update(archives).values(objects=archives.c.objects - bindparam("fewer")).where(archives.c.id == bindparam("of_id"))
)
_VERSIONS = select(objects.c.object_id, objects.c.uri, objects.c.state, objects.c.batch_seq).where(
    objects.c.uri_digest.in_(bindparam("digests", expanding=True)),
    filtered(objects.c.pipeline) == bindparam("in_pipeline"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturningObject:
    """An archived object, which comes back from this archive."""

    archive_id: str
    retired: RetiredObject


def lock_archiving(connection: Connection, add_progress: Insert, pipeline: str) -> None:
    """Lock the progress of the archive. ``add_progress`` inserts into ``progress``, or ignores a row that is there."""
    binds = {"in_pipeline": pipeline}
    # Not added first: on MariaDB two inserts that find the row would both share its lock, and then deadlock.
    if connection.execute(_LOCK_ARCHIVING, binds).first() is None:
        connection.execute(add_progress, {"pipeline": pipeline, "task": ARCHIVING, "done_seq": 0})
        connection.execute(_LOCK_ARCHIVING, binds)


def archives_of(connection: Connection, pipeline: str, object_ids: Sequence[bytes]) -> Mapping[bytes, str]:
    """Return the archive of each of these objects that is archived."""
    return {
        row.object_id: row.archive_id
        for ids in slices(object_ids)
        for row in connection.execute(_ARCHIVES_OF, {"in_pipeline": pipeline, "of_objects": list(ids)})
    }


def leave_archive(connection: Connection, pipeline: str, object_ids: Sequence[bytes]) -> None:
    """Delete the identities of these objects, and count them out of their archives."""
    fewer = Counter(archives_of(connection, pipeline, object_ids).values())
    for ids in slices(object_ids):
        connection.execute(_LEAVE_ARCHIVE, {"in_pipeline": pipeline, "of_objects": list(ids)})
    for archive_id, count in sorted(fewer.items()):
        connection.execute(_SHRINK, {"of_id": archive_id, "fewer": count})


def take_back(connection: Connection, pipeline: str, wanted: Sequence[ReturningObject]) -> Sequence[ReturningObject]:
    """Delete the identities of the objects that are still in their archive; return these in order of their ids."""
    ordered = sorted(wanted, key=lambda one: one.retired.row.object_id)
    found = archives_of(connection, pipeline, [one.retired.row.object_id for one in ordered])
    taken = [one for one in ordered if found.get(one.retired.row.object_id) == one.archive_id]
    leave_archive(connection, pipeline, [one.retired.row.object_id for one in taken])
    return taken


def versions_of(connection: Connection, pipeline: str, addresses: Sequence[str]) -> Sequence[AnyRow]:
    """Return id, address, state and batch of each version of these objects that has a row, in order of their ids."""
    stored = {uri_digest(uri): uri for uri in map(storable, addresses)}
    found: list[AnyRow] = []
    for digests in slices(sorted(stored)):
        rows = connection.execute(_VERSIONS, {"in_pipeline": pipeline, "digests": list(digests)})
        found += (row for row in rows if row.uri == stored[uri_digest(row.uri)])
    return sorted(found, key=lambda row: row.object_id)


def returning_object(pipeline: str, retired: RetiredObject) -> Values:
    """Return the columns of an archived object's row that do not depend on why it comes back."""
    row, message = retired.row, retired.row.original_message
    return {
        "pipeline": pipeline,
        "object_id": row.object_id,
        "bucket": row.bucket,
        "key": row.key,
        "uri": row.uri,
        "uri_digest": retired.uri_digest,
        "size_bytes": row.size_bytes,
        "version_id": row.version_id,
        "etag": row.etag,
        "sequencer": retired.sequencer,
        "charged": row.attempts,
        "refunds": 0,
        "unattributed_failures": retired.unattributed_failures,
        "carrier_message_id": None if message is None else message.message_id,
        "carrier_enqueued_at": None if message is None else message.enqueued_at,
        "carrier_replay_id": None if message is None else message.replay_id,
        "first_seen_at": row.first_seen_at,
    }


def returning_timeline(pipeline: str, retired: RetiredObject) -> Sequence[Mapping[str, object]]:
    """Return the rows of an archived object's earlier attempts. Without an outcome, the one of the attempt counts."""
    return [
        {
            "pipeline": pipeline,
            "object_id": retired.row.object_id,
            "attempt_id": attempt.attempt_id,
            "outcome": None if attempt.outcome == ObjectState.PROCESSED.value else attempt.outcome,
            "reason": None if attempt.reason is None else failure_note(attempt.reason, attempt.traceback),
        }
        for attempt in retired.timeline
    ]
