"""The archive's part of the ledger: rows of processed objects leave for a file, and their identities stay.

The file is written before; then one transaction makes it count. It begins with a compare-and-set on how far the
archive has come, so that of two archivers with the same batches one wins and the other finds nothing changed. Only
processed rows leave, which never change any more; that as many leave as the file holds is checked all the same.

An archiver that dies before its commit leaves a file that no archive names. Whoever sweeps such a file away puts a
tombstone in the place of its archive first: from then on the commit of an archiver that was only slow is refused. So
sweeping is safe at any time, and how old a file has to be is a matter of courtesy.

What left `objects` and where it went, and what may leave next. Each question is one consistent look.

The values of the archive: processed objects whose rows left the table `objects`. Times are epoch seconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection, bindparam, delete, select, update

from penstock.errors import ConfigurationError, TemporaryError
from penstock.ledger.database import Database, OutcomeUnknown
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.queries import ARCHIVED_COUNT
from penstock.ledger.records import ObjectAttempt, ObjectRow, ObjectState
from penstock.ledger.rows import AnyRow, Values, object_attempt, object_row, uri_digest
from penstock.ledger.rules import storable
from penstock.ledger.schema import archived_objects, archives, attempts, batches, object_attempts, objects, progress
from penstock.ledger.sets import slices
from penstock.messaging.steps import Probe, Step

ARCHIVING = "archive"  # the task's name in `progress`
RETIRED = "retired"  # the source of an archive that the archiver wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredObject:
    """All that the ledger knows of a processed object, as it goes into a file."""

    row: ObjectRow
    uri_digest: bytes
    sequencer: str | None
    unattributed_failures: int
    timeline: Sequence[ObjectAttempt]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiringBatch:
    """One batch whose objects may leave: committed long enough ago."""

    seq: int
    attempt_id: str
    objects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retiring:
    """What goes into one file: batches one after another, from where the archive has come to."""

    pipeline: str
    after_seq: int
    batches: Sequence[RetiringBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """A Parquet file that was written, and does not count yet."""

    uri: str
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRow:
    """Where some objects went. ``objects`` is how many identities point here."""

    id: str
    pipeline: str
    uri: str | None  # of the Parquet file; None where identities alone were imported
    objects: int
    bytes: int
    source: str  # "retired", or what was imported
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedObject:
    """An identity in the archive, and the archive that it is in."""

    object_id: bytes
    archive: ArchiveRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What an import of processed objects did with some of them, or would do: each is in exactly one of the three."""

    new: int  # identities that the ledger did not have as processed
    known: int  # processed or archived already
    busy: Sequence[bytes]  # ids of those at work just now, so left alone
    replaced: Mapping[ObjectState, int]  # of the new: how many stood in another state until now


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


TRIES_MAX = 5

_of_archiving = (progress.c.pipeline == bindparam("in_pipeline")) & (progress.c.task == ARCHIVING)
_ADVANCE = (
    update(progress).values(done_seq=bindparam("to_seq")).where(_of_archiving, progress.c.done_seq == bindparam("was"))
)
_LEAVE_IDENTITIES = (
    select(objects.c.pipeline, objects.c.object_id, objects.c.uri_digest, bindparam("archive"))
    .join_from(batches, objects, objects.c.attempt_id == batches.c.attempt_id)
    .where(OF_BATCHES)
)
# Not by pipeline or state, which would tempt SQLite's planner, knowing no sizes, to read all rows that agree in them.
_LEAVE = delete(objects).where(
    objects.c.attempt_id.in_(bindparam("of_attempts", expanding=True)),
    objects.c.batch_seq.between(bindparam("from_seq"), bindparam("to_seq")),
)
_LEAVE_ATTEMPTS = delete(object_attempts).where(
    object_attempts.c.pipeline == bindparam("in_pipeline"),
    object_attempts.c.object_id.in_(bindparam("of_objects", expanding=True)),
)
_ONE = select(archives).where(archives.c.id == bindparam("of_id"))


class _ArchiveFenced(Exception):
    """Somebody else came first, or a commit of our own that arrived late."""


class Archives(ArchiveQueries):
    """Takes processed rows out of `objects`, and knows where they went."""

    def __init__(self, database: Database, probe: Probe) -> None:
        super().__init__(database)
        self._probe = probe
        self._add_progress = database.dialect.insert_or_ignore(progress)
        self._add = (
            database.dialect.insert_or_ignore(archives)
            .values(created_at=DatabaseNow())
            .execution_options(preserve_rowcount=True)
        )
        self._add_identities = (
            database.dialect.insert_or_ignore(archived_objects)
            .from_select(["pipeline", "object_id", "uri_digest", "archive_id"], _LEAVE_IDENTITIES)
            .execution_options(preserve_rowcount=True)
        )

    def retire(self, retiring: Retiring, *, archive_id: str, file: ArchiveFile) -> bool:
        """Make a file count that holds all objects of these batches: their rows leave, their identities stay.

        False when somebody else archived them, or swept the file away; then nothing is changed. Raises `TemporaryError`
        when that stays unknown: the file has to stay.
        """
        work = partial(self._retire, retiring, archive_id, file)
        for _ in range(TRIES_MAX):
            try:
                self._database.transact(work, before_commit=partial(self._probe, Step.ARCHIVING))
            except OutcomeUnknown as error:  # running it again finds out: one that did commit is met as a fence
                unknown = error
            except _ArchiveFenced:
                return self._counts(archive_id)
            else:
                self._probe(Step.ARCHIVED)
                return True
        raise TemporaryError(f"archive {archive_id}: no answer to {TRIES_MAX} commits, try again later") from unknown

    def disown(self, pipeline: str, archive_id: str) -> bool:
        """Make sure that a file of this name never counts, so that it may be deleted; False when it counts already."""
        tombstone = new_archive(pipeline, archive_id, uri=None, objects_=0, bytes_=0, source=TOMBSTONE)

        def bury(connection: Connection) -> bool:
            # Waits for a commit that is on its way with this id.
            connection.execute(self._add, tombstone)
            return bool(connection.execute(_ONE, {"of_id": archive_id}).one().source == TOMBSTONE)

        return self._database.transact(bury)

    def _retire(self, retiring: Retiring, archive_id: str, file: ArchiveFile, connection: Connection) -> None:
        binds = {"in_pipeline": retiring.pipeline, **range_of(retiring.batches)}
        connection.execute(self._add_progress, {"pipeline": retiring.pipeline, "task": ARCHIVING, "done_seq": 0})
        if connection.execute(_ADVANCE, {**binds, "was": retiring.after_seq}).rowcount != 1:
            raise _ArchiveFenced
        identities = connection.execute(self._add_identities, {**binds, "archive": archive_id}).rowcount
        archive = new_archive(
            retiring.pipeline, archive_id, uri=file.uri, objects_=identities, bytes_=file.bytes, source=RETIRED
        )
        if connection.execute(self._add, archive).rowcount != 1:
            raise _ArchiveFenced
        _leave(connection, binds, retiring.batches, objects_=file.objects)

    def _counts(self, archive_id: str) -> bool:
        with self._database.reading() as connection:
            row = connection.execute(_ONE, {"of_id": archive_id}).one_or_none()
        return row is not None and row.source != TOMBSTONE


def _leave(connection: Connection, binds: Values, batches_: Sequence[RetiringBatch], *, objects_: int) -> None:
    """The rows go, and their attempts with them: as many as the file holds, or none."""
    ids = connection.scalars(ROWS.with_only_columns(objects.c.object_id), binds).all()
    bounds = {"from_seq": binds["from_seq"], "to_seq": binds["to_seq"]}
    left = 0
    for page in slices([batch.attempt_id for batch in batches_]):
        left += connection.execute(_LEAVE, {**bounds, "of_attempts": page}).rowcount
    if not left == len(ids) == objects_:
        raise ConfigurationError(
            f"{left} processed objects of batches {bounds['from_seq']} to {bounds['to_seq']} of {binds['in_pipeline']} "
            f"would leave the ledger, and their file holds {objects_}: something else writes to the ledger's tables"
        )
    for page in slices(ids):
        connection.execute(_LEAVE_ATTEMPTS, {"in_pipeline": binds["in_pipeline"], "of_objects": page})


def new_archive(pipeline: str, archive_id: str, *, uri: str | None, objects_: int, bytes_: int, source: str) -> Values:
    """The row of ``archives``, but for the time, which the database gives."""
    return {
        "id": archive_id,
        "pipeline": pipeline,
        "uri": None if uri is None else storable(uri),
        "objects": objects_,
        "bytes": bytes_,
        "source": storable(source),
    }
