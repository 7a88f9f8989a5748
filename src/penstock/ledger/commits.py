"""Commit batches: the one transaction that makes a batch count.

It locks the pipeline's row first, so that sequence numbers follow the order in which batches become visible. Every
later statement is fenced by the attempt and its row count is checked; on a mismatch the transaction is rolled back, and
the run's files are orphans.
"""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from sqlalchemy import Connection, bindparam, case, func, insert, literal, null, select, update

from penstock.errors import ClaimLost, ConfigurationError, SchemaMoved, TemporaryError, UsageError
from penstock.ledger.database import Database, OutcomeUnknown
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.merges import remember_merge
from penstock.ledger.quarantine import record_quarantined
from penstock.ledger.records import (
    AttemptFailure,
    AttemptState,
    BatchOutcome,
    Committed,
    FailedObject,
    ObjectResult,
    ObjectState,
)
from penstock.ledger.reopenings import settle_reopened
from penstock.ledger.rows import AnyRow, leaving_object, new_batch, with_added
from penstock.ledger.rules import made_with
from penstock.ledger.schema import attempts, batches, leaving, object_attempts, objects, pipelines, table_schemas
from penstock.ledger.sets import among, fill_from, of_pipeline
from penstock.ledger.versions import ReplacedRows, replace_earlier
from penstock.messaging.steps import Probe, Step

Ended = ObjectResult | FailedObject

TRIES_MAX = 5
NOTHING_PROCESSED = "nothing_processed"  # outcome of an attempt if all its objects failed

_LOCK = (
    select(pipelines.c.next_seq, pipelines.c.schema_id, pipelines.c.added_columns, pipelines.c.transform)
    .where(pipelines.c.id == bindparam("in_pipeline"))
    .with_for_update()
)
_END_ATTEMPT = (
    update(attempts)
    .values(
        state=bindparam("new_state"),
        ended_at=DatabaseNow(),
        outcome=bindparam("new_outcome"),
        reason=bindparam("new_reason"),
    )
    .where(
        attempts.c.id == bindparam("ours"),
        attempts.c.pipeline == bindparam("in_pipeline"),
        attempts.c.state == AttemptState.OPEN.value,
    )
)
_HELD = (objects.c.attempt_id == bindparam("ours")) & (objects.c.state == ObjectState.PROCESSING.value)
_began_at = bindparam("began_at", type_=objects.c.sought_at.type)
_is_free = leaving.c.state == ObjectState.UNPROCESSED.value
_LEAVE = (
    update(objects)
    .values(
        state=leaving.c.state,
        attempt_id=case((_is_free, null()), else_=objects.c.attempt_id),
        batch_seq=case((leaving.c.state == ObjectState.PROCESSED.value, bindparam("as_seq", type_=batches.c.seq.type))),
        # A version that another one was added to has rows in the table still, although it ends as superseded now.
        rows=case((leaving.c.state == ObjectState.PROCESSED.value, leaving.c.rows), else_=objects.c.rows),
        lines_quarantined=leaving.c.lines_quarantined,
        reason=leaving.c.reason,
        unknown_fields=leaving.c.unknown_fields,
        refunds=objects.c.refunds + leaving.c.refund,
        unattributed_failures=objects.c.unattributed_failures + leaving.c.unattributed,
        ended_at=case((_is_free, null()), else_=DatabaseNow()),
        dead_at=case((leaving.c.state == ObjectState.DEAD.value, DatabaseNow()), (_is_free, objects.c.dead_at)),
        missed_at=case(
            (leaving.c.missing == 1, func.coalesce(objects.c.missed_at, DatabaseNow())),
        ),
        sought_at=case(
            (leaving.c.missing == 1, func.coalesce(objects.c.sought_at, _began_at)),
            (leaving.c.state == ObjectState.SUPERSEDED.value, _began_at),
        ),
    )
    .where(_HELD, objects.c.object_id == leaving.c.object_id)
)
_UNFOUND = (AttemptFailure.DELETED, AttemptFailure.SUPERSEDED)
_BEGAN_AT = select(attempts.c.started_at).where(attempts.c.id == bindparam("ours"))
_STILL_HELD = select(func.count()).select_from(objects).where(_HELD)
_NOTE_FAILURES = (
    update(object_attempts)
    .values(outcome=leaving.c.outcome, reason=leaving.c.note)
    .where(
        of_pipeline(object_attempts),
        object_attempts.c.object_id == leaving.c.object_id,
        object_attempts.c.attempt_id == bindparam("ours"),
        leaving.c.outcome.is_not(None),
        among(object_attempts.c.object_id, of=select(leaving.c.object_id).where(leaving.c.outcome.is_not(None))),
    )
)
_ADD_BATCH = insert(batches).values(committed_at=DatabaseNow())
_ADD_SCHEMA = insert(table_schemas)
_ADVANCE = (
    update(pipelines)
    .values(
        next_seq=pipelines.c.next_seq + 1,
        schema_id=bindparam("new_schema_id"),
        added_columns=bindparam("all_added", type_=pipelines.c.added_columns.type),
        transform=func.coalesce(pipelines.c.transform, bindparam("own_transform", type_=pipelines.c.transform.type)),
    )
    .where(pipelines.c.id == bindparam("in_pipeline"), pipelines.c.next_seq == bindparam("as_seq"))
)
_HAS_TRANSFORMED = (
    select(literal(1))
    .where(batches.c.pipeline == bindparam("in_pipeline"), batches.c.transform == bindparam("own_transform"))
    .limit(1)
)
_RECORDED = (
    select(
        attempts.c.state,
        attempts.c.outcome,
        attempts.c.reason,
        batches.c.seq,
        batches.c.replaced_objects,
        batches.c.replaced_rows,
        batches.c.grown_objects,
        batches.c.appended_rows,
    )
    .outerjoin_from(attempts, batches, batches.c.attempt_id == attempts.c.id)
    .where(attempts.c.id == bindparam("ours"), attempts.c.pipeline == bindparam("in_pipeline"))
)


class _CommitFenced(Exception):
    """The attempt is not open: lost, or ended by an earlier commit of ours whose reply was lost."""


class Commits:
    """End attempts and record their batches. Thread-safe."""

    def __init__(self, database: Database, probe: Probe) -> None:
        self._database = database
        self._probe = probe

    def commit(self, outcome: BatchOutcome) -> Committed | None:
        """Commit a batch; see `penstock.ledger.ledger.Ledger.commit`."""
        rows: list[Ended] = sorted((*outcome.processed, *outcome.failed), key=attrgetter("object_id"))
        if len({row.object_id for row in rows}) != len(rows):
            raise ValueError(f"attempt {outcome.attempt_id} ends an object twice")
        committed = self._until_known(outcome, rows)
        self._probe(Step.COMMITTED)
        return committed

    def _until_known(self, outcome: BatchOutcome, rows: Sequence[Ended]) -> Committed | None:
        """Run the transaction until its outcome is known.

        If an earlier run did commit, the next one fails at the fence, and `_recorded_result` returns it.
        """
        for _ in range(TRIES_MAX):
            try:
                return self._record(outcome, rows)
            except OutcomeUnknown as error:
                unknown = error
            except _CommitFenced:
                return self._recorded_result(outcome)
        raise TemporaryError(
            f"attempt {outcome.attempt_id}: no answer to {TRIES_MAX} commits, try again later"
        ) from unknown

    def _record(self, outcome: BatchOutcome, rows: Sequence[Ended]) -> Committed | None:

        def record(connection: Connection) -> Committed | None:
            pipeline = _lock(connection, outcome.pipeline)
            _end_attempt(connection, outcome)
            seq = int(pipeline.next_seq) if outcome.processed else None
            _leave(connection, outcome, rows, seq=seq)
            has_table = pipeline.schema_id > 0 or outcome.new_schema is not None
            settle_reopened(connection, outcome, has_table=has_table)
            if seq is None:
                return None
            added = with_added(pipeline.added_columns, outcome.added_columns)
            _check_transform(connection, outcome, pipeline.transform)
            remember_merge(connection, outcome)
            whole, replaced = replace_earlier(connection, outcome, seq=seq)
            _add_batch(connection, whole, seq=seq, schema_id=pipeline.schema_id, added=added, replaced=replaced)
            record_quarantined(connection, outcome)
            grown = outcome.grown
            return _committed(
                seq, replaced.replaced_objects, replaced.replaced_rows, len(grown), sum(one.rows for one in grown)
            )

        return self._database.transact(record, before_commit=partial(self._probe, Step.COMMITTING))

    def _recorded_result(self, outcome: BatchOutcome) -> Committed | None:
        """Return the result of our own commit; raise `ClaimLost` if something else ended the attempt."""
        binds = {"ours": outcome.attempt_id, "in_pipeline": outcome.pipeline}
        with self._database.reading() as connection:
            ended = connection.execute(_RECORDED, binds).one_or_none()
        if ended is None:
            raise ClaimLost(f"attempt {outcome.attempt_id} is not in the ledger: it never claimed anything")
        if ended.seq is not None and outcome.processed:
            replaced, grown = (ended.replaced_objects, ended.replaced_rows), (ended.grown_objects, ended.appended_rows)
            return _committed(int(ended.seq), *replaced, *grown)
        if ended.outcome == NOTHING_PROCESSED and not outcome.processed:
            return None
        raise ClaimLost(f"attempt {outcome.attempt_id} is {ended.state}: {ended.reason or 'committed otherwise'}")


def _committed(
    seq: int, objects_: int | None, rows: int | None, grown: int | None = None, appended_rows: int | None = None
) -> Committed:
    """Return the result of a commit. ``rows`` None: the batch adds versions, whatever it replaces besides."""
    if rows is None:
        return Committed(seq=seq)
    return Committed(
        seq=seq,
        replaced_objects=int(objects_ or 0),
        replaced_rows=int(rows),
        grown_objects=int(grown or 0),
        appended_rows=int(appended_rows or 0),
    )


def _lock(connection: Connection, pipeline: str) -> AnyRow:
    row = connection.execute(_LOCK, {"in_pipeline": pipeline}).one_or_none()
    if row is None:
        raise ConfigurationError(f"the ledger has no pipeline {pipeline}: ensure it before committing to it")
    return row


def _end_attempt(connection: Connection, outcome: BatchOutcome) -> None:
    """End the attempt. Without a batch it ends as abandoned, so that gc may delete its files."""
    if outcome.processed:
        state, word, reason = AttemptState.COMMITTED, None, None
    else:
        state, word, reason = AttemptState.ABANDONED, NOTHING_PROCESSED, "no object was processed"
    binds = {
        "ours": outcome.attempt_id,
        "in_pipeline": outcome.pipeline,
        "new_state": state.value,
        "new_outcome": word,
        "new_reason": reason,
    }
    if connection.execute(_END_ATTEMPT, binds).rowcount != 1:
        raise _CommitFenced


def _leave(connection: Connection, outcome: BatchOutcome, rows: Sequence[Ended], *, seq: int | None) -> None:
    """Set every object of the attempt to its state in the outcome.

    Raises if the outcome does not name exactly the objects that the attempt holds.
    """
    binds = {"ours": outcome.attempt_id, "in_pipeline": outcome.pipeline}
    fill_from(connection, leaving, rows, leaving_object)
    unfound = any(failed.missing or failed.failure in _UNFOUND for failed in outcome.failed)
    began_at = connection.execute(_BEGAN_AT, {"ours": outcome.attempt_id}).scalar_one() if unfound else None
    left = connection.execute(_LEAVE, {"ours": outcome.attempt_id, "as_seq": seq, "began_at": began_at}).rowcount
    if left != len(rows):
        raise ClaimLost(f"attempt {outcome.attempt_id} holds {left} of the {len(rows)} objects it would end")
    forgotten = connection.execute(_STILL_HELD, {"ours": outcome.attempt_id}).scalar_one()
    if forgotten:
        raise ValueError(f"attempt {outcome.attempt_id} holds {forgotten} objects that its outcome does not name")
    if outcome.failed:
        connection.execute(_NOTE_FAILURES, binds)


def _check_transform(connection: Connection, outcome: BatchOutcome, recorded: str | None) -> None:
    """Refuse a batch of another transform if two processes with different ones began before either had committed.

    A start checks the name too. A worker that runs while a person changes the name may go on: its transform has made
    rows before.
    """
    own = outcome.record.transform
    if own is None or recorded is None or own == recorded:
        return
    binds = {"in_pipeline": outcome.pipeline, "own_transform": own}
    if connection.execute(_HAS_TRANSFORMED, binds).first() is None:
        raise UsageError(
            f"The rows of {outcome.pipeline} are made {made_with(recorded)}, as another process recorded meanwhile, "
            f"and those of this one {made_with(own)}: run it again, and it says what to do."
        )


def _add_batch(
    connection: Connection,
    outcome: BatchOutcome,
    *,
    seq: int,
    schema_id: int,
    added: str | None,
    replaced: ReplacedRows,
) -> None:
    if outcome.schema_id != schema_id:
        raise SchemaMoved(
            f"the table of {outcome.pipeline} has schema {schema_id}, the run was planned with {outcome.schema_id}: "
            "plan it again"
        )
    if outcome.new_schema is not None:
        schema_id += 1
        new_schema = {"pipeline": outcome.pipeline, "schema_id": schema_id, "table_schema": outcome.new_schema}
        connection.execute(_ADD_SCHEMA, new_schema)
    batch = new_batch(outcome, seq=seq, schema_id=schema_id)
    if replaced.replaced_rows is not None:
        batch |= {"replaced_objects": replaced.replaced_objects, "replaced_rows": replaced.replaced_rows}
    if grown := outcome.grown:
        batch |= {"grown_objects": len(grown), "appended_rows": sum(one.rows for one in grown)}
    connection.execute(_ADD_BATCH, batch)
    binds = {
        "in_pipeline": outcome.pipeline,
        "as_seq": seq,
        "new_schema_id": schema_id,
        "all_added": added,
        "own_transform": outcome.record.transform,
    }
    if connection.execute(_ADVANCE, binds).rowcount != 1:
        raise TemporaryError(f"the sequence of {outcome.pipeline} moved under its lock: commit again")
