"""List the open claims of workers: keys of handlers, and attempts with their objects.

A worker of any host appears here while it holds something. A claim without a living worker appears until another
worker takes it over.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Select, bindparam, func, literal_column, select, union_all

from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.records import AttemptState, WorkState
from penstock.ledger.rules import storable
from penstock.ledger.schema import attempts, objects, pipelines, works

HOLDERS_MAX = 1_000  # workers
OBJECT_COUNTS_MAX = 20  # attempts of a worker whose objects are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimingWorker:
    """A worker with open claims. Times are epoch seconds of the database's clock."""

    worker: str
    claims: int
    since: float  # of the oldest claim
    lease_until: float  # of the claim that expires last


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenClaim:
    """A key or an attempt that a worker holds. Times are epoch seconds of the database's clock."""

    attempt_id: str
    owner: str  # the handler or the pipeline
    queue: str | None  # None for pipelines, and for keys that an earlier version recorded
    key: str | None  # None for attempts on objects
    objects: int | None  # None for keys, and beyond OBJECT_COUNTS_MAX attempts
    since: float
    lease_seconds_left: float  # negative: the lease has expired


_KEY_IS_OPEN = works.c.state == WorkState.OPEN.value
# By pipeline, since the index of attempts begins with it.
_ATTEMPT_IS_OPEN = attempts.c.pipeline.in_(select(pipelines.c.id)) & (attempts.c.state == AttemptState.OPEN.value)
_OPEN = union_all(
    select(works.c.worker, works.c.started_at, works.c.lease_until).where(_KEY_IS_OPEN),
    select(attempts.c.worker, attempts.c.started_at, attempts.c.lease_until).where(_ATTEMPT_IS_OPEN),
).subquery("open_claims")
_SINCE = func.min(_OPEN.c.started_at).label("since")
_HOLDERS = (
    select(
        _OPEN.c.worker,
        func.count().label("claims"),
        _SINCE,
        func.max(_OPEN.c.lease_until).label("lease_until"),
    )
    .group_by(_OPEN.c.worker)
    .order_by(_SINCE, _OPEN.c.worker)
    .limit(bindparam("rows_max"))
)
_KEYS = (
    select(
        works.c.attempt_id,
        works.c.handler.label("owner"),
        works.c.queue,
        works.c.key,
        works.c.started_at.label("since"),
        (works.c.lease_until - DatabaseNow()).label("lease_seconds_left"),
    )
    .where(_KEY_IS_OPEN, works.c.worker == bindparam("of_worker"))
    .order_by(works.c.started_at, works.c.work_id)
    .limit(bindparam("rows_max"))
)
_ATTEMPTS = (
    select(
        attempts.c.id.label("attempt_id"),
        attempts.c.pipeline.label("owner"),
        literal_column("NULL").label("queue"),
        literal_column("NULL").label("key"),
        attempts.c.started_at.label("since"),
        (attempts.c.lease_until - DatabaseNow()).label("lease_seconds_left"),
    )
    .where(_ATTEMPT_IS_OPEN, attempts.c.worker == bindparam("of_worker"))
    .order_by(attempts.c.started_at, attempts.c.id)
    .limit(bindparam("rows_max"))
)
_COUNTS = (
    select(objects.c.attempt_id, func.count().label("objects"))
    .where(objects.c.attempt_id.in_(bindparam("named", expanding=True)))
    .group_by(objects.c.attempt_id)
)


class ClaimHolders:
    """Queries about the holders of open claims. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self, *, limit: int = HOLDERS_MAX) -> Sequence[ClaimingWorker]:
        """Return the workers that hold claims, the one with the oldest claim first."""
        with self._database.reading() as connection:
            rows = connection.execute(_HOLDERS, {"rows_max": limit}).mappings()
            return [ClaimingWorker(**row) for row in rows]

    def claims_of(self, worker: str, *, limit: int) -> Sequence[OpenClaim]:
        """Return the oldest open claims of a worker: up to ``limit`` keys, and up to ``limit`` attempts on objects."""
        keys = self._claims(_KEYS, worker, limit)
        on_objects = self._claims(_ATTEMPTS, worker, limit)
        return sorted((*keys, *on_objects), key=lambda claim: claim.since)

    def _claims(self, statement: Select[tuple[object, ...]], worker: str, limit: int) -> Sequence[OpenClaim]:
        with self._database.reading() as connection:
            rows = connection.execute(statement, {"of_worker": storable(worker), "rows_max": limit}).mappings().all()
            counted = [row["attempt_id"] for row in rows if row["key"] is None][:OBJECT_COUNTS_MAX]
            found = connection.execute(_COUNTS, {"named": counted}).all() if counted else ()
        counts = dict.fromkeys(counted, 0) | {row.attempt_id: row.objects for row in found}
        return [OpenClaim(**row, objects=counts.get(row["attempt_id"])) for row in rows]
