"""Find addresses whose rows the processed versions of an object do not account for, before these rows are replaced.

The rows of a table are found by the address of their object. In two cases the processed versions do not tell all. If a
repair withdrew the batch of a version, the rows that it would have replaced are still in the table. If an earlier
Penstock processed two objects, they may have one address: see `penstock.objects.reference.uri_of`.
"""

from sqlalchemy import ColumnElement, Connection, FromClause, bindparam, func, select, update

from penstock.ledger.records import AttemptState, BatchOutcome, ObjectState, replaced_objects
from penstock.ledger.rows import uri_digest
from penstock.ledger.schema import attempts, batches, object_attempts, objects, quarantined
from penstock.ledger.sets import by_attempt_and_uri, by_uri, filtered, is_wanted, slices

WITHDRAWN = "withdrawn"  # outcome of an attempt whose batch a repair gave up, since the table shows another one


def is_no_replay(version: FromClause) -> ColumnElement[bool]:
    """Match objects that are no replays of bad lines.

    No pipeline is named: a replay's id contains its attempt's. Counted, because MariaDB would read all bad lines first
    for a NOT EXISTS (measured).
    """
    replayed = select(func.count()).select_from(quarantined).where(quarantined.c.replay_id == version.c.object_id)
    return replayed.scalar_subquery() == 0


_version = objects.alias("withdrawn_version")
_WITHDRAWN = select(attempts.c.id).where(
    attempts.c.pipeline == bindparam("in_pipeline"),
    attempts.c.state == AttemptState.ABANDONED.value,
    attempts.c.outcome == WITHDRAWN,
)
_FREED = (
    by_attempt_and_uri(select(objects.c.uri).distinct(), _version)
    .join_from(
        _version,
        object_attempts,
        (object_attempts.c.pipeline == _version.c.pipeline) & (object_attempts.c.object_id == _version.c.object_id),
    )
    .where(
        objects.c.attempt_id == bindparam("ours"),
        objects.c.state == ObjectState.PROCESSED.value,
        is_no_replay(objects),
        _version.c.uri_digest == objects.c.uri_digest,
        filtered(_version.c.pipeline) == objects.c.pipeline,
        object_attempts.c.attempt_id.in_(bindparam("of_attempts", expanding=True)),
        object_attempts.c.outcome == WITHDRAWN,
    )
)
_REPLACES = select(batches.c.replaces).where(
    batches.c.pipeline == bindparam("in_pipeline"), batches.c.attempt_id == bindparam("of_attempt")
)
_REPLACING = select(objects.c.object_id).where(
    objects.c.attempt_id == bindparam("of_attempt"),
    objects.c.state == ObjectState.PROCESSED.value,
    objects.c.uri_digest.in_(bindparam("digests", expanding=True)),
)
_NOTE = (
    update(object_attempts)
    .values(outcome=WITHDRAWN)
    .where(
        object_attempts.c.pipeline == bindparam("in_pipeline"),
        object_attempts.c.object_id.in_(bindparam("of_objects", expanding=True)),
        object_attempts.c.attempt_id == bindparam("of_attempt"),
    )
)
_other = objects.alias("other_object")
_SHARED = by_uri(select(objects.c.object_id).distinct(), _other).where(
    is_wanted(),
    _other.c.uri_digest == objects.c.uri_digest,
    filtered(_other.c.pipeline) == objects.c.pipeline,
    _other.c.batch_seq.is_not(None),
    (_other.c.bucket != objects.c.bucket) | (_other.c.key != objects.c.key),
)


def note_withdrawn(connection: Connection, pipeline: str, attempt_id: str) -> None:
    """Remember the objects of a batch that replace others, inside the repair that withdraws it, before it is dropped.

    Their attempt gets an outcome of its own. The other objects of the batch share the attempt's, which is the same.
    """
    binds = {"in_pipeline": pipeline, "of_attempt": attempt_id}
    replaces = connection.execute(_REPLACES, binds).scalar_one_or_none() or ""
    for digests in slices(sorted(map(uri_digest, replaced_objects(replaces)))):
        ids = connection.scalars(_REPLACING, {**binds, "digests": list(digests)}).all()
        connection.execute(_NOTE, {**binds, "of_objects": ids})


def withdrawn_addresses(connection: Connection, outcome: BatchOutcome) -> set[str]:
    """Return the addresses of a batch's objects of which a repair withdrew a replacing version.

    The table still has the rows that this version was to replace. The ledger may no longer know their version as
    processed: a late message of it, or a later batch with it, has changed its state.
    """
    withdrawn = sorted(connection.scalars(_WITHDRAWN, {"in_pipeline": outcome.pipeline}))
    addresses: set[str] = set()
    for ids in slices(withdrawn):
        addresses.update(connection.scalars(_FREED, {"ours": outcome.attempt_id, "of_attempts": list(ids)}))
    return addresses


def of_several_objects(connection: Connection, pipeline: str) -> set[bytes]:
    """Return the objects in ``wanted`` whose address is also that of a processed object with another key."""
    return set(connection.scalars(_SHARED, {"in_pipeline": pipeline}))
