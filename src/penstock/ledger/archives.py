"""The archive's part of the ledger: rows of processed objects leave for a file, and their identities stay.

The file is written before; then one transaction makes it count. It begins with a compare-and-set on how far the
archive has come, so that of two archivers with the same batches one wins and the other finds nothing changed. Only
processed rows leave, which never change any more; that as many leave as the file holds is checked all the same.

An archiver that dies before its commit leaves a file that no archive names. Whoever sweeps such a file away puts a
tombstone in the place of its archive first: from then on the commit of an archiver that was only slow is refused. So
sweeping is safe at any time, and how old a file has to be is a matter of courtesy.
"""

from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection, bindparam, delete, select, update

from penstock.errors import ConfigurationError, TemporaryError
from penstock.ledger.archive_queries import OF_BATCHES, ROWS, TOMBSTONE, ArchiveQueries, range_of
from penstock.ledger.archive_records import ARCHIVING, RETIRED, ArchiveFile, Retiring, RetiringBatch
from penstock.ledger.database import Database, OutcomeUnknown
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.rows import Values
from penstock.ledger.rules import storable
from penstock.ledger.schema import archived_objects, archives, batches, object_attempts, objects, progress
from penstock.ledger.sets import slices
from penstock.messaging.steps import Probe, Step

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


class _Fenced(Exception):
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
            except _Fenced:
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
            raise _Fenced
        identities = connection.execute(self._add_identities, {**binds, "archive": archive_id}).rowcount
        archive = new_archive(
            retiring.pipeline, archive_id, uri=file.uri, objects_=identities, bytes_=file.bytes, source=RETIRED
        )
        if connection.execute(self._add, archive).rowcount != 1:
            raise _Fenced
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
