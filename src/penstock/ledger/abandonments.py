"""Abandon attempts: durably, only open ones, and freeing their objects in the same transaction.

An abandoned attempt can never commit, so gc may delete its files at any time. Every claim abandons the expired attempts
that it finds. Expiry is decided by the database's clock.
"""

from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, and_, bindparam, select, update

from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.records import AttemptState, ObjectState
from penstock.ledger.rules import stored_reason
from penstock.ledger.schema import attempts, objects
from penstock.messaging.steps import Probe, Step

Abandoned = TypeVar("Abandoned", bool, Sequence[str])

EXPIRED = "expired"
WORKER_DIED = "worker_died"

IS_EXPIRED: ColumnElement[bool] = and_(
    attempts.c.state == AttemptState.OPEN.value, attempts.c.lease_until < DatabaseNow()
)
EXPIRED_ATTEMPTS = select(attempts.c.id).where(attempts.c.pipeline == bindparam("in_pipeline"), IS_EXPIRED)
_WORKERS_ATTEMPTS = select(attempts.c.id).where(
    attempts.c.pipeline == bindparam("in_pipeline"),
    attempts.c.state == AttemptState.OPEN.value,
    attempts.c.worker == bindparam("of_worker"),
)
_ABANDON = (
    update(attempts)
    .values(
        state=AttemptState.ABANDONED.value,
        ended_at=DatabaseNow(),
        outcome=bindparam("why_outcome"),
        reason=bindparam("why_reason"),
    )
    .where(attempts.c.id == bindparam("given_up"), attempts.c.state == AttemptState.OPEN.value)
)
_ABANDON_EXPIRED = _ABANDON.where(IS_EXPIRED)
_FREE = (
    update(objects)
    .values(
        state=ObjectState.UNPROCESSED.value,
        attempt_id=None,
        refunds=objects.c.refunds + bindparam("refund_by"),
        unattributed_failures=objects.c.unattributed_failures + bindparam("unattributed_by"),
    )
    .where(objects.c.attempt_id == bindparam("given_up"), objects.c.state == ObjectState.PROCESSING.value)
)


class Abandonments:
    """Abandon attempts and free their objects. Thread-safe."""

    def __init__(self, database: Database, probe: Probe) -> None:
        self._database = database
        self._probe = probe

    def abandon(self, attempt_id: str, *, reason: str, outcome: str, uncounted: bool, unattributed: bool) -> bool:
        """Abandon an attempt; return False if it is no longer open.

        ``uncounted``: the attempt does not count for its objects. ``unattributed``: the run failed, and no object could
        be blamed, which is counted on each of them.
        """

        def abandon(connection: Connection) -> bool:
            return abandon_open(
                connection, attempt_id, reason=reason, outcome=outcome, uncounted=uncounted, unattributed=unattributed
            )

        return self._probed(self._database.transact(abandon))

    def abandon_expired(self, pipeline: str, *, sparing: str | None = None) -> Sequence[str]:
        """Abandon every expired attempt except the one being opened; return their ids. The attempts count."""

        def abandon(connection: Connection) -> Sequence[str]:
            found = connection.scalars(EXPIRED_ATTEMPTS, {"in_pipeline": pipeline}).all()
            return [id for id in found if id != sparing and _abandon_expired(connection, id)]

        return self._probed(self._database.transact(abandon))

    def abandon_of_worker(self, pipeline: str, worker: str) -> Sequence[str]:
        """Abandon every open attempt of a worker known to be dead; return their ids. The attempts count."""

        def abandon(connection: Connection) -> Sequence[str]:
            found = connection.scalars(_WORKERS_ATTEMPTS, {"in_pipeline": pipeline, "of_worker": worker}).all()
            return [id for id in found if _abandon_of_dead_worker(connection, id, worker)]

        return self._probed(self._database.transact(abandon))

    def _probed(self, abandoned: Abandoned) -> Abandoned:
        if abandoned:
            self._probe(Step.ABANDONED)
        return abandoned


def abandon_open(
    connection: Connection, attempt_id: str, *, reason: str, outcome: str, uncounted: bool, unattributed: bool
) -> bool:
    """Abandon an attempt inside a transaction; see `Abandonments.abandon`."""
    if connection.execute(_ABANDON, _why(attempt_id, outcome, reason)).rowcount != 1:
        return False
    _free(connection, attempt_id, uncounted=uncounted, unattributed=unattributed)
    return True


def _abandon_expired(connection: Connection, attempt_id: str) -> bool:
    why = _why(attempt_id, EXPIRED, "its lease ran out")
    if connection.execute(_ABANDON_EXPIRED, why).rowcount != 1:
        return False
    _free(connection, attempt_id, uncounted=False, unattributed=False)
    return True


def _abandon_of_dead_worker(connection: Connection, attempt_id: str, worker: str) -> bool:
    why = _why(attempt_id, WORKER_DIED, f"worker {worker} died")
    if connection.execute(_ABANDON, why).rowcount != 1:
        return False
    _free(connection, attempt_id, uncounted=False, unattributed=False)
    return True


def _free(connection: Connection, attempt_id: str, *, uncounted: bool, unattributed: bool) -> None:
    connection.execute(
        _FREE, {"given_up": attempt_id, "refund_by": int(uncounted), "unattributed_by": int(unattributed)}
    )


def _why(attempt_id: str, outcome: str, reason: str) -> dict[str, str]:
    return {"given_up": attempt_id, "why_outcome": outcome, "why_reason": stored_reason(reason)}
