"""Retract objects: a batch without objects replaces their rows by nothing, and their versions end as retracted.

The one transaction locks the pipeline's row first, like a commit, and so every batch before the retraction's has its
objects processed by then, and every later one shows its rows after it. Then it locks the progress of the archive, so
that no object moves there meanwhile; see `penstock.ledger.returns`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection, bindparam, insert, null, select, update

from penstock.errors import ClaimLost, ConfigurationError, TemporaryError
from penstock.ledger.archive import RetiredObject
from penstock.ledger.database import Database, OutcomeUnknown
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.quarantine import dismiss_retracted
from penstock.ledger.records import AttemptState, BatchOutcome, BatchRecord, ObjectState, replaced_objects
from penstock.ledger.reopenings import withdraw_reopenings
from penstock.ledger.returns import (
    ReturningObject,
    lock_archiving,
    returning_object,
    returning_timeline,
    take_back,
    versions_of,
)
from penstock.ledger.rows import Values, new_batch
from penstock.ledger.rules import storable, stored_reason
from penstock.ledger.schema import (
    attempts,
    batches,
    object_attempts,
    objects,
    pipelines,
    progress,
)
from penstock.ledger.sets import slices
from penstock.messaging.steps import Probe, Step

OUTCOME = "retracted"  # of the attempt, for each object
RETRACTED_AGAIN = "retracted before the ledger was repaired"  # the reason itself was only in the ledger
TRIES_MAX = 5

_LOCK = (
    select(pipelines.c.next_seq, pipelines.c.schema_id)
    .where(pipelines.c.id == bindparam("in_pipeline"))
    .with_for_update()
)
RETRACT = (
    update(objects)
    .values(
        state=ObjectState.RETRACTED.value,
        attempt_id=bindparam("of_attempt"),
        batch_seq=null(),
        rows=null(),
        lines_quarantined=null(),
        unknown_fields=null(),
        reason=bindparam("why"),
        ended_at=DatabaseNow(),
        dead_at=null(),
        missed_at=null(),
        sought_at=null(),
    )
    .where(
        objects.c.pipeline == bindparam("in_pipeline"),
        objects.c.object_id.in_(bindparam("of_objects", expanding=True)),
        objects.c.state == ObjectState.PROCESSED.value,
    )
)
_RETURN = insert(objects).values(ended_at=DatabaseNow())
_ADD_BATCH = insert(batches).values(committed_at=DatabaseNow())
_ADVANCE = (
    update(pipelines)
    .values(next_seq=pipelines.c.next_seq + 1)
    .where(pipelines.c.id == bindparam("in_pipeline"), pipelines.c.next_seq == bindparam("as_seq"))
)
_RECORDED = select(batches.c.seq).where(
    batches.c.attempt_id == bindparam("of_attempt"), batches.c.pipeline == bindparam("in_pipeline")
)
_RETRACTIONS = (
    select(batches.c.seq, batches.c.attempt_id, batches.c.replaces)
    .where(
        batches.c.pipeline == bindparam("in_pipeline"),
        batches.c.seq >= bindparam("from_seq"),
        batches.c.replaces.is_not(None),
        batches.c.objects == 0,
    )
    .order_by(batches.c.seq)
)
_BY_ATTEMPT = select(objects.c.object_id).where(
    objects.c.attempt_id == bindparam("of_attempt"), objects.c.state == ObjectState.RETRACTED.value
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retraction:
    """The objects to retract, by address. ``attempt_id`` was never used before."""

    pipeline: str
    attempt_id: str
    worker: str
    addresses: Sequence[str]  # as in the column `_object`
    reason: str
    archived: Sequence[ReturningObject] = ()

    @property
    def record(self) -> BatchRecord:
        """The record of the retraction's batch."""
        return BatchRecord(replaces=json.dumps(sorted(set(self.addresses)), separators=(",", ":")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Retracted:
    """The result of a retraction. If objects are being processed, nothing was changed and ``seq`` is None."""

    seq: int | None
    versions: int = 0
    busy: Sequence[str] = ()  # addresses


class _AreProcessed(Exception):
    """Objects are being processed, so nothing is changed."""

    def __init__(self, addresses: Sequence[str]) -> None:
        super().__init__(addresses)
        self.addresses = addresses


class _AttemptKnown(Exception):
    """The attempt is in the ledger: an earlier commit of ours succeeded, or a repair gave it up."""


class Retractions:
    """Retract objects. Thread-safe."""

    def __init__(self, database: Database, probe: Probe) -> None:
        self._database = database
        self._probe = probe
        self._add_progress = database.dialect.insert_or_ignore(progress)
        self._note = database.dialect.insert_or_ignore(object_attempts)
        self._add_attempt = (
            database.dialect.insert_or_ignore(attempts)
            .values(
                state=AttemptState.COMMITTED.value,
                started_at=DatabaseNow(),
                ended_at=DatabaseNow(),
                lease_until=0.0,
                heartbeat_seq=0,
            )
            .execution_options(preserve_rowcount=True)  # psycopg drops the row count of inserts
        )

    def retract(self, retraction: Retraction) -> Retracted:
        """Commit a batch that takes the rows of these objects out of the table; end their processed versions.

        Raises:
            ClaimLost: A repair gave the attempt up. Nothing is changed.
            TemporaryError: The objects changed meanwhile, or the outcome stays unknown. Calling again with the same
                attempt is safe.
        """
        work = partial(self._retract, retraction)
        for _ in range(TRIES_MAX):
            try:
                done = self._database.transact(work, before_commit=partial(self._probe, Step.COMMITTING))
            except OutcomeUnknown as error:  # if the commit did succeed, the next run finds the attempt
                unknown = error
            except _AreProcessed as refused:
                return Retracted(seq=None, busy=refused.addresses)
            except _AttemptKnown:
                done = self._recorded(retraction)
                break
            else:
                break
        else:
            raise TemporaryError(
                f"retraction {retraction.attempt_id}: no answer to {TRIES_MAX} commits, try again later"
            ) from unknown
        self._probe(Step.COMMITTED)
        return done

    def _retract(self, retraction: Retraction, connection: Connection) -> Retracted:
        binds = {"in_pipeline": retraction.pipeline, "of_attempt": retraction.attempt_id}
        pipeline = connection.execute(_LOCK, binds).one_or_none()
        if pipeline is None:
            raise ConfigurationError(f"the ledger has no pipeline {retraction.pipeline}: it has nothing to retract")
        lock_archiving(connection, self._add_progress, retraction.pipeline)
        withdraw_reopenings(connection, retraction.pipeline, retraction.addresses)
        versions = versions_of(connection, retraction.pipeline, retraction.addresses)
        busy = sorted({row.uri for row in versions if row.state == ObjectState.PROCESSING.value})
        if busy:
            raise _AreProcessed(busy)
        attempt = {"id": retraction.attempt_id, "pipeline": retraction.pipeline, "worker": storable(retraction.worker)}
        if connection.execute(self._add_attempt, attempt).rowcount != 1:
            raise _AttemptKnown
        ids = [row.object_id for row in versions if row.state == ObjectState.PROCESSED.value]
        retract_versions(connection, retraction.pipeline, ids, attempt_id=retraction.attempt_id, why=retraction.reason)
        ids += self._return_archived(connection, retraction)
        for page in slices(ids):
            connection.execute(self._note, [_note(retraction, object_id) for object_id in page])
        seq = int(pipeline.next_seq)
        dismiss_retracted(connection, retraction.pipeline, ids, seq=seq)
        outcome = BatchOutcome(
            pipeline=retraction.pipeline, attempt_id=retraction.attempt_id, processed=(), record=retraction.record
        )
        connection.execute(_ADD_BATCH, new_batch(outcome, seq=seq, schema_id=pipeline.schema_id))
        if connection.execute(_ADVANCE, {**binds, "as_seq": seq}).rowcount != 1:
            raise TemporaryError(f"the sequence of {retraction.pipeline} moved under its lock: retract again")
        return Retracted(seq=seq, versions=len(ids))

    def _return_archived(self, connection: Connection, retraction: Retraction) -> Sequence[bytes]:
        """Give archived objects a row again, as retracted; return their ids. Leave out those that another one took."""
        returned: list[bytes] = []
        for one in take_back(connection, retraction.pipeline, retraction.archived):
            connection.execute(_RETURN, _returning(retraction, one.retired))
            for timeline in returning_timeline(retraction.pipeline, one.retired):
                connection.execute(self._note, timeline)
            returned.append(one.retired.row.object_id)
        return returned

    def _recorded(self, retraction: Retraction) -> Retracted:
        binds = {"in_pipeline": retraction.pipeline, "of_attempt": retraction.attempt_id}
        with self._database.reading() as connection:
            seq = connection.execute(_RECORDED, binds).scalar_one_or_none()
            versions = len(connection.scalars(_BY_ATTEMPT, binds).all())
        if seq is None:
            raise ClaimLost(f"the retraction {retraction.attempt_id} was given up by a repair of the ledger")
        return Retracted(seq=int(seq), versions=versions)


def retract_again(connection: Connection, pipeline: str, *, from_seq: int) -> None:
    """Repeat the retractions from this batch on, after a repair brought back batches before them, inside it."""
    for batch in connection.execute(_RETRACTIONS, {"in_pipeline": pipeline, "from_seq": from_seq}).all():
        withdraw_reopenings(connection, pipeline, replaced_objects(batch.replaces))
        ids = [
            row.object_id
            for row in versions_of(connection, pipeline, replaced_objects(batch.replaces))
            if row.state == ObjectState.PROCESSED.value and row.batch_seq < batch.seq
        ]
        retract_versions(connection, pipeline, ids, attempt_id=batch.attempt_id, why=RETRACTED_AGAIN)
        dismiss_retracted(connection, pipeline, ids, seq=int(batch.seq))


def retract_versions(
    connection: Connection, pipeline: str, object_ids: Sequence[bytes], *, attempt_id: str, why: str
) -> None:
    """End processed objects as retracted, inside a transaction.

    Raises `TemporaryError` if one is no longer processed.
    """
    binds = {"in_pipeline": pipeline, "of_attempt": attempt_id, "why": stored_reason(why)}
    for page in slices(object_ids):
        if connection.execute(RETRACT, {**binds, "of_objects": list(page)}).rowcount != len(page):
            raise TemporaryError(f"objects of {pipeline} changed while they were retracted: retract again")


def _note(retraction: Retraction, object_id: bytes) -> Values:
    return {
        "pipeline": retraction.pipeline,
        "object_id": object_id,
        "attempt_id": retraction.attempt_id,
        "outcome": OUTCOME,
        "reason": stored_reason(retraction.reason),
    }


def _returning(retraction: Retraction, retired: RetiredObject) -> Values:
    return {
        **returning_object(retraction.pipeline, retired),
        "state": ObjectState.RETRACTED.value,
        "attempt_id": retraction.attempt_id,
        "reason": stored_reason(retraction.reason),
    }
