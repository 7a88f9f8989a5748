"""Archive processed objects: move their rows to a file and keep their identities. Times are epoch seconds.

The file is written first; one transaction then makes it count. That transaction begins with a compare-and-set on the
archive's progress, so that of two archivers with the same batches one wins and the other finds nothing changed. Only
processed rows, which never change, are moved; the transaction still checks that their number matches the file.

An archiver that dies before its commit leaves a file that no archive names. Before such a file is deleted, a tombstone
is stored under its archive id, and the commit of an archiver that was merely slow is then refused. Deleting is
therefore safe at any time; a minimum age only avoids wasted work.

The file holds the values, then the queries (`ArchiveQueries`, each one consistent read), then the changes (`Archives`).
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

ARCHIVING = "archive"  # name of the job in `progress`
RETIRED = "retired"  # source of archives that the archiver wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredObject:
    """The whole record of a processed object, as it is written to a file."""

    row: ObjectRow
    uri_digest: bytes
    sequencer: str | None
    unattributed_failures: int
    timeline: Sequence[ObjectAttempt]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiringBatch:
    """A batch whose objects may be archived: it was committed long enough ago."""

    seq: int
    attempt_id: str
    objects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retiring:
    """The consecutive batches for one file, starting after the archive's progress."""

    pipeline: str
    after_seq: int
    batches: Sequence[RetiringBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """A Parquet file that was written and does not count yet."""

    uri: str
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRow:
    """An archive: one file, or one import of identities. ``objects`` counts the identities that refer to it."""

    id: str
    pipeline: str
    uri: str | None  # of the Parquet file; None for an import of identities only
    objects: int
    bytes: int
    source: str  # "retired", or the name of the import
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedObject:
    """An archived identity and its archive."""

    object_id: bytes
    archive: ArchiveRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """Result, or preview, of an import of processed objects. Each object is in exactly one of the first three."""

    new: int  # identities not recorded as processed before
    known: int  # already processed or archived
    busy: Sequence[bytes]  # ids of objects in processing, which are left alone
    replaced: Mapping[ObjectState, int]  # previous states of the new ones, if any


BATCHES_READ_MAX = 10_000  # batches per query
PAGE_OBJECTS = 5_000
TOMBSTONE = "swept away"  # source of a tombstone, which is no archive

_BATCHES = (
    select(batches.c.seq, batches.c.attempt_id, batches.c.objects)
    .where(
        batches.c.pipeline == bindparam("in_pipeline"),
        batches.c.seq > bindparam("after_seq"),
        batches.c.seq <= bindparam("up_to_seq"),
    )
    .order_by(batches.c.seq)
    .limit(BATCHES_READ_MAX)
)
# Rows of a range of batches, joined by attempt. Only processed objects have a batch.
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
_STILL = select(archived_objects.c.object_id).where(
    archived_objects.c.pipeline == bindparam("in_pipeline"),
    archived_objects.c.object_id.in_(bindparam("of_objects", expanding=True)),
)
_ALL = select(archives).where(archives.c.pipeline == bindparam("in_pipeline")).order_by(archives.c.id)
_FIND = (
    select(archived_objects.c.object_id, archives)
    .join_from(archived_objects, archives, archives.c.id == archived_objects.c.archive_id)
    .where(archived_objects.c.uri_digest == bindparam("digest"))
    .order_by(archives.c.pipeline, archives.c.id, archived_objects.c.object_id)
)


class ArchiveQueries:
    """Read the archives. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self, pipeline: str) -> Sequence[ArchiveRow]:
        """Return the archives of a pipeline, oldest first, without tombstones."""
        with self._database.reading() as connection:
            found = [archive_row(row) for row in connection.execute(_ALL, {"in_pipeline": pipeline})]
        return [version for version in found if version.source != TOMBSTONE]

    def count(self, pipeline: str) -> int:
        """Return the number of archived objects of the pipeline, summed over its archives rather than counted."""
        with self._database.reading() as connection:
            return int(connection.execute(ARCHIVED_COUNT, {"in_pipeline": pipeline}).scalar_one())

    def find(self, uri: str) -> Sequence[ArchivedObject]:
        """Return every archived version of the object at this uri, in every pipeline."""
        with self._database.reading() as connection:
            rows = connection.execute(_FIND, {"digest": uri_digest(storable(uri))})
            return [ArchivedObject(object_id=row.object_id, archive=archive_row(row)) for row in rows]

    def still_archived(self, pipeline: str, object_ids: Sequence[bytes]) -> set[bytes]:
        """Return those of the objects that are archived. A retraction brings objects back whose record a file keeps."""
        with self._database.reading() as connection:
            return {
                id
                for page in slices(object_ids)
                for id in connection.scalars(_STILL, {"in_pipeline": pipeline, "of_objects": page})
            }

    def retiring(self, pipeline: str, *, after_seq: int, up_to_seq: int, objects_max: int) -> Retiring | None:
        """Return the batches for the next file: the first one after ``after_seq`` and more while they fit.

        Returns None if there is none.
        """
        binds = {"in_pipeline": pipeline, "after_seq": after_seq, "up_to_seq": up_to_seq}
        with self._database.reading() as connection:
            rows = connection.execute(_BATCHES, binds).all()
        found = [RetiringBatch(seq=row.seq, attempt_id=row.attempt_id, objects=row.objects) for row in rows]
        fitting = next(_runs(found, objects_max), None)
        return None if fitting is None else Retiring(pipeline=pipeline, after_seq=after_seq, batches=fitting)

    def retired_objects(self, retiring: Retiring) -> Iterator[Sequence[RetiredObject]]:
        """Yield the objects of these batches with their whole record, a few batches at a time and unordered."""
        for run in _runs(retiring.batches, PAGE_OBJECTS):
            binds = {"in_pipeline": retiring.pipeline, **range_of(run)}
            with self._database.reading() as connection:
                rows = connection.execute(ROWS, binds).all()
                page = _with_timelines(connection, retiring.pipeline, rows)
            yield page  # outside the transaction: the consumer may take long, or never resume


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


def _runs(batches_: Sequence[RetiringBatch], objects_max: int) -> Iterator[Sequence[RetiringBatch]]:
    """Split into runs of batches with up to ``objects_max`` objects each; a larger batch is a run of its own."""
    run: list[RetiringBatch] = []
    total = 0
    for batch in batches_:
        if run and total + batch.objects > objects_max:
            yield run
            run, total = [], 0
        run.append(batch)
        total += batch.objects
    if run:
        yield run


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
    select(
        objects.c.pipeline,
        objects.c.object_id,
        objects.c.uri_digest,
        bindparam("archive"),
        objects.c.batch_seq,
        objects.c.rows,
    )
    .join_from(batches, objects, objects.c.attempt_id == batches.c.attempt_id)
    .where(OF_BATCHES)
)
# No condition on pipeline or state: SQLite's planner, which knows no sizes, would read every row that matches them.
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
    """Another archiver or a retraction was first, or an earlier commit of ours whose reply was lost."""


class Archives(ArchiveQueries):
    """Move processed rows out of `objects` and record where they went. Thread-safe."""

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
            .from_select(["pipeline", "object_id", "uri_digest", "archive_id", "batch_seq", "rows"], _LEAVE_IDENTITIES)
            .execution_options(preserve_rowcount=True)
        )

    def retire(self, retiring: Retiring, *, archive_id: str, file: ArchiveFile) -> bool:
        """Make a file count that holds all objects of these batches: delete their rows, keep their identities.

        Returns False, with nothing changed, if another archiver archived them, some were retracted meanwhile, or the
        file was disowned. Raises `TemporaryError` if that stays unknown: the file must then be kept.
        """
        work = partial(self._retire, retiring, archive_id, file)
        for _ in range(TRIES_MAX):
            try:
                self._database.transact(work, before_commit=partial(self._probe, Step.ARCHIVING))
            except OutcomeUnknown as error:  # if the commit did succeed, the next run fails at the fence
                unknown = error
            except _ArchiveFenced:
                return self._counts(archive_id)
            else:
                self._probe(Step.ARCHIVED)
                return True
        raise TemporaryError(f"archive {archive_id}: no answer to {TRIES_MAX} commits, try again later") from unknown

    def disown(self, pipeline: str, archive_id: str) -> bool:
        """Ensure that a file of this name never counts, so that it may be deleted; return False if it already does."""
        tombstone = new_archive(pipeline, archive_id, uri=None, objects_=0, bytes_=0, source=TOMBSTONE)

        def add_tombstone(connection: Connection) -> bool:
            # waits for a commit with this id that is in progress
            connection.execute(self._add, tombstone)
            return bool(connection.execute(_ONE, {"of_id": archive_id}).one().source == TOMBSTONE)

        return self._database.transact(add_tombstone)

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
    """Delete the rows and their attempts.

    Raises `_ArchiveFenced` if the file holds objects that were retracted since, and `ConfigurationError` if it lacks
    some, or the rows change meanwhile: a retraction waits for this transaction, see `penstock.ledger.retractions`.
    """
    ids = connection.scalars(ROWS.with_only_columns(objects.c.object_id), binds).all()
    bounds = {"from_seq": binds["from_seq"], "to_seq": binds["to_seq"]}
    left = 0
    for page in slices([batch.attempt_id for batch in batches_]):
        left += connection.execute(_LEAVE, {**bounds, "of_attempts": page}).rowcount
    if left == len(ids) < objects_:  # some were retracted after the file was written: write another one
        raise _ArchiveFenced
    if left != objects_:
        raise ConfigurationError(
            f"{left} processed objects of batches {bounds['from_seq']} to {bounds['to_seq']} of {binds['in_pipeline']} "
            f"would leave the ledger, and their file holds {objects_}: something else writes to the ledger's tables"
        )
    for page in slices(ids):
        connection.execute(_LEAVE_ATTEMPTS, {"in_pipeline": binds["in_pipeline"], "of_objects": page})


def new_archive(pipeline: str, archive_id: str, *, uri: str | None, objects_: int, bytes_: int, source: str) -> Values:
    """Return the row of ``archives`` without the time, which the database sets."""
    return {
        "id": archive_id,
        "pipeline": pipeline,
        "uri": None if uri is None else storable(uri),
        "objects": objects_,
        "bytes": bytes_,
        "source": storable(source),
    }
