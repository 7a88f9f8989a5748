"""Reopen processed objects: they are read again, and until that is committed their rows stay in the table.

A reopened object is unprocessed, so a message or scan that names it takes it like any other object. Its row in
``objects`` keeps the batch and the counts of the earlier reading, so the rules for versions still see the rows that the
table has. The table ``reopenings`` has everything else about the earlier reading.

- Processed again: its commit replaces the earlier rows, like those of another version (`penstock.ledger.versions`).
- Failed, or to be retried: it keeps batch and counts, since the table keeps the rows.
- Deleted or replaced in the store, or withdrawn: it is processed as before.

A repair of the ledger may give up the batch that read an object again, or the one before; see `Repairs`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import Connection, bindparam, delete, func, insert, null, or_, select, update

from penstock.errors import ConfigurationError, TemporaryError
from penstock.ledger.addresses import is_no_replay
from penstock.ledger.archive import RetiredObject
from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.records import BatchOutcome, ObjectRow, ObjectState, ReopeningRow, ReopeningState
from penstock.ledger.reopening_choice import LeftAlone, choose, versions_seen
from penstock.ledger.returns import (
    ReturningObject,
    lock_archiving,
    returning_object,
    returning_timeline,
    take_back,
)
from penstock.ledger.rows import AnyRow, Values, object_row, unknown_text, uri_digest
from penstock.ledger.rules import storable, stored_reason
from penstock.ledger.schema import (
    leaving,
    object_attempts,
    objects,
    pipelines,
    progress,
    reopenings,
    wanted,
)
from penstock.ledger.sets import filtered, is_in, of_pipeline, slices
from penstock.messaging.steps import Probe, Step

KEPT = "not read again, its earlier rows stay"  # begins the reason of an object that is processed as before
STAY = "the rows of its earlier reading stay in the table"  # ends the reason of one that failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopened:
    """The result of a reopening. ``again``: objects that an earlier one had reopened, and that still wait."""

    objects: Sequence[ObjectRow] = ()
    again: Sequence[ObjectRow] = ()
    left_alone: Mapping[str, LeftAlone] = field(default_factory=dict)  # by address
    states: Mapping[str, ObjectState] = field(default_factory=dict)  # of those left alone as unprocessed


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """The result of a withdrawal, by address."""

    withdrawn: Sequence[str] = ()  # processed as before
    busy: Sequence[str] = ()  # being read again now


_LOCK = select(pipelines.c.id).where(pipelines.c.id == bindparam("in_pipeline")).with_for_update()
_of_ids = (objects.c.pipeline == bindparam("in_pipeline")) & objects.c.object_id.in_(
    bindparam("of_objects", expanding=True)
)
_FORGET = delete(reopenings).where(
    reopenings.c.pipeline == bindparam("in_pipeline"),
    reopenings.c.object_id.in_(bindparam("of_objects", expanding=True)),
)
_COLUMNS = (
    "pipeline",
    "object_id",
    "uri",
    "uri_digest",
    "attempt_id",
    "batch_seq",
    "rows",
    "lines_quarantined",
    "unknown_fields",
    "ended_at",
)
_REMEMBER = insert(reopenings).from_select(
    [*_COLUMNS, "state", "reopened_at"],
    select(
        *(objects.c[name] for name in _COLUMNS),
        bindparam("new_state", ReopeningState.OPEN.value, type_=reopenings.c.state.type),
        DatabaseNow(),
    ).where(_of_ids, objects.c.state == ObjectState.PROCESSED.value),
)
REOPEN = (
    update(objects)
    .values(
        state=ObjectState.UNPROCESSED.value,
        attempt_id=null(),
        reason=null(),
        refunds=objects.c.charged,  # its attempts begin again
        ended_at=null(),
    )
    .where(_of_ids, objects.c.state == ObjectState.PROCESSED.value)
)
_ROWS = select(objects).where(_of_ids).order_by(objects.c.object_id)
_RETURN = insert(objects)
_is_open = reopenings.c.state == ReopeningState.OPEN.value
_with_object = (objects.c.pipeline == reopenings.c.pipeline) & (objects.c.object_id == reopenings.c.object_id)
_OPEN = (
    select(reopenings, objects.c.state.label("object_state"), objects.c.reason.label("object_reason"))
    .join_from(reopenings, objects, _with_object)
    .where(_is_open)
)
_of_reopened = reopenings.c.pipeline == bindparam("in_pipeline")
_ANY_OPEN = select(reopenings.c.object_id).where(_of_reopened, _is_open).limit(1)
_OPEN_HELD = select(reopenings.c.object_id).where(
    of_pipeline(reopenings), _is_open, is_in(reopenings.c.object_id, of=select(wanted.c.object_id))
)
_OPEN_LEAVING = _OPEN.where(of_pipeline(reopenings), is_in(reopenings.c.object_id, of=select(leaving.c.object_id)))
_OPEN_AMONG = _OPEN.where(_of_reopened, reopenings.c.object_id.in_(bindparam("of_objects", expanding=True)))
_LAST = select(reopenings).where(_of_reopened, reopenings.c.object_id.in_(bindparam("of_objects", expanding=True)))
_OPEN_AT = _OPEN.where(
    reopenings.c.uri_digest.in_(bindparam("digests", expanding=True)),
    filtered(reopenings.c.pipeline) == bindparam("in_pipeline"),
).with_for_update(of=objects)  # no claim takes them before they are processed
_this = (objects.c.pipeline == bindparam("in_pipeline")) & (objects.c.object_id == bindparam("of_object"))
_RESTORED = {
    "batch_seq": bindparam("as_seq", type_=objects.c.batch_seq.type),
    "rows": bindparam("as_rows", type_=objects.c.rows.type),
    "lines_quarantined": bindparam("as_lines", type_=objects.c.lines_quarantined.type),
    "unknown_fields": bindparam("as_unknown", type_=objects.c.unknown_fields.type),
    "reason": bindparam("why", type_=objects.c.reason.type),
}
_KEEP_ROWS = update(objects).values(**_RESTORED).where(_this)
_RESTORE = (
    update(objects)
    .values(
        **_RESTORED,
        state=ObjectState.PROCESSED.value,
        attempt_id=bindparam("as_attempt", type_=objects.c.attempt_id.type),
        ended_at=bindparam("as_ended", type_=objects.c.ended_at.type),
        dead_at=null(),
        missed_at=null(),
        sought_at=null(),
    )
    .where(_this)
)
_END = (
    update(reopenings)
    .values(
        state=bindparam("new_state"), read_attempt_id=bindparam("by_attempt", type_=reopenings.c.read_attempt_id.type)
    )
    .where(_of_reopened, reopenings.c.object_id == bindparam("of_object"))
)
_COUNTS = (
    select(reopenings.c.state, func.count().label("objects_in_it")).where(_of_reopened).group_by(reopenings.c.state)
)
_OF_BATCH = select(reopenings.c.object_id).where(_of_reopened, _is_open, reopenings.c.batch_seq == bindparam("of_seq"))


class Reopenings:
    """Reopen objects, and withdraw reopenings. Thread-safe."""

    def __init__(self, database: Database, probe: Probe) -> None:
        self._database = database
        self._probe = probe
        self._add_progress = database.dialect.insert_or_ignore(progress)
        self._note = database.dialect.insert_or_ignore(object_attempts)

    def reopen(self, pipeline: str, addresses: Sequence[str], *, archived: Sequence[ReturningObject] = ()) -> Reopened:
        """Make the last processed version of each of these objects unprocessed again. Repeating it does no harm.

        Raises `ConfigurationError` for an unknown pipeline, and `TemporaryError` if the outcome is unknown: call again.
        """
        done = self._database.transact(partial(self._reopen, pipeline, addresses, archived))
        if done.objects:
            self._probe(Step.REOPENED)
        return done

    def preview(self, pipeline: str, addresses: Sequence[str], *, archived: Sequence[ReturningObject] = ()) -> Reopened:
        """Return what `reopen` would do now. Objects that would come from the archive have no row yet."""
        with self._database.reading() as connection:
            chosen = _chosen(connection, pipeline, addresses, archived)
            rows = _rows(connection, pipeline, chosen.ids)
        retired = [one.retired.row for one in archived if one.retired.row.object_id in chosen.ids]
        return chosen.result([*rows, *retired])

    def withdraw(self, pipeline: str, addresses: Sequence[str]) -> Withdrawn:
        """Make reopened objects processed as before. Those that are being read are left alone: ``Withdrawn.busy``."""
        return self._database.transact(lambda connection: withdraw_reopenings(connection, pipeline, addresses))

    def counts(self, pipeline: str) -> Mapping[ReopeningState, int]:
        """Return the number of reopenings in each state, the last one of each object."""
        with self._database.reading() as connection:
            rows = connection.execute(_COUNTS, {"in_pipeline": pipeline}).all()
        found = {ReopeningState(row.state): int(row.objects_in_it) for row in rows}
        return dict.fromkeys(ReopeningState, 0) | found

    def open(self, pipeline: str, *, limit: int, after: bytes = b"") -> Sequence[ObjectRow]:
        """Return the objects that are to be read again, in order of their ids, after the last one of a page."""
        statement = (
            select(objects)
            .join_from(reopenings, objects, _with_object)
            .where(_of_reopened, _is_open, reopenings.c.object_id > bindparam("after_id"))
            .order_by(reopenings.c.object_id)
            .limit(limit)
        )
        with self._database.reading() as connection:
            rows = connection.execute(statement, {"in_pipeline": pipeline, "after_id": after})
            return [object_row(row) for row in rows]

    def among(self, pipeline: str, object_ids: Sequence[bytes]) -> frozenset[bytes]:
        """Return the objects that are to be read again, of the given ones."""
        binds = {"in_pipeline": pipeline}
        with self._database.reading() as connection:
            if connection.execute(_ANY_OPEN, binds).first() is None:
                return frozenset()
            rows = (
                row
                for ids in slices(object_ids)
                for row in connection.execute(_OPEN_AMONG, {**binds, "of_objects": list(ids)})
            )
            return frozenset(row.object_id for row in rows)

    def last(self, pipeline: str, object_ids: Sequence[bytes]) -> Mapping[bytes, ReopeningRow]:
        """Return the last reopening of each of these objects that was ever reopened."""
        found: dict[bytes, ReopeningRow] = {}
        with self._database.reading() as connection:
            for ids in slices(object_ids):
                rows = connection.execute(_LAST, {"in_pipeline": pipeline, "of_objects": list(ids)})
                found |= {row.object_id: _reopening_row(row) for row in rows}
        return found

    def of_batch(self, pipeline: str, seq: int) -> Sequence[bytes]:
        """Return the objects that are to be read again, and have the rows of this batch in the table."""
        with self._database.reading() as connection:
            return connection.scalars(_OF_BATCH, {"in_pipeline": pipeline, "of_seq": seq}).all()

    def _reopen(
        self, pipeline: str, addresses: Sequence[str], archived: Sequence[ReturningObject], connection: Connection
    ) -> Reopened:
        binds = {"in_pipeline": pipeline}
        # Locks as a commit does, so that the versions found are those of all batches before.
        if connection.execute(_LOCK, binds).first() is None:
            raise ConfigurationError(f"the ledger has no pipeline {pipeline}: it has nothing to read again")
        lock_archiving(connection, self._add_progress, pipeline)
        chosen = _chosen(connection, pipeline, addresses, archived)
        returning = [one for one in archived if one.retired.row.object_id in chosen.new]
        back = {one.retired.row.object_id for one in take_back(connection, pipeline, returning)}
        for one in returning:
            if one.retired.row.object_id in back:
                self._return(connection, pipeline, one.retired)
        reopened = 0
        for ids in slices(sorted(chosen.new)):
            of_objects = {**binds, "of_objects": list(ids)}
            connection.execute(_FORGET, of_objects)
            connection.execute(_REMEMBER, of_objects)
            reopened += connection.execute(REOPEN, of_objects).rowcount
        if reopened != len(chosen.new):
            raise TemporaryError(f"objects of {pipeline} changed while they were reopened: try again")
        return chosen.result(_rows(connection, pipeline, chosen.ids))

    def _return(self, connection: Connection, pipeline: str, retired: RetiredObject) -> None:
        """Give an archived object its row again, as it was."""
        row = retired.row
        processed = {
            **returning_object(pipeline, retired),
            "state": ObjectState.PROCESSED.value,
            "attempt_id": _processing_attempt(retired),
            "batch_seq": row.batch_seq,
            "rows": row.rows,
            "lines_quarantined": row.lines_quarantined,
            "unknown_fields": unknown_text(row.unknown),
            "ended_at": row.ended_at,
        }
        connection.execute(_RETURN, processed)
        for timeline in returning_timeline(pipeline, retired):
            connection.execute(self._note, timeline)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    new: frozenset[bytes]
    again: frozenset[bytes]  # reopened before
    left_alone: Mapping[str, LeftAlone]
    states: Mapping[str, ObjectState]

    @property
    def ids(self) -> Sequence[bytes]:
        return sorted(self.new | self.again)

    def result(self, rows: Sequence[ObjectRow]) -> Reopened:
        return Reopened(
            objects=[row for row in rows if row.object_id in self.new],
            again=[row for row in rows if row.object_id in self.again],
            left_alone=self.left_alone,
            states=self.states,
        )


def _chosen(
    connection: Connection, pipeline: str, addresses: Sequence[str], archived: Sequence[ReturningObject]
) -> _Chosen:
    """Choose the version of each object that is read again."""
    versions = versions_seen(connection, pipeline, addresses)
    returning = {one.retired.row.object_id for one in archived}
    new: set[bytes] = set()
    again: set[bytes] = set()
    left_alone: dict[str, LeftAlone] = {}
    states: dict[str, ObjectState] = {}
    for address, seen in versions.items():
        found = choose(seen, returning=returning)
        if isinstance(found, LeftAlone):
            left_alone[address] = found
            if found is LeftAlone.UNPROCESSED:
                states[address] = seen[-1].state
            continue
        is_open = any(one.object_id == found and one.state is ObjectState.UNPROCESSED for one in seen)
        (again if is_open else new).add(found)
    return _Chosen(new=frozenset(new), again=frozenset(again), left_alone=left_alone, states=states)


def _rows(connection: Connection, pipeline: str, object_ids: Sequence[bytes]) -> Sequence[ObjectRow]:
    return [
        object_row(row)
        for ids in slices(object_ids)
        for row in connection.execute(_ROWS, {"in_pipeline": pipeline, "of_objects": list(ids)})
    ]


def _processing_attempt(retired: RetiredObject) -> str:
    """Return the attempt that processed an archived object: its last one."""
    return retired.timeline[-1].attempt_id if retired.timeline else ""


# Inside claims and commits


def reopened_among_wanted(connection: Connection, pipeline: str) -> frozenset[bytes]:
    """Return the objects in ``wanted`` that are to be read again, inside a claim."""
    binds = {"in_pipeline": pipeline}
    if connection.execute(_ANY_OPEN, binds).first() is None:  # nearly always
        return frozenset()
    return frozenset(connection.scalars(_OPEN_HELD, binds))


def keep_unread(connection: Connection, pipeline: str, object_ids: Sequence[bytes]) -> None:
    """Make reopened objects among these processed as before, inside a claim that found them superseded."""
    for ids in slices(object_ids):
        for row in connection.execute(_OPEN_AMONG, {"in_pipeline": pipeline, "of_objects": list(ids)}).all():
            _keep(connection, row)


def settle_reopened(connection: Connection, outcome: BatchOutcome, *, has_table: bool) -> None:
    """Settle the reopened objects of an attempt inside its commit, once each has its new state.

    Raises `ValueError` if rows would be added to the earlier ones.
    """
    binds = {"in_pipeline": outcome.pipeline}
    if connection.execute(_ANY_OPEN, binds).first() is None:
        return
    for row in connection.execute(_OPEN_LEAVING, binds).all():
        state = ObjectState(row.object_state)
        if state is ObjectState.PROCESSED:
            if has_table and not outcome.on_change.replaces:
                raise ValueError(f"attempt {outcome.attempt_id} would add the rows of {row.uri} to its earlier ones")
            end = {"of_object": row.object_id, "new_state": ReopeningState.READ.value}
            connection.execute(_END, {**binds, **end, "by_attempt": outcome.attempt_id})
        elif state in (ObjectState.DELETED, ObjectState.SUPERSEDED):
            _keep(connection, row)
        else:
            reason = row.object_reason
            if state is ObjectState.DEAD and has_table:
                reason = stored_reason(f"{reason}; {STAY}")
            connection.execute(_KEEP_ROWS, _earlier(row) | {"why": reason})


def withdraw_reopenings(connection: Connection, pipeline: str, addresses: Sequence[str]) -> Withdrawn:
    """Make reopened objects among these processed as before, inside a transaction."""
    withdrawn: list[str] = []
    busy: list[str] = []
    for row in _open_at(connection, pipeline, addresses):
        if row.object_state == ObjectState.PROCESSING.value:
            busy.append(row.uri)
            continue
        if row.object_state == ObjectState.PROCESSED.value:
            # Read again while this waited for the object's lock: on PostgreSQL only the locked row is up to date.
            continue
        connection.execute(_RESTORE, _earlier(row) | {"why": None})
        connection.execute(_FORGET, {"in_pipeline": pipeline, "of_objects": [row.object_id]})
        withdrawn.append(row.uri)
    return Withdrawn(withdrawn=tuple(sorted(withdrawn)), busy=tuple(sorted(busy)))


def _open_at(connection: Connection, pipeline: str, addresses: Sequence[str]) -> Sequence[AnyRow]:
    binds = {"in_pipeline": pipeline}
    if connection.execute(_ANY_OPEN, binds).first() is None:
        return ()
    stored = {uri_digest(uri): uri for uri in map(storable, addresses)}
    rows = [
        row
        for digests in slices(sorted(stored))
        for row in connection.execute(_OPEN_AT, {**binds, "digests": list(digests)})
        if row.uri == stored[row.uri_digest]
    ]
    return sorted(rows, key=lambda row: row.object_id)  # the order in which claims lock


def _keep(connection: Connection, row: AnyRow) -> None:
    why = stored_reason(f"{KEPT}: {row.object_reason}")
    connection.execute(_RESTORE, _earlier(row) | {"why": why})
    end = {"in_pipeline": row.pipeline, "of_object": row.object_id, "new_state": ReopeningState.KEPT.value}
    connection.execute(_END, {**end, "by_attempt": None})


def _earlier(row: AnyRow) -> Values:
    return {
        "in_pipeline": row.pipeline,
        "of_object": row.object_id,
        "as_seq": row.batch_seq,
        "as_rows": row.rows,
        "as_lines": row.lines_quarantined,
        "as_unknown": row.unknown_fields,
        "as_attempt": row.attempt_id,
        "as_ended": row.ended_at,
    }


# Inside repairs

_OF_EARLIER = _OPEN.with_only_columns(reopenings.c.object_id).where(
    _of_reopened, reopenings.c.attempt_id == bindparam("of_attempt")
)
_FREE_WITHOUT_ROWS = (
    update(objects)
    .values(
        state=ObjectState.UNPROCESSED.value,
        attempt_id=null(),
        batch_seq=null(),
        rows=null(),
        lines_quarantined=null(),
        unknown_fields=null(),
        ended_at=null(),
        dead_at=null(),
    )
    .where(_of_ids)
)
_FORGET_EARLIER = delete(reopenings).where(_of_reopened, reopenings.c.attempt_id == bindparam("of_attempt"))
_READ_BY = (
    select(reopenings, objects.c.reason.label("object_reason"))
    .join_from(reopenings, objects, _with_object)
    .where(_of_reopened, reopenings.c.read_attempt_id == bindparam("of_attempt"))
)
_RENUMBER = (
    update(reopenings)
    .values(batch_seq=bindparam("new_seq"))
    .where(_of_reopened, reopenings.c.attempt_id == bindparam("of_attempt"))
)
_RENUMBER_OBJECTS = update(objects).values(batch_seq=bindparam("new_seq")).where(_of_ids)
_in_leaving = is_in(objects.c.object_id, of=select(leaving.c.object_id))
_READ_EARLIER = (
    select(
        objects,
        reopenings.c.state.label("reopening"),
    )
    .outerjoin_from(objects, reopenings, _with_object & _is_open)
    .where(
        of_pipeline(objects),
        _in_leaving,
        objects.c.batch_seq < bindparam("before_seq"),
        or_(objects.c.attempt_id.is_(None), objects.c.attempt_id != bindparam("of_attempt")),
        is_no_replay(objects),
    )
)
_ADD_READ = insert(reopenings).values(reopened_at=DatabaseNow())


def free_reopened(connection: Connection, pipeline: str, attempt_id: str) -> None:
    """Undo the reopenings of a batch that no longer counts, after its objects were freed.

    If the batch was the earlier reading of an object, the table has no rows of it any more. If the batch read an object
    again, its reopening is open once more.
    """
    binds = {"in_pipeline": pipeline, "of_attempt": attempt_id}
    for ids in slices(connection.scalars(_OF_EARLIER, binds).all()):
        connection.execute(_FREE_WITHOUT_ROWS, {"in_pipeline": pipeline, "of_objects": list(ids)})
    connection.execute(_FORGET_EARLIER, binds)
    for row in connection.execute(_READ_BY, binds).all():
        connection.execute(_KEEP_ROWS, _earlier(row) | {"why": row.object_reason})
        end = {"in_pipeline": pipeline, "of_object": row.object_id, "new_state": ReopeningState.OPEN.value}
        connection.execute(_END, {**end, "by_attempt": None})


def renumber_reopened(connection: Connection, pipeline: str, attempt_id: str, new_seq: int) -> None:
    """Set the new number of a batch in the reopenings of its objects."""
    binds = {"in_pipeline": pipeline, "of_attempt": attempt_id, "new_seq": new_seq}
    for ids in slices(connection.scalars(_OF_EARLIER, binds).all()):
        connection.execute(_RENUMBER_OBJECTS, {"in_pipeline": pipeline, "of_objects": list(ids), "new_seq": new_seq})
    connection.execute(_RENUMBER, binds)


def read_by_import(connection: Connection, pipeline: str, attempt_id: str, *, seq: int) -> bool:
    """Record which objects an imported batch has read again, before it gets them; return True if there are any.

    ``leaving`` has the objects. Each has an earlier batch in the ledger, which lost the reopening with the new batch.
    """
    found = connection.execute(
        _READ_EARLIER, {"in_pipeline": pipeline, "of_attempt": attempt_id, "before_seq": seq}
    ).all()
    for row in found:
        binds = {"in_pipeline": pipeline, "of_object": row.object_id}
        if row.reopening is None:
            connection.execute(_FORGET, {"in_pipeline": pipeline, "of_objects": [row.object_id]})
            earlier = {name: getattr(row, name) for name in _COLUMNS} | {"attempt_id": row.attempt_id or ""}
            read = {"state": ReopeningState.READ.value, "read_attempt_id": attempt_id}
            connection.execute(_ADD_READ, {**earlier, **read})
        else:
            connection.execute(_END, {**binds, "new_state": ReopeningState.READ.value, "by_attempt": attempt_id})
    return bool(found)


def _reopening_row(row: AnyRow) -> ReopeningRow:
    return ReopeningRow(
        object_id=row.object_id,
        state=ReopeningState(row.state),
        batch_seq=row.batch_seq,
        rows=row.rows,
        reopened_at=row.reopened_at,
        read_attempt_id=row.read_attempt_id,
    )
