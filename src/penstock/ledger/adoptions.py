"""Adopt objects that another system processed: store them as archived identities, so that they are never claimed.

A claim that saw no archived identity and an import that saw no row could both continue, and an object being processed
would be recorded as processed. An import therefore first inserts a row into `objects` for every object without one, and
deletes it in the same transaction. A claim that would insert or take such an object waits for the import and then finds
the identity. If the claim was first, its row is in processing and the import leaves it alone.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, insert, select, update

from penstock.ledger.archive import Adoption, new_archive
from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.records import Candidate, ObjectState
from penstock.ledger.rows import new_object
from penstock.ledger.schema import archived_objects, archives, object_attempts, objects
from penstock.ledger.sets import ARCHIVED, ids_wanted, is_wanted, slices, unprocessed

_KNOWN = frozenset({ObjectState.PROCESSED, ObjectState.RETRACTED})
_REPLACED = sorted(state.value for state in {*ObjectState} - {ObjectState.PROCESSING} - _KNOWN)

_STATES = select(objects.c.object_id, objects.c.state).where(is_wanted())
_of_slice: ColumnElement[Any] = bindparam("of_objects", expanding=True)
_DROP = delete(objects).where(
    objects.c.pipeline == bindparam("in_pipeline"),
    objects.c.object_id.in_(_of_slice),
    objects.c.state.in_(_REPLACED),
    objects.c.batch_seq.is_(None),  # not reopened: its rows are in the table
)
_DROP_ATTEMPTS = delete(object_attempts).where(
    object_attempts.c.pipeline == bindparam("in_pipeline"), object_attempts.c.object_id.in_(_of_slice)
)
_ADD_IDENTITIES = insert(archived_objects)
_GROW = (
    update(archives).values(objects=archives.c.objects + bindparam("more")).where(archives.c.id == bindparam("of_id"))
)


class Adoptions:
    """Import identities of processed objects. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add_archive = database.dialect.insert_or_ignore(archives).values(created_at=DatabaseNow())
        self._register = unprocessed(database.dialect.insert_or_ignore(objects))

    def adopt(self, pipeline: str, candidates: Sequence[Candidate], *, source: str) -> Adoption:
        """Store the objects as archived with this ``source``, except those being processed, processed or retracted.

        An object in any other state is replaced. Idempotent.
        """
        named = {candidate.object_id: candidate for candidate in candidates}
        return self._database.transact(partial(self._adopt, pipeline, named, source))

    def preview(self, pipeline: str, candidates: Sequence[Candidate]) -> Adoption:
        """Return the result that `adopt` would have now."""
        named = {candidate.object_id for candidate in candidates}
        with self._database.reading() as connection:
            ids_wanted(connection, named)
            states = _states(connection, pipeline)
            archived = set(connection.scalars(ARCHIVED, {"in_pipeline": pipeline}))
        busy = [id for id, state in states.items() if state is ObjectState.PROCESSING and id not in archived]
        known = archived | {id for id, state in states.items() if state in _KNOWN}
        return _adoption(named - known - set(busy), known, busy, states)

    def _adopt(self, pipeline: str, named: Mapping[bytes, Candidate], source: str, connection: Connection) -> Adoption:
        binds = {"in_pipeline": pipeline}
        ids_wanted(connection, named)
        before = _states(connection, pipeline)
        archived = set(connection.scalars(ARCHIVED, binds))
        rows = [new_object(pipeline, candidate) for id, candidate in named.items() if id not in archived]
        if not rows:
            return _adoption((), archived, (), {})
        rows.sort(key=itemgetter("object_id"))  # the same order as claims
        connection.execute(self._register, rows)
        for page in slices([row["object_id"] for row in rows]):
            connection.execute(_DROP, {**binds, "of_objects": page})
        # Remaining rows were not deleted above; identities that appeared since the first query are another import's.
        left = _states(connection, pipeline)
        archived = set(connection.scalars(ARCHIVED, binds))
        new = [row for row in rows if row["object_id"] not in archived and row["object_id"] not in left]
        self._add_identities(connection, pipeline, new, source)
        known = archived | {id for id, state in left.items() if state in _KNOWN}
        busy = [id for id in left if id not in known]
        return _adoption({row["object_id"] for row in new}, known, busy, before)

    def _add_identities(
        self, connection: Connection, pipeline: str, new: Sequence[Mapping[str, bytes]], source: str
    ) -> None:
        if not new:
            return
        archive = new_archive(pipeline, import_id(pipeline, source), uri=None, objects_=0, bytes_=0, source=source)
        connection.execute(self._add_archive, archive)
        connection.execute(_GROW, {"of_id": archive["id"], "more": len(new)})
        columns = ("pipeline", "object_id", "uri_digest")
        rows = [{**{name: row[name] for name in columns}, "archive_id": archive["id"]} for row in new]
        connection.execute(_ADD_IDENTITIES, rows)
        for page in slices([row["object_id"] for row in new]):
            connection.execute(_DROP_ATTEMPTS, {"in_pipeline": pipeline, "of_objects": page})


def import_id(pipeline: str, source: str) -> str:
    """Return the id of the import from a source; it is the same at every import."""
    digest = hashlib.sha256(f"{pipeline}\0{source}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"import-{digest[:26]}"


def _states(connection: Connection, pipeline: str) -> dict[bytes, ObjectState]:
    rows = connection.execute(_STATES, {"in_pipeline": pipeline})
    return {object_id: ObjectState(state) for object_id, state in rows}


def _adoption(
    new: Sequence[bytes] | set[bytes], known: set[bytes], busy: Sequence[bytes], before: Mapping[bytes, ObjectState]
) -> Adoption:
    replaced = Counter(before[id] for id in new if id in before)
    return Adoption(new=len(new), known=len(known), busy=tuple(busy), replaced=dict(replaced))
