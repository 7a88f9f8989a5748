"""Find addresses that need care before the rows of an object are replaced: the ledger alone cannot say whose they are.

The rows of a table are found by the address of their object. Two cases are not seen among the processed versions of an
object. A repair withdrew the batch of one: what that batch would have replaced is still in the table. And one address
may be of two objects, if an earlier Penstock processed them: see `penstock.objects.reference.uri_of`.
"""

import json
from dataclasses import replace

from sqlalchemy import Connection, bindparam, select

from penstock.ledger.records import AttemptState, BatchOutcome, ObjectState, replaced_objects
from penstock.ledger.schema import attempts, object_attempts, objects
from penstock.ledger.sets import by_attempt_and_uri, by_uri, filtered, is_wanted, slices

WITHDRAWN = "withdrawn"  # outcome of an attempt whose batch a repair gave up, since the table shows another one

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
        _version.c.uri_digest == objects.c.uri_digest,
        filtered(_version.c.pipeline) == objects.c.pipeline,
        object_attempts.c.attempt_id.in_(bindparam("of_attempts", expanding=True)),
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


def with_withdrawn(connection: Connection, outcome: BatchOutcome) -> BatchOutcome:
    """Return the outcome of a batch with the addresses of its objects of which a repair withdrew a version.

    That version, or the present one if it came back, had taken the place of others, whose rows the table still has
    although the ledger may not know them as processed any more. If it has none, nothing is replaced.
    """
    withdrawn = sorted(connection.scalars(_WITHDRAWN, {"in_pipeline": outcome.pipeline}))
    addresses: set[str] = set()
    for ids in slices(withdrawn):
        addresses.update(connection.scalars(_FREED, {"ours": outcome.attempt_id, "of_attempts": list(ids)}))
    if not addresses:
        return outcome
    addresses |= set(replaced_objects(outcome.record.replaces))
    replaces = json.dumps(sorted(addresses), separators=(",", ":"))
    return replace(outcome, record=replace(outcome.record, replaces=replaces))


def of_several_objects(connection: Connection, pipeline: str) -> set[bytes]:
    """Return those of ``wanted`` with the address that another processed object has, one of another key."""
    return set(connection.scalars(_SHARED, {"in_pipeline": pipeline}))
