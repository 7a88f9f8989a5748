"""Make processed versions claimable again after another version replaced them; used only inside a claim.

The store may have such a version as its current one once more (A-B-A), which a message or a listing reports. The claim
takes it, and its run finds out. If it is a late duplicate of the version's old message, the run finds another version
in the store, and the object ends as superseded.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, null, update

from penstock.ledger.database import Database
from penstock.ledger.records import Claimable, ObjectState
from penstock.ledger.returns import leave_archive, lock_archiving
from penstock.ledger.rows import new_object
from penstock.ledger.schema import objects, progress
from penstock.ledger.sets import insert_from, slices, unprocessed
from penstock.ledger.versions import SUPERSEDED, SUPERSEDED_ARCHIVED, found_by, superseded_versions

_FREE = (
    update(objects)
    .values(
        state=ObjectState.UNPROCESSED.value,
        attempt_id=null(),
        batch_seq=null(),  # its rows are kept: the table has them if the later version was added
        lines_quarantined=null(),
        unknown_fields=null(),
        refunds=objects.c.charged,  # its attempts begin again, whatever the last time had
        ended_at=null(),
    )
    .where(
        objects.c.pipeline == bindparam("in_pipeline"),
        objects.c.object_id.in_(bindparam("of_objects", expanding=True)),
        objects.c.state == ObjectState.PROCESSED.value,
    )
)


class SupersededVersions:
    """Make superseded versions claimable, inside a claim. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._add_progress = database.dialect.insert_or_ignore(progress)
        self._add_objects = unprocessed(database.dialect.insert_or_ignore(objects))

    def free(self, connection: Connection, pipeline: str, named: Mapping[bytes, Sequence[Claimable]]) -> None:
        """Free those of ``wanted`` that are processed and superseded. ``named``: the messages by object id.

        The progress of the archive is locked first, so that none of them moves there meanwhile, and two claims with the
        same objects wait for each other before they lock any of them.
        """
        if not superseded_versions(connection, pipeline):
            return
        binds = {"in_pipeline": pipeline}
        lock_archiving(connection, self._add_progress, pipeline)
        for ids in slices(sorted(found_by(connection, pipeline, SUPERSEDED))):
            connection.execute(_FREE, {**binds, "of_objects": list(ids)})
        archived = sorted(found_by(connection, pipeline, SUPERSEDED_ARCHIVED))
        if not archived:
            return
        insert_from(connection, self._add_objects, archived, lambda id: new_object(pipeline, named[id][0]))
        leave_archive(connection, pipeline, archived)
