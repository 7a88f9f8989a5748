"""Bring a ledger that was rolled back up to date with its table, in one transaction.

If an object of an imported batch were free for a moment, it could be claimed and its rows written twice. Open attempts
are abandoned in the same transaction, so that no running worker can commit a run planned on the incomplete ledger. The
transaction locks the pipeline's row first, like a commit.
"""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter, itemgetter

from sqlalchemy import Connection, bindparam, delete, insert, null, select, update

from penstock.errors import ConfigurationError, TemporaryError
from penstock.ledger.abandonments import abandon_open
from penstock.ledger.addresses import WITHDRAWN, note_withdrawn
from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.quarantine import (
    forget_quarantined,
    record_quarantined,
    renumber_replaced,
    return_replaced,
)
from penstock.ledger.records import (
    AttemptState,
    BatchOutcome,
    ImportedBatch,
    ImportedObject,
    LedgerRepair,
    LedgerRepaired,
    ObjectResult,
    ObjectState,
    OnChange,
    replaced_objects,
)
from penstock.ledger.reopenings import free_reopened, read_by_import, renumber_reopened
from penstock.ledger.retractions import retract_again
from penstock.ledger.rows import Values, new_batch, new_object
from penstock.ledger.rules import storable
from penstock.ledger.schema import attempts, batches, leaving, object_attempts, objects, pipelines, table_schemas
from penstock.ledger.sets import among, fill, of_pipeline
from penstock.ledger.table_commits import forget_table_commits
from penstock.ledger.tails import grown_addresses, record_beginnings, stored_beginnings
from penstock.ledger.versions import count_rows, earlier_versions, supersede
from penstock.messaging.steps import Probe, Step

REPAIR = "repair"  # worker of the attempts that a repair adds, and outcome of those that it abandons or forgets

_LOCK = (
    select(pipelines.c.next_seq, pipelines.c.schema_id, table_schemas.c.table_schema)
    .outerjoin_from(
        pipelines,
        table_schemas,
        (table_schemas.c.pipeline == pipelines.c.id) & (table_schemas.c.schema_id == pipelines.c.schema_id),
    )
    .where(pipelines.c.id == bindparam("in_pipeline"))
    .with_for_update(of=pipelines)
)
_OPEN = select(attempts.c.id).where(
    attempts.c.pipeline == bindparam("in_pipeline"), attempts.c.state == AttemptState.OPEN.value
)
_of_seq = (batches.c.pipeline == bindparam("in_pipeline")) & (batches.c.seq == bindparam("of_seq"))
_ATTEMPT_OF = select(batches.c.attempt_id).where(_of_seq)
_DROP_BATCH = delete(batches).where(_of_seq)
_RENUMBER = update(batches).values(seq=bindparam("new_seq")).where(_of_seq)
_processed = (objects.c.attempt_id == bindparam("of_attempt")) & (objects.c.state == ObjectState.PROCESSED.value)
_RENUMBER_OBJECTS = update(objects).values(batch_seq=bindparam("new_seq")).where(_processed)
_FREE_PROCESSED = (
    update(objects)
    .values(
        state=ObjectState.UNPROCESSED.value,
        attempt_id=null(),
        batch_seq=null(),
        rows=null(),
        lines_quarantined=null(),
        unknown_fields=null(),
        ended_at=null(),
        refunds=objects.c.refunds + 1,
    )
    .where(_processed)
)
_END_ATTEMPT = (
    update(attempts)
    .values(
        state=bindparam("new_state"),
        outcome=bindparam("new_outcome"),
        reason=bindparam("new_reason"),
        ended_at=DatabaseNow(),
    )
    .where(attempts.c.id == bindparam("of_attempt"), attempts.c.pipeline == bindparam("in_pipeline"))
)
_PROCESS = (
    update(objects)
    .values(
        state=ObjectState.PROCESSED.value,
        attempt_id=bindparam("of_attempt"),
        batch_seq=bindparam("as_seq", type_=batches.c.seq.type),
        rows=leaving.c.rows,
        lines_quarantined=leaving.c.lines_quarantined,
        reason=null(),
        ended_at=DatabaseNow(),
        dead_at=null(),
        missed_at=null(),
        sought_at=null(),
    )
    .where(
        of_pipeline(objects),
        objects.c.object_id == leaving.c.object_id,
        among(objects.c.object_id, of=select(leaving.c.object_id)),
    )
)
_ADD_SCHEMA = insert(table_schemas)
_ADD_BATCH = insert(batches)
_DATE_ATTEMPT = (
    update(attempts).values(started_at=bindparam("claimed_at")).where(attempts.c.id == bindparam("of_attempt"))
)
_DATE_BATCH = update(batches).values(committed_at=DatabaseNow()).where(_of_seq)
_SEQS_REPLACING = (
    select(batches.c.seq, batches.c.attempt_id)
    .where(
        batches.c.pipeline == bindparam("in_pipeline"),
        batches.c.seq >= bindparam("from_seq"),
        batches.c.replaced_rows.is_not(None),
    )
    .order_by(batches.c.seq)
)
_REPLACED = select(batches.c.replaces, batches.c.replaced_rows).where(_of_seq)
_REPLACE = (
    update(batches)
    .values(
        replaces=bindparam("by_addresses"),
        replaced_objects=bindparam("of_objects"),
        replaced_rows=bindparam("by_rows"),
    )
    .where(_of_seq)
)
_SET_TRANSFORM = update(pipelines).values(transform=bindparam("name")).where(pipelines.c.id == bindparam("in_pipeline"))
_SET_MERGE = update(pipelines).values(merge=bindparam("text")).where(pipelines.c.id == bindparam("in_pipeline"))
_ADVANCE = (
    update(pipelines)
    .values(next_seq=bindparam("new_next_seq"), schema_id=bindparam("new_schema_id"))
    .where(pipelines.c.id == bindparam("in_pipeline"))
)


class Repairs:
    """Apply repairs. Thread-safe."""

    def __init__(self, database: Database, probe: Probe) -> None:
        self._database = database
        self._probe = probe
        insert_or_ignore = database.dialect.insert_or_ignore
        self._add_attempt = (
            insert_or_ignore(attempts)
            .values(started_at=DatabaseNow(), ended_at=DatabaseNow(), lease_until=0.0, heartbeat_seq=0, worker=REPAIR)
            .execution_options(preserve_rowcount=True)  # psycopg drops the row count of inserts
        )
        self._add_objects = insert_or_ignore(objects).values(
            state=ObjectState.UNPROCESSED.value,
            charged=1,
            refunds=0,
            unattributed_failures=0,
            first_seen_at=DatabaseNow(),
        )
        self._note = insert_or_ignore(object_attempts)

    def apply(self, repair: LedgerRepair) -> LedgerRepaired:
        """Apply a repair; see `penstock.ledger.ledger.Ledger.repair`."""
        done = self._database.transact(
            partial(self._all_of_it, repair), before_commit=partial(self._probe, Step.REPAIRING)
        )
        self._probe(Step.REPAIRED)
        return done

    def _all_of_it(self, repair: LedgerRepair, connection: Connection) -> LedgerRepaired:
        schema_id = _lock(connection, repair)
        abandoned = _abandon_open(connection, repair.pipeline)
        forget_table_commits(connection, repair.pipeline)
        withdrawn = [_withdraw(connection, repair.pipeline, seq) for seq in repair.withdrawn]
        _move(connection, repair)
        for batch in sorted(repair.imported, key=attrgetter("seq")):
            self._import(connection, repair.pipeline, batch, schema_id=schema_id)
        _replace_imported(connection, repair)
        _take_over_transform(connection, repair)
        _take_over_merge(connection, repair)
        if repair.imported:
            retract_again(connection, repair.pipeline, from_seq=min(batch.seq for batch in repair.imported))
        for attempt_id in repair.forgotten:
            row = {"id": attempt_id, "pipeline": repair.pipeline, "state": AttemptState.ABANDONED.value}
            connection.execute(self._add_attempt, {**row, "outcome": REPAIR, "reason": "the ledger forgot it"})
        binds = {"in_pipeline": repair.pipeline, "new_next_seq": repair.next_seq, "new_schema_id": schema_id}
        connection.execute(_ADVANCE, binds)
        return LedgerRepaired(abandoned=abandoned, withdrawn=withdrawn)

    def _import(self, connection: Connection, pipeline: str, batch: ImportedBatch, *, schema_id: int) -> None:
        """Import a batch as committed, whatever state its attempt had: the table shows it."""
        attempt = {"id": batch.attempt_id, "pipeline": pipeline, "state": AttemptState.COMMITTED.value}
        new = connection.execute(self._add_attempt, {**attempt, "outcome": None, "reason": None}).rowcount == 1
        if new and batch.claimed_at is not None:
            connection.execute(_DATE_ATTEMPT, {"of_attempt": batch.attempt_id, "claimed_at": batch.claimed_at})
        _end(connection, pipeline, batch.attempt_id, AttemptState.COMMITTED, None, None)
        connection.execute(_ADD_BATCH, _row(pipeline, batch, schema_id))
        if batch.committed_at is None:
            connection.execute(_DATE_BATCH, {"in_pipeline": pipeline, "of_seq": batch.seq})
        if not batch.objects:
            return
        rows = [new_object(pipeline, imported.candidate) for imported in batch.objects]
        connection.execute(self._add_objects, sorted(rows, key=itemgetter("object_id")))
        fill(connection, leaving, [_leaving(imported) for imported in batch.objects])
        has_read_again = read_by_import(connection, pipeline, batch.attempt_id, seq=batch.seq)
        connection.execute(_PROCESS, {"in_pipeline": pipeline, "of_attempt": batch.attempt_id, "as_seq": batch.seq})
        connection.execute(self._note, [_noted(pipeline, row["object_id"], batch.attempt_id) for row in rows])
        outcome = BatchOutcome(
            pipeline=pipeline, attempt_id=batch.attempt_id, processed=(), bad=batch.bad, replays=batch.replays
        )
        if batch.on_change is not OnChange.ADD or has_read_again:
            _replace_again(connection, pipeline, batch.seq, batch.attempt_id, [_result(one) for one in batch.objects])
        record_quarantined(connection, outcome)


def _replace_imported(connection: Connection, repair: LedgerRepair) -> None:
    """Make the batches that were committed after the rollback replace versions that the ledger did not know then."""
    if not repair.imported:
        return
    seqs = {batch.seq for batch in repair.imported}
    found = connection.execute(_SEQS_REPLACING, {"in_pipeline": repair.pipeline, "from_seq": min(seqs)}).all()
    for batch in found:
        if batch.seq not in seqs:
            _replace_again(connection, repair.pipeline, int(batch.seq), batch.attempt_id)


def _replace_again(
    connection: Connection, pipeline: str, seq: int, attempt_id: str, processed: Sequence[ObjectResult] = ()
) -> None:
    """Compute which objects a batch replaces. The record beside the table, written before the commit, has none.

    ``processed`` are the objects of an imported batch: the record does tell which of them grew, and their beginnings.
    """
    earlier = earlier_versions(connection, pipeline, attempt_id, up_to_seq=seq)
    grown = grown_addresses(connection, attempt_id, processed)
    kept = count_rows(connection, pipeline, earlier.only(grown), seq=seq)
    bases = stored_beginnings(connection, pipeline, earlier.only(grown).last_seqs)
    earlier = earlier.without(grown)
    rows = supersede(connection, pipeline, attempt_id, earlier, seq=seq)
    record_beginnings(connection, pipeline, attempt_id, processed, bases=bases, kept_rows=kept)
    of_seq = {"in_pipeline": pipeline, "of_seq": seq}
    before = connection.execute(_REPLACED, of_seq).one()
    addresses = earlier.encoded(before.replaces or "")
    found = {
        "by_addresses": addresses or None,
        "of_objects": len(replaced_objects(addresses)),
        # Not fewer: a version that was processed again since has its rows in a later batch.
        "by_rows": max(rows, before.replaced_rows or 0),
    }
    connection.execute(_REPLACE, {**of_seq, **found})


def _lock(connection: Connection, repair: LedgerRepair) -> int:
    """Lock the pipeline's row and add a changed schema; return the id of the current schema after the repair."""
    row = connection.execute(_LOCK, {"in_pipeline": repair.pipeline}).one_or_none()
    if row is None:
        raise ConfigurationError(f"the ledger has no pipeline {repair.pipeline}: ensure it before repairing it")
    if row.next_seq != repair.seen_next_seq:
        raise TemporaryError(f"a batch of {repair.pipeline} was committed after the repair was planned: plan it again")
    if repair.table_schema is None or repair.table_schema == row.table_schema:
        return int(row.schema_id)
    schema_id = int(row.schema_id) + 1
    new = {"pipeline": repair.pipeline, "schema_id": schema_id, "table_schema": repair.table_schema}
    connection.execute(_ADD_SCHEMA, new)
    return schema_id


def _take_over_transform(connection: Connection, repair: LedgerRepair) -> None:
    """Record the transform of the newest batch that names one, if it is imported."""
    naming = (batch for batch in repair.imported if batch.record.transform is not None)
    newest = max(naming, key=attrgetter("seq"), default=None)
    if newest is not None and newest.record.transform is not None and not repair.moved:
        binds = {"in_pipeline": repair.pipeline, "name": storable(newest.record.transform)}
        connection.execute(_SET_TRANSFORM, binds)


def _take_over_merge(connection: Connection, repair: LedgerRepair) -> None:
    """Record the merge of the imported batches, which is that of the whole pipeline."""
    merged = next((batch.record.merge for batch in repair.imported if batch.record.merge is not None), None)
    if merged is not None:
        connection.execute(_SET_MERGE, {"in_pipeline": repair.pipeline, "text": merged})


def _abandon_open(connection: Connection, pipeline: str) -> Sequence[str]:
    found = connection.scalars(_OPEN, {"in_pipeline": pipeline}).all()
    why = "the ledger was repaired"
    return [
        id
        for id in found
        if abandon_open(connection, id, reason=why, outcome=REPAIR, uncounted=True, unattributed=False)
    ]


def _withdraw(connection: Connection, pipeline: str, seq: int) -> str:
    binds = {"in_pipeline": pipeline, "of_seq": seq}
    attempt_id: str = connection.execute(_ATTEMPT_OF, binds).scalar_one()
    note_withdrawn(connection, pipeline, attempt_id)
    connection.execute(_DROP_BATCH, binds)
    forget_quarantined(connection, pipeline, attempt_id)
    return_replaced(connection, pipeline, seq)
    connection.execute(_FREE_PROCESSED, {"of_attempt": attempt_id})
    free_reopened(connection, pipeline, attempt_id)
    reason = "committed after the ledger was rolled back; the table shows its objects in another batch"
    _end(connection, pipeline, attempt_id, AttemptState.ABANDONED, WITHDRAWN, reason)
    return attempt_id


def _move(connection: Connection, repair: LedgerRepair) -> None:
    """Renumber batches, by way of negative numbers because old and new ones may overlap."""
    found = {}
    for seq in repair.moved:
        binds = {"in_pipeline": repair.pipeline, "of_seq": seq}
        found[seq] = connection.execute(_ATTEMPT_OF, binds).scalar_one()
        connection.execute(_RENUMBER, {**binds, "new_seq": -seq})
        renumber_replaced(connection, repair.pipeline, seq, -seq)
    for seq, new_seq in repair.moved.items():
        connection.execute(_RENUMBER, {"in_pipeline": repair.pipeline, "of_seq": -seq, "new_seq": new_seq})
        connection.execute(_RENUMBER_OBJECTS, {"of_attempt": found[seq], "new_seq": new_seq})
        renumber_reopened(connection, repair.pipeline, found[seq], new_seq)
        renumber_replaced(connection, repair.pipeline, -seq, new_seq)


def _end(
    connection: Connection, pipeline: str, attempt_id: str, state: AttemptState, outcome: str | None, reason: str | None
) -> None:
    binds = {"of_attempt": attempt_id, "in_pipeline": pipeline}
    connection.execute(_END_ATTEMPT, {**binds, "new_state": state.value, "new_outcome": outcome, "new_reason": reason})


def _row(pipeline: str, batch: ImportedBatch, schema_id: int) -> Values:
    outcome = BatchOutcome(pipeline=pipeline, attempt_id=batch.attempt_id, processed=(), record=batch.record)
    row = new_batch(outcome, seq=batch.seq, schema_id=schema_id)
    row |= {"objects": len(batch.objects), "committed_at": batch.committed_at or 0.0}
    if grown := [one for one in batch.objects if one.appended_to is not None]:
        row |= {"grown_objects": len(grown), "appended_rows": sum(one.rows for one in grown)}
    return row


def _result(imported: ImportedObject) -> ObjectResult:
    return ObjectResult(
        object_id=imported.candidate.object_id,
        rows=imported.rows,
        lines_quarantined=imported.lines_quarantined,
        beginning=imported.beginning,
        appended_to=imported.appended_to,
    )


def _leaving(imported: ImportedObject) -> Values:
    return {
        "object_id": imported.candidate.object_id,
        "state": ObjectState.PROCESSED.value,
        "rows": imported.rows,
        "lines_quarantined": imported.lines_quarantined,
        "unknown_fields": None,
        "refund": 0,
        "unattributed": 0,
        "missing": 0,
    }


def _noted(pipeline: str, object_id: bytes, attempt_id: str) -> Values:
    return {"pipeline": pipeline, "object_id": object_id, "attempt_id": attempt_id}
