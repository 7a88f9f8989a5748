"""Query the ledger. Each query is one consistent read and changes nothing.

`LedgerAges` serves monitors, which poll. Its queries use indexes. Nearly all objects are processed ones, and counting
them reads an index entry each, so they are counted rarely; the count is then updated from the batches committed since,
which are few.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    Double,
    Select,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
)

from penstock.ledger.addresses import is_no_replay, of_several_objects
from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.merges import DELETES_BEFORE, FIRST_MERGED
from penstock.ledger.records import (
    TERMINAL,
    UNREAD,
    AttemptRow,
    AttemptState,
    BatchRow,
    KnownBeginning,
    ObjectAttempt,
    ObjectRow,
    ObjectState,
    OnChange,
)
from penstock.ledger.rows import attempt_row, batch_row, object_attempt, object_row, uri_digest
from penstock.ledger.rules import NEVER, storable
from penstock.ledger.schema import (
    archived_objects,
    archives,
    attempts,
    batches,
    object_attempts,
    objects,
    pipelines,
    reopenings,
    table_schemas,
    wanted,
)
from penstock.ledger.sets import (
    ARCHIVED,
    by_state,
    by_uri,
    filtered,
    ids_wanted,
    in_state,
    is_in,
    is_wanted,
    of_pipeline,
    parts,
)
from penstock.ledger.versions import (
    beginnings_for,
    changed_versions,
    overtaken_readings,
    replaced_versions,
    superseded_versions,
)

PAGE_BATCHES = 100
_STATE_NAMED = {state.value: state for state in ObjectState}

_ALL_BATCHES = (
    select(batches, table_schemas.c.table_schema, attempts.c.worker)
    .outerjoin_from(
        batches,
        table_schemas,
        (table_schemas.c.pipeline == batches.c.pipeline) & (table_schemas.c.schema_id == batches.c.schema_id),
    )
    .join(attempts, attempts.c.id == batches.c.attempt_id)
)
_BATCHES = _ALL_BATCHES.where(batches.c.pipeline == bindparam("in_pipeline"))
_BATCHES_AFTER = (
    _BATCHES.where(batches.c.seq > bindparam("after_seq")).order_by(batches.c.seq).limit(bindparam("rows_max"))
)
_WRITTEN = select(
    func.coalesce(func.sum(batches.c.rows), 0), func.coalesce(func.sum(batches.c.lines_quarantined), 0)
).where(batches.c.pipeline == bindparam("in_pipeline"), batches.c.seq <= bindparam("to_seq"))
_REPLACING = (
    select(batches.c.seq)
    .where(
        batches.c.pipeline == bindparam("in_pipeline"),
        batches.c.seq <= bindparam("to_seq"),
        batches.c.replaces.is_not(None),
    )
    .limit(1)
)
_REPLACED_TOTALS = select(
    func.coalesce(func.sum(batches.c.replaced_objects), 0), func.coalesce(func.sum(batches.c.replaced_rows), 0)
).where(
    batches.c.pipeline == bindparam("in_pipeline"),
    batches.c.seq > bindparam("after_seq"),
    batches.c.replaced_objects > 0,
)
_GROWN_TOTALS = select(
    func.coalesce(func.sum(batches.c.grown_objects), 0), func.coalesce(func.sum(batches.c.appended_rows), 0)
).where(
    batches.c.pipeline == bindparam("in_pipeline"),
    batches.c.seq > bindparam("after_seq"),
    batches.c.grown_objects > 0,
    batches.c.rows > 0,
)
_BATCH = _BATCHES.where(batches.c.seq == bindparam("at_seq"))
_BATCH_OF = _ALL_BATCHES.where(batches.c.attempt_id == bindparam("of_attempt"))

_STATES = select(objects.c.object_id, objects.c.state).where(is_wanted())
_UNREAD = select(objects.c.object_id, objects.c.ended_at).where(
    is_wanted(), or_(*(in_state(state) for state in sorted(UNREAD)))
)
_UNATTRIBUTED = select(objects.c.object_id, objects.c.unattributed_failures).where(is_wanted())
_LIVE = (
    select(objects.c.object_id)
    .join_from(objects, attempts, attempts.c.id == objects.c.attempt_id)
    .where(
        is_wanted(),
        in_state(ObjectState.PROCESSING),
        attempts.c.state == AttemptState.OPEN.value,
        attempts.c.lease_until >= DatabaseNow(),
    )
)
_was_unread = in_state(ObjectState.DELETED) | in_state(ObjectState.SUPERSEDED)
_ENDED = select(objects.c.object_id).where(
    is_wanted(),
    in_state(ObjectState.PROCESSED)
    | in_state(ObjectState.DEAD)
    | in_state(ObjectState.RETRACTED)
    # An object that exists refutes an earlier record that it was deleted or replaced.
    | (_was_unread & (objects.c.ended_at >= bindparam("seen_at", type_=objects.c.ended_at.type))),
)
_version = objects.alias("version")
_archived_version = archived_objects.alias("archived_version")

# The archive identifies a key by the digest of its uri. Several of these statements may return the same object.
_OTHER_VERSIONS = (
    by_uri(select(objects.c.object_id).distinct(), _version).where(
        is_wanted(),
        _version.c.uri_digest == objects.c.uri_digest,
        _version.c.pipeline == objects.c.pipeline,
        _version.c.bucket == objects.c.bucket,
        _version.c.key == objects.c.key,
        _version.c.object_id != objects.c.object_id,
        is_no_replay(_version),
    ),
    select(objects.c.object_id)
    .distinct()
    .where(
        is_wanted(),
        _archived_version.c.uri_digest == objects.c.uri_digest,
        filtered(_archived_version.c.pipeline) == objects.c.pipeline,
        _archived_version.c.object_id != objects.c.object_id,
        is_no_replay(_archived_version),
    ),
    *(
        select(archived_objects.c.object_id)
        .distinct()
        .where(
            of_pipeline(archived_objects),
            is_in(archived_objects.c.object_id, of=select(wanted.c.object_id)),
            other.c.uri_digest == archived_objects.c.uri_digest,
            filtered(other.c.pipeline) == archived_objects.c.pipeline,
            other.c.object_id != archived_objects.c.object_id,
            is_no_replay(other),
        )
        for other in (_version, _archived_version)
    ),
)
_FIND = (
    select(objects)
    .where(objects.c.uri_digest == bindparam("digest"), objects.c.uri == bindparam("of_uri"))
    .order_by(objects.c.pipeline, objects.c.first_seen_at, objects.c.object_id)
)
_COUNTS = (
    select(objects.c.state, func.count().label("objects_in_it"))
    .where(objects.c.pipeline == bindparam("in_pipeline"), objects.c.state.in_([state.value for state in ObjectState]))
    .group_by(objects.c.state)
)

ARCHIVED_COUNT = select(func.coalesce(func.sum(archives.c.objects), 0)).where(
    archives.c.pipeline == bindparam("in_pipeline")
)
"""How many objects of a pipeline are archived, added up over the archives."""

_ATTEMPT = select(attempts).where(attempts.c.id == bindparam("of_id"))
_ATTEMPTS_IN_STATE = (
    select(attempts)
    .where(attempts.c.pipeline == bindparam("in_pipeline"), attempts.c.state == bindparam("in_state"))
    .order_by(attempts.c.id)
)
_ATTEMPT_IDS_IN_STATE = _ATTEMPTS_IN_STATE.with_only_columns(attempts.c.id)
_ATTEMPTS = (
    select(
        object_attempts.c.object_id,
        object_attempts.c.attempt_id,
        object_attempts.c.outcome,
        object_attempts.c.reason,
        attempts.c.state.label("attempt_state"),
        attempts.c.outcome.label("attempt_outcome"),
        attempts.c.reason.label("attempt_reason"),
        attempts.c.worker,
        attempts.c.started_at,
        attempts.c.ended_at,
    )
    .join_from(object_attempts, attempts, attempts.c.id == object_attempts.c.attempt_id)
    .where(object_attempts.c.pipeline == bindparam("in_pipeline"))
    .order_by(attempts.c.started_at, attempts.c.id)
)
_TIMELINE = _ATTEMPTS.where(object_attempts.c.object_id == bindparam("of_object"))
_TIMELINES = _ATTEMPTS.where(is_in(object_attempts.c.object_id, of=select(wanted.c.object_id)))


class Queries:
    """Queries about objects, attempts and batches. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def now(self) -> float:
        """Return the time by the database's clock, in epoch seconds."""
        with self._database.reading() as connection:
            return float(connection.execute(_NOW).scalar_one())

    def batches(self, pipeline: str, *, after_seq: int, limit: int) -> Sequence[BatchRow]:
        binds = {"in_pipeline": pipeline, "after_seq": after_seq, "rows_max": limit}
        with self._database.reading() as connection:
            return [batch_row(row) for row in connection.execute(_BATCHES_AFTER, binds)]

    def batches_after(self, pipeline: str, after_seq: int) -> Iterator[BatchRow]:
        while page := self.batches(pipeline, after_seq=after_seq, limit=PAGE_BATCHES):
            yield from page
            after_seq = page[-1].seq

    def batch(self, pipeline: str, seq: int) -> BatchRow | None:
        with self._database.reading() as connection:
            row = connection.execute(_BATCH, {"in_pipeline": pipeline, "at_seq": seq}).one_or_none()
        return None if row is None else batch_row(row)

    def batch_of(self, attempt_id: str) -> BatchRow | None:
        with self._database.reading() as connection:
            row = connection.execute(_BATCH_OF, {"of_attempt": attempt_id}).one_or_none()
        return None if row is None else batch_row(row)

    def states(self, pipeline: str, object_ids: Collection[bytes]) -> Mapping[bytes, ObjectState]:
        binds, states = {"in_pipeline": pipeline}, dict[bytes, ObjectState]()
        with self._database.reading() as connection:
            for some in parts(object_ids):
                ids_wanted(connection, some)
                rows = connection.execute(_STATES, binds).all()
                # Queried after the rows, so that an object archived in between is found.
                archived = connection.scalars(ARCHIVED, binds).all()
                states.update((object_id, _STATE_NAMED[state]) for object_id, state in rows)
                states.update(dict.fromkeys(archived, ObjectState.PROCESSED))
        return states

    def unread(self, pipeline: str, object_ids: Collection[bytes]) -> Mapping[bytes, float]:
        with self._database.reading() as connection:
            ids_wanted(connection, object_ids)
            return {row.object_id: row.ended_at for row in connection.execute(_UNREAD, {"in_pipeline": pipeline})}

    def unattributed_failures(self, pipeline: str, object_ids: Collection[bytes]) -> Mapping[bytes, int]:
        with self._database.reading() as connection:
            ids_wanted(connection, object_ids)
            rows = connection.execute(_UNATTRIBUTED, {"in_pipeline": pipeline})
            return {**dict.fromkeys(object_ids, 0), **{row.object_id: row.unattributed_failures for row in rows}}

    def live(self, pipeline: str, object_ids: Collection[bytes]) -> set[bytes]:
        with self._database.reading() as connection:
            ids_wanted(connection, object_ids)
            return set(connection.scalars(_LIVE, {"in_pipeline": pipeline}))

    def other_versions(self, pipeline: str, object_ids: Collection[bytes]) -> int:
        count = 0
        with self._database.reading() as connection:
            for some in parts(set(object_ids)):
                ids_wanted(connection, some)
                found = (connection.scalars(statement, {"in_pipeline": pipeline}) for statement in _OTHER_VERSIONS)
                count += len(set().union(*found))
        return count

    def changed(self, pipeline: str, object_ids: Collection[bytes]) -> set[bytes]:
        with self._database.reading() as connection:
            ids_wanted(connection, object_ids)
            return changed_versions(connection, pipeline)

    def superseded(self, pipeline: str, object_ids: Collection[bytes]) -> set[bytes]:
        with self._database.reading() as connection:
            ids_wanted(connection, object_ids)
            return superseded_versions(connection, pipeline)

    def overtaken(self, pipeline: str, object_ids: Collection[bytes]) -> set[bytes]:
        with self._database.reading() as connection:
            ids_wanted(connection, object_ids)
            return overtaken_readings(connection, pipeline)

    def beginnings(self, pipeline: str, attempt_id: str) -> Mapping[bytes, KnownBeginning]:
        with self._database.reading() as connection:
            return beginnings_for(connection, pipeline, attempt_id)

    def replaced(self, pipeline: str, object_ids: Collection[bytes]) -> set[bytes]:
        with self._database.reading() as connection:
            ids_wanted(connection, object_ids)
            return replaced_versions(connection, pipeline)

    def of_several_objects(self, pipeline: str, object_ids: Collection[bytes]) -> set[bytes]:
        with self._database.reading() as connection:
            ids_wanted(connection, object_ids)
            return of_several_objects(connection, pipeline)

    def known_among(
        self, pipeline: str, object_ids: Collection[bytes], *, seen_at: float, on_change: OnChange
    ) -> set[bytes]:
        seen_at = min(seen_at, NEVER)
        with self._database.reading() as connection:
            ids_wanted(connection, object_ids)
            # Live ones first and archived ones last: an object that ends or is archived in between is found.
            found = set(connection.scalars(_LIVE, {"in_pipeline": pipeline}))
            found |= set(connection.scalars(_ENDED, {"in_pipeline": pipeline, "seen_at": seen_at}))
            found |= set(connection.scalars(ARCHIVED, {"in_pipeline": pipeline}))
            if on_change.replaces:
                found -= superseded_versions(connection, pipeline, seen_at=seen_at)
            return found

    def has_replaced(self, pipeline: str, seq: int) -> bool:
        with self._database.reading() as connection:
            return connection.execute(_REPLACING, {"in_pipeline": pipeline, "to_seq": seq}).first() is not None

    def grown_totals(self, pipeline: str, *, after_seq: int) -> tuple[int, int]:
        with self._database.reading() as connection:
            objects_, rows = connection.execute(_GROWN_TOTALS, {"in_pipeline": pipeline, "after_seq": after_seq}).one()
        return int(objects_), int(rows)

    def is_merged(self, pipeline: str, seq: int) -> bool:
        with self._database.reading() as connection:
            return connection.execute(FIRST_MERGED, {"in_pipeline": pipeline, "to_seq": seq}).first() is not None

    def deletes_before(self, pipeline: str, seq: int) -> Mapping[str, str]:
        binds = {"in_pipeline": pipeline, "before_seq": seq}
        with self._database.reading() as connection:
            return {row.attempt_id: row.tombstones for row in connection.execute(DELETES_BEFORE, binds)}

    def replaced_totals(self, pipeline: str, *, after_seq: int) -> tuple[int, int]:
        with self._database.reading() as connection:
            objects_, rows = connection.execute(
                _REPLACED_TOTALS, {"in_pipeline": pipeline, "after_seq": after_seq}
            ).one()
        return int(objects_), int(rows)

    def written_to(self, pipeline: str, seq: int) -> tuple[int, int]:
        with self._database.reading() as connection:
            rows, lines = connection.execute(_WRITTEN, {"in_pipeline": pipeline, "to_seq": seq}).one()
        return int(rows), int(lines)

    def objects(
        self,
        pipeline: str,
        *,
        state: ObjectState | None,
        uri_contains: str | None,
        older_than_seconds: float | None,
        limit: int,
        after: bytes | None,
    ) -> Sequence[ObjectRow]:
        statement = select(objects).where(objects.c.pipeline == pipeline).order_by(objects.c.object_id).limit(limit)
        if older_than_seconds is not None:
            since = func.coalesce(objects.c.ended_at, objects.c.first_seen_at)
            statement = statement.where(since < DatabaseNow() - literal(older_than_seconds, Double()))
        with self._database.reading() as connection:
            rows = connection.execute(_filtered(statement, state, uri_contains, after))
            return [object_row(row) for row in rows]

    def find(self, uri: str) -> Sequence[tuple[str, ObjectRow]]:
        stored = storable(uri)
        with self._database.reading() as connection:
            rows = connection.execute(_FIND, {"digest": uri_digest(stored), "of_uri": stored})
            return [(row.pipeline, object_row(row)) for row in rows]

    def counts(self, pipeline: str) -> Mapping[ObjectState, int]:
        with self._database.reading() as connection:
            rows = connection.execute(_COUNTS, {"in_pipeline": pipeline}).all()
            archived = connection.execute(ARCHIVED_COUNT, {"in_pipeline": pipeline}).scalar_one()
        counts = {**dict.fromkeys(ObjectState, 0), **{ObjectState(row.state): row.objects_in_it for row in rows}}
        counts[ObjectState.PROCESSED] += int(archived)
        return counts

    def attempt(self, attempt_id: str) -> AttemptRow | None:
        with self._database.reading() as connection:
            row = connection.execute(_ATTEMPT, {"of_id": attempt_id}).one_or_none()
        return None if row is None else attempt_row(row)

    def open_attempts(self, pipeline: str) -> Sequence[AttemptRow]:
        binds = {"in_pipeline": pipeline, "in_state": AttemptState.OPEN.value}
        with self._database.reading() as connection:
            return [attempt_row(row) for row in connection.execute(_ATTEMPTS_IN_STATE, binds)]

    def abandoned_attempts(self, pipeline: str) -> Sequence[str]:
        binds = {"in_pipeline": pipeline, "in_state": AttemptState.ABANDONED.value}
        with self._database.reading() as connection:
            return connection.scalars(_ATTEMPT_IDS_IN_STATE, binds).all()

    def attempts_of(self, pipeline: str, object_id: bytes) -> Sequence[ObjectAttempt]:
        with self._database.reading() as connection:
            rows = connection.execute(_TIMELINE, {"in_pipeline": pipeline, "of_object": object_id})
            return [object_attempt(row) for row in rows]

    def attempts_before(
        self, pipeline: str, attempt_id: str, object_ids: Collection[bytes]
    ) -> Mapping[bytes, ObjectAttempt]:
        with self._database.reading() as connection:
            ids_wanted(connection, object_ids)
            rows = connection.execute(_TIMELINES, {"in_pipeline": pipeline}).all()
        return {row.object_id: object_attempt(row) for row in rows if row.attempt_id != attempt_id}


def _filtered(
    statement: Select[Any], state: ObjectState | None, uri_contains: str | None, after: bytes | None
) -> Select[Any]:
    if state is not None:
        statement = statement.where(objects.c.state == state.value)
    if uri_contains is not None:
        statement = statement.where(objects.c.uri.icontains(storable(uri_contains), autoescape=True))
    if after is not None:
        statement = statement.where(objects.c.object_id > after)
    return statement


_OTHERS = tuple(state for state in ObjectState if state is not ObjectState.PROCESSED)
_of_pipeline = objects.c.pipeline == bindparam("in_pipeline")

_WAITING_COUNTS = (
    select(objects.c.state, func.count().label("objects_in_it"))
    .where(_of_pipeline, objects.c.state.in_([state.value for state in _OTHERS]))
    .group_by(objects.c.state)
)
_waiting_since = func.coalesce(reopenings.c.reopened_at, objects.c.first_seen_at)
_WAITING = (
    select(
        func.min(_waiting_since).label("oldest_at"),
        func.sum(case((_waiting_since < DatabaseNow() - bindparam("after_seconds"), 1), else_=0)).label("overdue"),
    )
    .outerjoin_from(
        objects,
        reopenings,
        (reopenings.c.pipeline == objects.c.pipeline) & (reopenings.c.object_id == objects.c.object_id),
    )
    .where(_of_pipeline, objects.c.state.in_([state.value for state in _OTHERS if state not in TERMINAL]))
)
_NOW = select(DatabaseNow())
_PROCESSED = by_state(
    select(func.count()).select_from(objects).where(_of_pipeline, objects.c.state == ObjectState.PROCESSED.value)
)
_NEXT_SEQ = select(pipelines.c.next_seq).where(pipelines.c.id == bindparam("in_pipeline"))
_SINCE = select(
    func.coalesce(func.sum(batches.c.objects), 0).label("objects"),
    func.count(batches.c.replaces).label("replacing"),  # may have retracted processed objects
).where(batches.c.pipeline == bindparam("in_pipeline"), batches.c.seq > bindparam("after_seq"))
_COMMITTED = select((DatabaseNow() - batches.c.committed_at).label("age")).where(
    batches.c.pipeline == bindparam("in_pipeline"), batches.c.seq == bindparam("at_seq")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnprocessedObjects:
    """The unprocessed objects of a pipeline. Ages are by the database's clock."""

    objects: Mapping[ObjectState, int]  # in every state except processed
    # of the unfinished ones, since the ledger first recorded or last reopened them; 0 if there are none
    oldest_age_seconds: float
    overdue: int  # unfinished objects older than the given limit
    committed_seq: int  # the last batch; 0 before the first


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessedCount:
    """Number of processed objects, including archived ones, up to a batch."""

    processed: int
    seq: int
    is_exact: bool = True  # False: batches since the full count may have replaced or retracted counted objects


class LedgerAges:
    """Queries for monitors. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def waiting(self, pipeline: str, *, overdue_after_seconds: float) -> UnprocessedObjects:
        """Count the unprocessed objects and their ages. Reads every unfinished object, but no processed one."""
        binds = {"in_pipeline": pipeline}
        with self._database.reading() as connection:
            rows = connection.execute(_WAITING_COUNTS, binds).all()
            waiting = connection.execute(_WAITING, {**binds, "after_seconds": overdue_after_seconds}).one()
            committed_seq = _committed_seq(connection, pipeline)
            now = float(connection.execute(_NOW).scalar_one())
        counts = {ObjectState(row.state): int(row.objects_in_it) for row in rows}
        return UnprocessedObjects(
            objects=dict.fromkeys(_OTHERS, 0) | counts,
            oldest_age_seconds=0.0 if waiting.oldest_at is None else max(0.0, now - waiting.oldest_at),
            overdue=int(waiting.overdue or 0),
            committed_seq=committed_seq,
        )

    def processed_count(self, pipeline: str) -> ProcessedCount:
        """Count the processed objects. Reads an index entry for each, so call it rarely."""
        binds = {"in_pipeline": pipeline}
        with self._database.reading() as connection:
            seq = _committed_seq(connection, pipeline)
            processed = connection.execute(_PROCESSED, binds).scalar_one()
            archived = connection.execute(ARCHIVED_COUNT, binds).scalar_one()
        return ProcessedCount(processed=int(processed) + int(archived), seq=seq)

    def updated_count(self, pipeline: str, count: ProcessedCount) -> ProcessedCount:
        """Return the count updated by the batches committed since. Reads only these.

        A repair of the ledger invalidates the count.
        """
        with self._database.reading() as connection:
            seq = _committed_seq(connection, pipeline)
            since = connection.execute(_SINCE, {"in_pipeline": pipeline, "after_seq": count.seq}).one()
        is_exact = count.is_exact and not since.replacing
        return ProcessedCount(processed=count.processed + int(since.objects), seq=seq, is_exact=is_exact)

    def seconds_since_commit(self, pipeline: str, seq: int) -> float | None:
        """Return the age of this batch's commit in seconds; None if there is no such batch."""
        with self._database.reading() as connection:
            age = connection.execute(_COMMITTED, {"in_pipeline": pipeline, "at_seq": seq}).scalar_one_or_none()
        return None if age is None else max(0.0, float(age))


def _committed_seq(connection: Connection, pipeline: str) -> int:
    """Return the last batch; 0 before the first."""
    next_seq = connection.execute(_NEXT_SEQ, {"in_pipeline": pipeline}).scalar_one_or_none()
    return (next_seq or 1) - 1
