"""Record which objects have bad lines, whether a person should know, and what became of the lines.

The rows are written in the transaction that commits the attempt, so that there is one for each object with lines in
quarantine, and none for an attempt that does not count. The same transaction closes the rows whose lines it replayed.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Select, bindparam, case, delete, func, insert, null, select, update

from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.records import (
    BadLines,
    BatchOutcome,
    ObjectState,
    QuarantineRow,
    QuarantineState,
    QuarantineWarning,
)
from penstock.ledger.rows import AnyRow, Values, uri_digest
from penstock.ledger.rules import storable, stored_reason
from penstock.ledger.schema import objects, quarantined
from penstock.ledger.sets import insert_from, slices
from penstock.ledger.tails import ContinuedVersion, continued_versions

WARNING_SHARE = 0.05
"""A larger share of bad lines in an object is a warning."""

_ADD = insert(quarantined).values(recorded_at=DatabaseNow())
_of_pipeline = quarantined.c.pipeline == bindparam("in_pipeline")
_replayed_by = quarantined.c.replay_id.in_(bindparam("replays", expanding=True))
_SOURCES = select(quarantined.c.replay_id, quarantined.c.rows).where(_of_pipeline, _replayed_by)
_END_REPLAYED = (
    update(quarantined)
    .values(state=QuarantineState.REPLAYED.value, ended_at=DatabaseNow())
    .where(_of_pipeline, _replayed_by)
)
_DISMISS = (
    update(quarantined)
    .values(state=QuarantineState.DISMISSED.value, ended_at=DatabaseNow())
    .where(
        _of_pipeline,
        quarantined.c.object_id.in_(bindparam("dismissed", expanding=True)),
        quarantined.c.state == QuarantineState.OPEN.value,
    )
)
_FORGET_EARLIER = delete(quarantined).where(
    _of_pipeline, quarantined.c.object_id.in_(bindparam("of_objects", expanding=True))
)
_FORGET = delete(quarantined).where(_of_pipeline, quarantined.c.attempt_id == bindparam("of_attempt"))
_REOPEN = (
    update(quarantined)
    .values(state=QuarantineState.OPEN.value, ended_at=null())
    .where(
        _of_pipeline,
        quarantined.c.state == QuarantineState.REPLAYED.value,
        quarantined.c.replaced_seq.is_(None),
        quarantined.c.replay_id.in_(
            select(objects.c.object_id).where(
                objects.c.pipeline == bindparam("in_pipeline"),
                objects.c.attempt_id == bindparam("of_attempt"),
                objects.c.state == ObjectState.PROCESSED.value,
            )
        ),
    )
)
_DISMISS_RETRACTED = (
    update(quarantined)
    .values(
        state=QuarantineState.DISMISSED.value,
        ended_at=case(
            (quarantined.c.replaced_seq.is_(None), DatabaseNow()),
            else_=quarantined.c.ended_at,
        ),
        replaced_seq=func.coalesce(
            quarantined.c.replaced_seq, bindparam("by_seq", type_=quarantined.c.replaced_seq.type)
        ),
    )
    .where(_of_pipeline, quarantined.c.object_id.in_(bindparam("dismissed", expanding=True)))
)
_RENUMBER = (
    update(quarantined)
    .values(replaced_seq=bindparam("new_seq", type_=quarantined.c.replaced_seq.type))
    .where(_of_pipeline, quarantined.c.replaced_seq == bindparam("of_seq"))
)
_RETURN = (
    update(quarantined)
    .values(state=QuarantineState.OPEN.value, ended_at=null(), replaced_seq=null())
    .where(
        _of_pipeline,
        quarantined.c.replaced_seq == bindparam("of_seq"),
        quarantined.c.state == QuarantineState.DISMISSED.value,
    )
)
_WARNING = select(
    func.count().label("objects"), func.coalesce(func.sum(quarantined.c.lines_quarantined), 0).label("lines")
).where(_of_pipeline, quarantined.c.state == QuarantineState.OPEN.value, quarantined.c.warns == 1)
_OF_REPLAYS = select(quarantined).where(_of_pipeline, _replayed_by)


def record_quarantined(connection: Connection, outcome: BatchOutcome) -> None:
    """Record the bad lines of a batch's objects, and that the batch's replays have read theirs again."""
    replayed: dict[bytes, int] = {}
    for replays in slices(outcome.replays):
        binds = {"in_pipeline": outcome.pipeline, "replays": list(replays)}
        replayed |= {row.replay_id: row.rows for row in connection.execute(_SOURCES, binds)}
        connection.execute(_END_REPLAYED, binds)
    if outcome.bad:
        for bad in slices(outcome.bad):  # of objects that were retracted and are processed again
            ids = [one.object_id for one in bad]
            connection.execute(_FORGET_EARLIER, {"in_pipeline": outcome.pipeline, "of_objects": ids})
        insert_from(connection, _ADD, outcome.bad, _row_of(outcome, replayed))


def dismiss_retracted(connection: Connection, pipeline: str, object_ids: Sequence[bytes], *, seq: int) -> None:
    """Close the rows of objects that a batch retracts. A replay has none of these objects' rows left to repair."""
    for ids in slices(object_ids):
        connection.execute(_DISMISS_RETRACTED, {"in_pipeline": pipeline, "dismissed": list(ids), "by_seq": seq})


def forget_quarantined(connection: Connection, pipeline: str, attempt_id: str) -> None:
    """Undo `record_quarantined` for an attempt that no longer counts, while its objects are still processed."""
    binds = {"in_pipeline": pipeline, "of_attempt": attempt_id}
    connection.execute(_REOPEN, binds)
    connection.execute(_FORGET, binds)


def return_replaced(connection: Connection, pipeline: str, seq: int) -> None:
    """Open the rows again that a batch closed, which does not count any more: the table keeps what it replaced."""
    connection.execute(_RETURN, {"in_pipeline": pipeline, "of_seq": seq})


def renumber_replaced(connection: Connection, pipeline: str, seq: int, new_seq: int) -> None:
    """Set the new number of a batch that closed rows."""
    connection.execute(_RENUMBER, {"in_pipeline": pipeline, "of_seq": seq, "new_seq": new_seq})


class Quarantines:
    """Queries about bad lines, and their dismissal. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def warning(self, pipeline: str) -> QuarantineWarning:
        """Count the objects with too many bad lines that were neither replayed nor dismissed, and these lines."""
        with self._database.reading() as connection:
            row = connection.execute(_WARNING, {"in_pipeline": pipeline}).one()
        return QuarantineWarning(objects=int(row.objects), lines=int(row.lines))

    def rows(
        self,
        pipeline: str,
        *,
        state: QuarantineState | None = None,
        only_warnings: bool = False,
        uri_contains: str | None = None,
        limit: int = 100,
        after: bytes | None = None,
    ) -> Sequence[QuarantineRow]:
        """Return the objects with bad lines by id; ``after`` is the last id of the previous page.

        ``uri_contains`` ignores case.
        """
        statement = select(quarantined).where(quarantined.c.pipeline == pipeline)
        if state is not None:
            statement = statement.where(quarantined.c.state == state.value)
        if only_warnings:
            statement = statement.where(quarantined.c.warns == 1)
        if uri_contains is not None:
            statement = statement.where(quarantined.c.uri.icontains(storable(uri_contains), autoescape=True))
        if after is not None:
            statement = statement.where(quarantined.c.object_id > after)
        return self._read(statement.order_by(quarantined.c.object_id).limit(limit))

    def find(self, pipeline: str, uri: str) -> Sequence[QuarantineRow]:
        """Return every version of the object at exactly this uri that had bad lines, oldest first."""
        stored = storable(uri)
        statement = select(quarantined).where(
            quarantined.c.uri_digest == uri_digest(stored),
            quarantined.c.pipeline == pipeline,
            quarantined.c.uri == stored,
        )
        return self._read(statement.order_by(quarantined.c.recorded_at, quarantined.c.attempt_id))

    def of_replays(self, pipeline: str, replay_ids: Sequence[bytes]) -> Mapping[bytes, QuarantineRow]:
        """Return the bad lines that each object with one of these ids replays; those that replay none are left out."""
        found: dict[bytes, QuarantineRow] = {}
        with self._database.reading() as connection:
            for ids in slices(replay_ids):
                rows = connection.execute(_OF_REPLAYS, {"in_pipeline": pipeline, "replays": list(ids)})
                found |= {row.replay_id: _quarantine_row(row) for row in rows}
        return found

    def continued(self, pipeline: str, replay_ids: Sequence[bytes]) -> Mapping[bytes, ContinuedVersion]:
        """Return the last version that begins with the one whose bad lines a replay reads, by the replay's id."""
        with self._database.reading() as connection:
            return continued_versions(connection, pipeline, replay_ids)

    def dismiss(self, pipeline: str, object_ids: Sequence[bytes]) -> int:
        """Close the open rows of these objects; return their number. Their lines stay in the quarantine table."""
        return sum(self._database.transact(partial(_dismiss, pipeline, ids)) for ids in slices(object_ids))

    def _read(self, statement: Select[Any]) -> Sequence[QuarantineRow]:
        with self._database.reading() as connection:
            return [_quarantine_row(row) for row in connection.execute(statement)]


def _dismiss(pipeline: str, object_ids: Sequence[bytes], connection: Connection) -> int:
    return connection.execute(_DISMISS, {"in_pipeline": pipeline, "dismissed": list(object_ids)}).rowcount


def _row_of(outcome: BatchOutcome, replayed: dict[bytes, int]) -> Callable[[BadLines], Values]:
    """Return the function that makes the row of an object. ``replayed``: good lines of the sources of replays."""

    def row_of(bad: BadLines) -> Values:
        uri = storable(bad.uri)
        rows = bad.rows + replayed.get(bad.object_id, 0)  # a replay's share is that of the whole object
        return {
            "pipeline": outcome.pipeline,
            "object_id": bad.object_id,
            "attempt_id": outcome.attempt_id,
            "bucket": storable(bad.bucket),
            "key": bad.key,
            "uri": uri,
            "uri_digest": uri_digest(uri),
            "size_bytes": bad.size_bytes,
            "version_id": None if bad.version_id is None else storable(bad.version_id),
            "etag": None if bad.etag is None else storable(bad.etag),
            "place": bad.place,
            "rows": rows,
            "lines_quarantined": bad.lines_quarantined,
            "reason": None if bad.reason is None else stored_reason(bad.reason),
            "warns": int(bad.lines_quarantined > WARNING_SHARE * (rows + bad.lines_quarantined)),
            "state": QuarantineState.OPEN.value,
            "replay_id": bad.replay_id,
        }

    return row_of


def _quarantine_row(row: AnyRow) -> QuarantineRow:
    return QuarantineRow(
        pipeline=row.pipeline,
        attempt_id=row.attempt_id,
        bad=BadLines(
            object_id=row.object_id,
            replay_id=row.replay_id,
            bucket=row.bucket,
            key=row.key,
            uri=row.uri,
            size_bytes=row.size_bytes,
            version_id=row.version_id,
            etag=row.etag,
            place=row.place,
            rows=row.rows,
            lines_quarantined=row.lines_quarantined,
            reason=row.reason,
        ),
        warns=bool(row.warns),
        state=QuarantineState(row.state),
        recorded_at=row.recorded_at,
        ended_at=row.ended_at,
        replaced_seq=row.replaced_seq,
    )
