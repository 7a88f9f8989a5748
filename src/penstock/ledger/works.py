"""Claim one key of a handler (a work), so that its effect is recorded once however often its message is delivered.

A work is free, open for one attempt, or done. The attempt fences: every call that finishes, extends or ends a work
names it and changes nothing once another attempt has taken over. Time alone ends nothing: an expired attempt ends when
another one begins. Rows are inserted, or left alone, in a separate transaction and then taken with a compare-and-set on
their primary key, so that two attempts on the same work cannot deadlock.

If a COMMIT gets no reply, the same transaction runs again and recognizes its own attempt. `WorkQueries` reads works;
each query is one consistent read.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection, Delete, bindparam, delete, func, select, update

from penstock.errors import TemporaryError
from penstock.ledger.database import Database, OutcomeUnknown
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.records import (
    HolderOutcome,
    WorkBegun,
    WorkBusy,
    WorkClaimResult,
    WorkEnd,
    WorkOwner,
    WorkRow,
    WorkState,
)
from penstock.ledger.rows import AnyRow, Values, new_work, previous_attempt, work_done, work_row
from penstock.ledger.rules import storable, stored_reason, work_id_of
from penstock.ledger.schema import works
from penstock.messaging.handler import Extension

TRIES_MAX = 5
FORGOTTEN_AT_ONCE_MAX = 500  # ids per statement
OLD_READ_MAX = 10_000  # rows without a retention that one query reads to find those of a handler

Result = TypeVar("Result")

_time = works.c.lease_until.type
_NEW_LEASE_UNTIL = DatabaseNow() + bindparam("lease_seconds", type_=_time)
_IS_OPEN = works.c.state == WorkState.OPEN.value
_THIS_WORK = works.c.work_id == bindparam("of_work")
_HELD = _THIS_WORK & _IS_OPEN & (works.c.attempt_id == bindparam("ours"))

_TAKE = (
    update(works)
    .values(
        state=WorkState.OPEN.value,
        attempt_id=bindparam("fresh"),
        worker=bindparam("by_worker"),
        started_at=DatabaseNow(),
        lease_until=_NEW_LEASE_UNTIL,
        ended_at=None,
        attempts=works.c.attempts + 1,
        app=bindparam("of_app"),
        queue=bindparam("of_queue"),
        retention_seconds=bindparam("keep_seconds", type_=_time),
        expires_at=None,
    )
    .where(_THIS_WORK, works.c.state == WorkState.FREE.value)
)
_EXPIRES_AT = DatabaseNow() + works.c.retention_seconds  # NULL if no retention is recorded
_END = update(works).values(
    state=WorkState.FREE.value,
    ended_at=DatabaseNow(),
    expires_at=_EXPIRES_AT,
    last_attempt_id=works.c.attempt_id,
    last_worker=works.c.worker,
    last_started_at=works.c.started_at,
    last_ended_at=DatabaseNow(),
    last_outcome=bindparam("why_outcome"),
    last_reason=bindparam("why_reason"),
)
_END_OURS = _END.where(_HELD)
_END_EXPIRED = _END.where(
    _THIS_WORK, _IS_OPEN, works.c.lease_until < DatabaseNow(), works.c.attempt_id != bindparam("fresh")
)
_AMONG = works.c.attempt_id.in_(bindparam("named", expanding=True))
_OPEN_AMONG = select(works.c.work_id, works.c.attempt_id).where(_AMONG, _IS_OPEN)
# SKIP LOCKED: a heartbeat never waits for another transaction; a locked work is extended shortly afterwards.
_LOCKED_AMONG = (
    select(works.c.work_id, works.c.attempt_id)
    .where(works.c.work_id.in_(bindparam("of_works", expanding=True)), _AMONG, _IS_OPEN)
    .order_by(works.c.work_id)
    .with_for_update(skip_locked=True)
)
_EXTEND = (
    update(works)
    .values(lease_until=_NEW_LEASE_UNTIL, heartbeat_seq=works.c.heartbeat_seq + 1)
    .where(works.c.work_id.in_(bindparam("of_works", expanding=True)), _AMONG, _IS_OPEN)
)
_FINISH = (
    update(works)
    .values(
        state=WorkState.DONE.value, ended_at=DatabaseNow(), expires_at=_EXPIRES_AT, outcome=bindparam("new_outcome")
    )
    .where(_HELD)
)
_READ = select(works, (works.c.lease_until - DatabaseNow()).label("lease_left")).where(_THIS_WORK)
# Look up by attempt, change by work: locking the index entry first and the row second would deadlock with transactions
# that lock the row and then move its index entry.
_FIND = select(works.c.work_id, works.c.state, works.c.last_attempt_id, works.c.last_outcome).where(
    works.c.attempt_id == bindparam("ours")
)
_WORKERS_WORKS = (
    select(works.c.work_id, works.c.attempt_id)
    .where(_IS_OPEN, works.c.worker == bindparam("of_worker"))
    .order_by(works.c.work_id)
)
# Workers of revision 0005, which may run beside newer ones, do not update `expires_at`: a key that they completed has
# the value of an earlier attempt. So both times must be past; the first condition uses an index.
_IS_EXPIRED = (
    (works.c.expires_at < DatabaseNow())
    & (works.c.ended_at + works.c.retention_seconds < DatabaseNow())
    & (works.c.state != WorkState.OPEN.value)
)
_EXPIRED = select(works.c.work_id).where(_IS_EXPIRED).order_by(works.c.expires_at).limit(bindparam("rows_max"))
# Works without an expiry: those of revision 0005, and keys that a worker of that revision took over from a newer one
# and completed. The latter have a recorded retention, which applies. An app deletes only those of its own handlers, and
# searches a bounded number of all apps' oldest rows for them.
_IS_OLD = (
    works.c.expires_at.is_(None)
    & (works.c.ended_at < DatabaseNow() - bindparam("older_than_seconds", type_=_time))
    & (works.c.ended_at + func.coalesce(works.c.retention_seconds, 0.0) < DatabaseNow())
)
_OLDEST = (
    select(works.c.work_id, works.c.handler, works.c.queue, works.c.retention_seconds)
    .where(_IS_OLD)
    .order_by(works.c.ended_at)
    .limit(bindparam("looked_at_max"))
    .subquery()
)
_OLD = select(_OLDEST.c.work_id).limit(bindparam("rows_max"))
_OLD_OF_HANDLER = _OLD.where(
    _OLDEST.c.handler == bindparam("of_handler"),
    _OLDEST.c.queue.is_(None) | _OLDEST.c.retention_seconds.is_not(None),
)
_FORGET = delete(works).where(works.c.work_id.in_(bindparam("forgotten", expanding=True)))
_FORGET_EXPIRED = _FORGET.where(_IS_EXPIRED)
_FORGET_OLD = _FORGET.where(_IS_OLD)


class _ChangedMeanwhile(Exception):
    """Another transaction changed the work between a read and the change that depends on it: try again."""


class Works:
    """Begin, extend and end works. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._register = (
            database.dialect.insert_or_ignore(works)
            .values(
                work_id=bindparam("of_work"),
                handler=bindparam("of_handler"),
                key=bindparam("of_key"),
                state=WorkState.OPEN.value,
                attempt_id=bindparam("fresh"),
                worker=bindparam("by_worker"),
                started_at=DatabaseNow(),
                lease_until=_NEW_LEASE_UNTIL,
                heartbeat_seq=0,
                attempts=1,
                first_seen_at=DatabaseNow(),
                app=bindparam("of_app"),
                queue=bindparam("of_queue"),
                retention_seconds=bindparam("keep_seconds", type_=_time),
            )
            .execution_options(preserve_rowcount=True)
        )

    def begin(
        self,
        handler: str,
        key: str,
        *,
        attempt_id: str,
        worker: str,
        lease_seconds: float,
        owner: WorkOwner | None,
        retention_seconds: float | None,
    ) -> WorkClaimResult:
        """Begin the work of a key unless it is open or done; see `penstock.ledger.ledger.Ledger.begin_work`."""
        opening = new_work(
            handler,
            key,
            attempt_id=attempt_id,
            worker=worker,
            lease_seconds=lease_seconds,
            owner=owner,
            retention_seconds=retention_seconds,
        )
        try:
            return self._until_known(attempt_id, partial(self._begin, opening))
        except OutcomeUnknown:
            with suppress(TemporaryError):  # if this fails too, the lease expires
                self.end(attempt_id, outcome="given_back", reason="the ledger did not confirm that it began")
            raise

    def extend(
        self, attempt_ids: Sequence[str], *, lease_seconds: float, response_seconds: float | None = None
    ) -> Extension:
        """Extend the leases of these attempts to ``lease_seconds`` from now, in one transaction."""
        named = set(attempt_ids)

        def extend(connection: Connection) -> Extension:
            is_open = {row.attempt_id: row.work_id for row in connection.execute(_OPEN_AMONG, {"named": sorted(named)})}
            ours: dict[str, bytes] = {}
            if is_open:
                binds = {"of_works": sorted(is_open.values()), "named": sorted(is_open)}
                ours = {row.attempt_id: row.work_id for row in connection.execute(_LOCKED_AMONG, binds)}
            if ours:
                held = {"of_works": sorted(ours.values()), "named": sorted(ours)}
                connection.execute(_EXTEND, {**held, "lease_seconds": lease_seconds})
            return Extension(lost=named - is_open.keys(), locked=is_open.keys() - ours.keys())

        return self._database.for_heartbeats(response_seconds).transact(extend)

    def ping(self) -> None:
        """Update a row that does not exist: a read-only server refuses."""
        binds = {"of_work": -1, "ours": "", "lease_seconds": 1.0}
        self._database.transact(lambda connection: connection.execute(_EXTEND, binds).rowcount)

    def finish(self, attempt_id: str, *, outcome: str) -> bool:
        """Record the completion; return False if the attempt is lost. A repeated call keeps the first outcome."""
        stored = storable(outcome)
        return self._until_known(attempt_id, partial(self._finish, attempt_id, stored))

    def end(self, attempt_id: str, *, outcome: HolderOutcome, reason: str) -> bool:
        """Free the work without completing it; return False if the attempt is lost or finished it."""
        word = WorkEnd(outcome)
        return self._until_known(attempt_id, partial(self._end, attempt_id, word, reason))

    def abandon_worker(self, worker: str) -> int:
        """End every open attempt of a worker known to be dead; return their count."""
        why = _why(WorkEnd.EXPIRED, f"worker {worker} died")

        def end_all(connection: Connection) -> int:
            held = connection.execute(_WORKERS_WORKS, {"of_worker": storable(worker)}).all()
            return sum(
                connection.execute(_END_OURS, {"of_work": row.work_id, "ours": row.attempt_id, **why}).rowcount
                for row in held
            )

        return self._database.transact(end_all)

    def forget(self, *, older_than_seconds: float | None, limit: int, handler: str | None) -> int:
        """Delete the oldest expired works; see `penstock.ledger.ledger.Ledger.forget_works`."""
        age = {"older_than_seconds": older_than_seconds}
        of_handler = {} if handler is None else {"of_handler": storable(handler)}
        old = _OLD if handler is None else _OLD_OF_HANDLER

        def forget(connection: Connection) -> int:
            expired = connection.scalars(_EXPIRED, {"rows_max": limit}).all()
            count = _forget(connection, _FORGET_EXPIRED, expired, {})
            if older_than_seconds is not None and (left := limit - len(expired)) > 0:
                parameters = {**age, **of_handler, "rows_max": left, "looked_at_max": max(OLD_READ_MAX, left)}
                count += _forget(connection, _FORGET_OLD, connection.scalars(old, parameters).all(), age)
            return count

        return self._database.transact(forget)

    def _until_known(self, attempt_id: str, call: Callable[[], Result]) -> Result:
        """Repeat the call until its outcome is known, up to TRIES_MAX times."""
        unknown: OutcomeUnknown | None = None
        for _ in range(TRIES_MAX):
            try:
                return call()
            except OutcomeUnknown as error:
                unknown = error
            except _ChangedMeanwhile:
                pass
        if unknown is not None:
            raise OutcomeUnknown(
                f"attempt {attempt_id}: the ledger did not confirm one of {TRIES_MAX} commits, try again later"
            ) from unknown
        raise TemporaryError(f"attempt {attempt_id}: its work changed during each of {TRIES_MAX} tries, try again")

    def _begin(self, opening: Values) -> WorkClaimResult:
        if self._database.transact(lambda connection: connection.execute(self._register, opening).rowcount) == 1:
            return WorkBegun(previous=None)

        def take(connection: Connection) -> WorkClaimResult:
            _take(connection, opening)
            row = connection.execute(_READ, opening).one_or_none()
            if row is None:
                _refuse_used(connection, opening["fresh"])
                raise _ChangedMeanwhile  # deleted after the insert found it
            return _claim_result(row, opening["fresh"])

        return self._database.transact(take)

    def _finish(self, attempt_id: str, outcome: str) -> bool:
        def finish(connection: Connection) -> bool:
            found = _find(connection, attempt_id)
            if found is None or found.state == WorkState.FREE:
                return False
            if found.state == WorkState.DONE:
                return True
            binds = {"of_work": found.work_id, "ours": attempt_id, "new_outcome": outcome}
            return _changed(connection.execute(_FINISH, binds).rowcount)

        return self._database.transact(finish)

    def _end(self, attempt_id: str, outcome: WorkEnd, reason: str) -> bool:
        def end(connection: Connection) -> bool:
            found = _find(connection, attempt_id)
            if found is None or found.state == WorkState.DONE:
                return False
            if found.state == WorkState.FREE:
                return bool(found.last_outcome == outcome)
            binds = {"of_work": found.work_id, "ours": attempt_id, **_why(outcome, reason)}
            return _changed(connection.execute(_END_OURS, binds).rowcount)

        return self._database.transact(end)


def _forget(connection: Connection, statement: Delete, ids: Sequence[bytes], binds: Values) -> int:
    pages = [ids[start : start + FORGOTTEN_AT_ONCE_MAX] for start in range(0, len(ids), FORGOTTEN_AT_ONCE_MAX)]
    return sum(connection.execute(statement, {**binds, "forgotten": sorted(page)}).rowcount for page in pages)


def _take(connection: Connection, opening: Values) -> None:
    """Take the work if it is free, or after ending its expired attempt."""
    if connection.execute(_TAKE, opening).rowcount == 1:
        return
    why = _why(WorkEnd.EXPIRED, "its lease ran out")
    if connection.execute(_END_EXPIRED, {**opening, **why}).rowcount == 1:
        connection.execute(_TAKE, opening)


def _claim_result(row: AnyRow, attempt_id: str) -> WorkClaimResult:
    """Return the row's meaning for this attempt."""
    if row.state == WorkState.DONE:
        return work_done(row)
    if row.state == WorkState.FREE:
        raise _ChangedMeanwhile  # it became free after `_take`
    if row.attempt_id == attempt_id:
        return WorkBegun(previous=previous_attempt(row))
    return WorkBusy(seconds=max(0.0, row.lease_left))


def _changed(rows: int) -> bool:
    if rows != 1:
        raise _ChangedMeanwhile
    return True


def _refuse_used(connection: Connection, attempt_id: str) -> None:
    if _find(connection, attempt_id) is not None:
        raise ValueError(f"attempt {attempt_id} began another work: every attempt needs its own id")


def _find(connection: Connection, attempt_id: str) -> "AnyRow | None":
    """Return the work whose latest attempt this is, open or not."""
    return connection.execute(_FIND, {"ours": attempt_id}).one_or_none()


def _why(outcome: WorkEnd, reason: str) -> Values:
    return {"why_outcome": outcome.value, "why_reason": stored_reason(reason)}


_ONE = select(works).where(works.c.work_id == bindparam("of_work"))


class WorkQueries:
    """Queries about works. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def works(
        self,
        handler: str | None,
        *,
        key_contains: str | None,
        state: WorkState | None,
        limit: int,
        after: bytes | None,
    ) -> Sequence[WorkRow]:
        statement = select(works).order_by(works.c.work_id).limit(limit)
        if handler is not None:
            statement = statement.where(works.c.handler == storable(handler))
        if key_contains is not None:
            statement = statement.where(works.c.key.icontains(storable(key_contains), autoescape=True))
        if state is not None:
            statement = statement.where(works.c.state == state.value)
        if after is not None:
            statement = statement.where(works.c.work_id > after)
        with self._database.reading() as connection:
            return [work_row(row) for row in connection.execute(statement)]

    def work(self, handler: str, key: str, owner: WorkOwner | None) -> WorkRow | None:
        with self._database.reading() as connection:
            row = connection.execute(_ONE, {"of_work": work_id_of(handler, key, owner)}).one_or_none()
        return None if row is None else work_row(row)
