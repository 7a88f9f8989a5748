"""What left `objects` and where it went, and what may leave next. Each question is one consistent look."""

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, bindparam, select

from penstock.ledger.archive_records import (
    ArchivedObject,
    ArchiveRow,
    RetiredObject,
    Retiring,
    RetiringBatch,
)
from penstock.ledger.database import Database
from penstock.ledger.queries import ARCHIVED_COUNT
from penstock.ledger.records import ObjectAttempt
from penstock.ledger.rows import AnyRow, Values, object_attempt, object_row, uri_digest
from penstock.ledger.rules import storable
from penstock.ledger.schema import archived_objects, archives, attempts, batches, object_attempts, objects
from penstock.ledger.sets import slices

LOOK_MAX = 10_000  # batches in one look
PAGE_OBJECTS = 5_000
TOMBSTONE = "swept away"  # the source of an archive that never is one

_RIPE = (
    select(batches.c.seq, batches.c.attempt_id, batches.c.objects)
    .where(
        batches.c.pipeline == bindparam("in_pipeline"),
        batches.c.seq > bindparam("after_seq"),
        batches.c.seq <= bindparam("up_to_seq"),
    )
    .order_by(batches.c.seq)
    .limit(LOOK_MAX)
)
# The rows of a range of batches, by way of their attempts. Only a processed object has a batch.
OF_BATCHES = (
    (batches.c.pipeline == bindparam("in_pipeline"))
    & batches.c.seq.between(bindparam("from_seq"), bindparam("to_seq"))
    & (objects.c.attempt_id == batches.c.attempt_id)
    & (objects.c.batch_seq == batches.c.seq)
)
ROWS = select(objects).join_from(batches, objects, objects.c.attempt_id == batches.c.attempt_id).where(OF_BATCHES)
_TIMELINES = (
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
    .where(
        object_attempts.c.pipeline == bindparam("in_pipeline"),
        object_attempts.c.object_id.in_(bindparam("of_objects", expanding=True)),
    )
    .order_by(attempts.c.started_at, attempts.c.id)
)
_ALL = select(archives).where(archives.c.pipeline == bindparam("in_pipeline")).order_by(archives.c.id)
_FIND = (
    select(archived_objects.c.object_id, archives)
    .join_from(archived_objects, archives, archives.c.id == archived_objects.c.archive_id)
    .where(archived_objects.c.uri_digest == bindparam("digest"))
    .order_by(archives.c.pipeline, archives.c.id, archived_objects.c.object_id)
)


class ArchiveQueries:
    """What the archive knows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self, pipeline: str) -> Sequence[ArchiveRow]:
        """The archives of a pipeline, oldest first; tombstones are none."""
        with self._database.reading() as connection:
            found = [archive_row(row) for row in connection.execute(_ALL, {"in_pipeline": pipeline})]
        return [one for one in found if one.source != TOMBSTONE]

    def count(self, pipeline: str) -> int:
        """How many objects of the pipeline are archived; added up over the archives, without a look at each object."""
        with self._database.reading() as connection:
            return int(connection.execute(ARCHIVED_COUNT, {"in_pipeline": pipeline}).scalar_one())

    def find(self, uri: str) -> Sequence[ArchivedObject]:
        """Every archived version of the object at this uri, in every pipeline."""
        with self._database.reading() as connection:
            rows = connection.execute(_FIND, {"digest": uri_digest(storable(uri))})
            return [ArchivedObject(object_id=row.object_id, archive=archive_row(row)) for row in rows]

    def retiring(self, pipeline: str, *, after_seq: int, up_to_seq: int, objects_max: int) -> Retiring | None:
        """What goes into one file of the batches after one that the archive is done with: the first, and more while
        they fit. None where there is none."""
        binds = {"in_pipeline": pipeline, "after_seq": after_seq, "up_to_seq": up_to_seq}
        with self._database.reading() as connection:
            rows = connection.execute(_RIPE, binds).all()
        found = [RetiringBatch(seq=row.seq, attempt_id=row.attempt_id, objects=row.objects) for row in rows]
        fitting = next(_parts(found, objects_max), None)
        return None if fitting is None else Retiring(pipeline=pipeline, after_seq=after_seq, batches=fitting)

    def retired_objects(self, retiring: Retiring) -> Iterator[Sequence[RetiredObject]]:
        """The objects of these batches with all that is known of them, a few batches at a time and in no order."""
        for part in _parts(retiring.batches, PAGE_OBJECTS):
            binds = {"in_pipeline": retiring.pipeline, **range_of(part)}
            with self._database.reading() as connection:
                rows = connection.execute(ROWS, binds).all()
                page = _with_timelines(connection, retiring.pipeline, rows)
            yield page  # what is done with it takes its time, and may end the looking


def _with_timelines(connection: Connection, pipeline: str, rows: Sequence[AnyRow]) -> Sequence[RetiredObject]:
    timelines: dict[bytes, list[ObjectAttempt]] = {}
    for page in slices([row.object_id for row in rows]):
        for found in connection.execute(_TIMELINES, {"in_pipeline": pipeline, "of_objects": page}):
            timelines.setdefault(found.object_id, []).append(object_attempt(found))
    return [
        RetiredObject(
            row=object_row(row),
            uri_digest=row.uri_digest,
            sequencer=row.sequencer,
            unattributed_failures=row.unattributed_failures,
            timeline=timelines.get(row.object_id, ()),
        )
        for row in rows
    ]


def _parts(batches_: Sequence[RetiringBatch], objects_max: int) -> Iterator[Sequence[RetiringBatch]]:
    """Neighbours that hold at most so many objects together; a larger one is alone."""
    part: list[RetiringBatch] = []
    total = 0
    for batch in batches_:
        if part and total + batch.objects > objects_max:
            yield part
            part, total = [], 0
        part.append(batch)
        total += batch.objects
    if part:
        yield part


def range_of(batches_: Sequence[RetiringBatch]) -> Values:
    return {"from_seq": batches_[0].seq, "to_seq": batches_[-1].seq}


def archive_row(row: AnyRow) -> ArchiveRow:
    return ArchiveRow(
        id=row.id,
        pipeline=row.pipeline,
        uri=row.uri,
        objects=row.objects,
        bytes=row.bytes,
        source=row.source,
        created_at=row.created_at,
    )
