"""List and search objects for people, page by page. No query reads more rows than its caller allows.

Nearly all objects are processed ones, and no index has their addresses. So there are three orders, each with a
bounded read. Objects of rare states are sorted by time, which reads all of them. Many objects of one state are read in
the order of their ids. All objects are read by attempt, the newest first, because attempt ids begin with the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Connection, Select, and_, func, not_, select

from penstock.ledger.database import Database
from penstock.ledger.records import ObjectRow, ObjectState
from penstock.ledger.rows import AnyRow, object_row
from penstock.ledger.rules import storable
from penstock.ledger.schema import objects
from penstock.ledger.sets import by_attempt, by_state, filtered


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFilter:
    """The objects of these pipelines in these states, perhaps with a text in their address, in upper or lower case."""

    pipelines: Sequence[str]
    states: frozenset[ObjectState]
    uri_contains: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInList:
    """One object of a list, with its pipeline. ``since``: when it ended, or else was first seen."""

    pipeline: str
    row: ObjectRow
    attempt_id: str | None  # that holds it or ended it

    @property
    def since(self) -> float:
        return self.row.first_seen_at if self.row.ended_at is None else self.row.ended_at


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePosition:
    """The last object of a page that is sorted by time."""

    since: float
    object_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPosition:
    """The last object that was read by attempt. An empty id: every object of this attempt was read."""

    attempt_id: str
    object_id: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsById:
    """A part of the objects of one state. ``after``: where the next part begins; None: this was the last one."""

    objects: Sequence[ObjectInList] = ()
    read: int = 0
    after: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsByAttempt:
    """A part of all objects, the newest attempts first. ``after`` as in `ObjectsById`."""

    objects: Sequence[ObjectInList] = field(default=())
    read: int = 0
    after: AttemptPosition | None = None


_since = func.coalesce(objects.c.ended_at, objects.c.first_seen_at)
_attempt = objects.c.attempt_id


class ObjectLists:
    """Queries for lists of objects. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def count(self, wanted: ObjectFilter, *, up_to: int) -> int:
        """Count objects by pipeline and state, whatever their addresses; stop at ``up_to``."""
        found = by_state(select(objects.c.object_id).where(*_in_states(wanted)).limit(up_to)).subquery()
        with self._database.reading() as connection:
            return int(connection.execute(select(func.count()).select_from(found)).scalar_one())

    def by_time(self, wanted: ObjectFilter, *, limit: int, after: TimePosition | None = None) -> Sequence[ObjectInList]:
        """Return objects, the newest first. Reads all objects of these states: `count` them before."""
        statement = by_state(select(objects).where(*_in_states(wanted), *_with_text(wanted)))
        if after is not None:
            is_same = _since == after.since
            statement = statement.where((_since < after.since) | and_(is_same, objects.c.object_id < after.object_id))
        statement = statement.order_by(_since.desc(), objects.c.object_id.desc()).limit(limit)
        with self._database.reading() as connection:
            return [_listed(row) for row in connection.execute(statement)]

    def by_id(
        self, pipeline: str, wanted: ObjectFilter, state: ObjectState, *, limit: int, read: int, after: bytes | None
    ) -> ObjectsById:
        """Return up to ``limit`` objects of one pipeline and state among the next ``read`` of them, by id."""
        of_state = (objects.c.pipeline == pipeline) & (objects.c.state == state.value)
        if after is not None:
            of_state &= objects.c.object_id > after
        ids = by_state(select(objects.c.object_id).where(of_state).order_by(objects.c.object_id))
        with self._database.reading() as connection:
            last: bytes | None = connection.scalar(ids.limit(1).offset(read - 1))
            part = of_state if last is None else of_state & (objects.c.object_id <= last)
            statement = by_state(select(objects).where(part, *_with_text(wanted)))
            rows = connection.execute(statement.order_by(objects.c.object_id).limit(limit)).all()
            if len(rows) == limit:
                last = rows[-1].object_id
                part = of_state & (objects.c.object_id <= last)
            count = connection.execute(by_state(select(func.count()).select_from(objects).where(part))).scalar_one()
        return ObjectsById(objects=[_listed(row) for row in rows], read=int(count), after=last)

    def by_attempt(
        self, wanted: ObjectFilter, *, limit: int, read: int, after: AttemptPosition | None
    ) -> ObjectsByAttempt:
        """Return up to ``limit`` of the next ``read`` objects that an attempt holds or ended, the newest first.

        It reads more than that if one attempt has more objects. Objects that wait have no attempt.
        """
        with self._database.reading() as connection:
            begun = _not_read(after)
            order = by_attempt(select(_attempt).where(begun).order_by(_attempt.desc()))
            lowest: str | None = connection.scalar(order.limit(1).offset(read - 1))
            rows = connection.execute(_newest(wanted, begun, lowest, after).limit(limit)).all()
            position = None if lowest is None else AttemptPosition(attempt_id=lowest)
            if len(rows) == limit:
                position = AttemptPosition(attempt_id=rows[-1].attempt_id, object_id=rows[-1].object_id)
            count = _count_read(connection, begun, position)
        return ObjectsByAttempt(objects=[_listed(row) for row in rows], read=count, after=position)

    def of_attempt(self, attempt_id: str, *, limit: int) -> Sequence[ObjectInList]:
        """Return the objects that an attempt holds or ended, by address."""
        statement = by_attempt(select(objects).where(_attempt == attempt_id)).order_by(objects.c.uri).limit(limit)
        with self._database.reading() as connection:
            return [_listed(row) for row in connection.execute(statement)]

    def count_of_attempts(self, attempt_ids: Sequence[str]) -> dict[str, int]:
        """Return the number of objects of each attempt that has any."""
        statement = by_attempt(
            select(_attempt, func.count().label("objects_in_it")).where(_attempt.in_(attempt_ids)).group_by(_attempt)
        )
        with self._database.reading() as connection:
            return {row.attempt_id: int(row.objects_in_it) for row in connection.execute(statement)}


def _in_states(wanted: ObjectFilter) -> Sequence[ColumnElement[bool]]:
    states = [state.value for state in sorted(wanted.states)]
    return objects.c.pipeline.in_(wanted.pipelines), objects.c.state.in_(states)


def _with_text(wanted: ObjectFilter) -> Sequence[ColumnElement[bool]]:
    if wanted.uri_contains is None:
        return ()
    return (objects.c.uri.icontains(storable(wanted.uri_contains), autoescape=True),)


def _not_read(after: AttemptPosition | None) -> ColumnElement[bool]:
    """Match the attempts of which not all objects were read."""
    if after is None:
        return _attempt.is_not(None)
    return _attempt <= after.attempt_id if after.object_id else _attempt < after.attempt_id


def _newest(
    wanted: ObjectFilter, begun: ColumnElement[bool], lowest: str | None, after: AttemptPosition | None
) -> Select[AnyRow]:
    """Select the wanted objects of a range of attempts. Only the index of attempts may find them."""
    statement = select(objects).where(
        begun,
        filtered(objects.c.pipeline).in_(wanted.pipelines),
        filtered(objects.c.state).in_([state.value for state in sorted(wanted.states)]),
        *_with_text(wanted),
    )
    if lowest is not None:
        statement = statement.where(_attempt >= lowest)
    if after is not None and after.object_id:
        is_same = filtered(_attempt) == after.attempt_id
        statement = statement.where(not_(and_(is_same, objects.c.object_id >= after.object_id)))
    return by_attempt(statement.order_by(_attempt.desc(), objects.c.object_id.desc()))


def _count_read(connection: Connection, begun: ColumnElement[bool], position: AttemptPosition | None) -> int:
    """Count the objects of the attempts that were read as a whole."""
    statement = select(func.count()).select_from(objects).where(begun)
    if position is not None:
        is_whole = not position.object_id
        statement = statement.where(_attempt >= position.attempt_id if is_whole else _attempt > position.attempt_id)
    return int(connection.execute(by_attempt(statement)).scalar_one())


def _listed(row: AnyRow) -> ObjectInList:
    return ObjectInList(pipeline=row.pipeline, row=object_row(row), attempt_id=row.attempt_id)
