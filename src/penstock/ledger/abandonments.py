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
from penstock.ledger.rules import told
from penstock.ledger.schema import attempts, objects
from penstock.messaging.steps import Probe, Step

GivenUp = TypeVar("GivenUp", bool, Sequence[str])

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
_GIVE_UP = (
    update(attempts)
    .values(
        state=AttemptState.ABANDONED.value,
        ended_at=DatabaseNow(),
        outcome=bindparam("why_outcome"),
        reason=bindparam("why_reason"),
    )
    .where(attempts.c.id == bindparam("given_up"), attempts.c.state == AttemptState.OPEN.value)
)
_GIVE_UP_EXPIRED = _GIVE_UP.where(IS_EXPIRED)
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

    def one(self, attempt_id: str, *, reason: str, outcome: str, refund: bool, unattributed: bool) -> bool:
        """Abandon an attempt; return False if it is no longer open.

        ``refund``: the attempt does not count for its objects. ``unattributed``: the run failed and no object could be
        blamed, which is counted on each of them.
        """

        def give_up(connection: Connection) -> bool:
            return give_up_open(
                connection, attempt_id, reason=reason, outcome=outcome, refund=refund, unattributed=unattributed
            )

        return self._announced(self._database.transact(give_up))

    def expired(self, pipeline: str, *, sparing: str | None = None) -> Sequence[str]:
        """Abandon every expired attempt except the one being opened; return their ids. The attempts count."""

        def give_up(connection: Connection) -> Sequence[str]:
            found = connection.scalars(EXPIRED_ATTEMPTS, {"in_pipeline": pipeline}).all()
            return [id for id in found if id != sparing and _give_up_expired(connection, id)]

        return self._announced(self._database.transact(give_up))

    def of_worker(self, pipeline: str, worker: str) -> Sequence[str]:
        """Abandon every open attempt of a worker known to be dead; return their ids. The attempts count."""

        def give_up(connection: Connection) -> Sequence[str]:
            found = connection.scalars(_WORKERS_ATTEMPTS, {"in_pipeline": pipeline, "of_worker": worker}).all()
            return [id for id in found if _give_up_dead(connection, id, worker)]

        return self._announced(self._database.transact(give_up))

    def _announced(self, given_up: GivenUp) -> GivenUp:
        if given_up:
            self._probe(Step.ABANDONED)
        return given_up


def give_up_open(
    connection: Connection, attempt_id: str, *, reason: str, outcome: str, refund: bool, unattributed: bool
) -> bool:
    """Abandon an attempt inside a transaction; see `Abandonments.one`."""
    if connection.execute(_GIVE_UP, _why(attempt_id, outcome, reason)).rowcount != 1:
        return False
    _free(connection, attempt_id, refund=refund, unattributed=unattributed)
    return True


def _give_up_expired(connection: Connection, attempt_id: str) -> bool:
    why = _why(attempt_id, EXPIRED, "its lease ran out")
    if connection.execute(_GIVE_UP_EXPIRED, why).rowcount != 1:
        return False
    _free(connection, attempt_id, refund=False, unattributed=False)
    return True


def _give_up_dead(connection: Connection, attempt_id: str, worker: str) -> bool:
    why = _why(attempt_id, WORKER_DIED, f"worker {worker} died")
    if connection.execute(_GIVE_UP, why).rowcount != 1:
        return False
    _free(connection, attempt_id, refund=False, unattributed=False)
    return True


def _free(connection: Connection, attempt_id: str, *, refund: bool, unattributed: bool) -> None:
    connection.execute(_FREE, {"given_up": attempt_id, "refund_by": int(refund), "unattributed_by": int(unattributed)})


def _why(attempt_id: str, outcome: str, reason: str) -> dict[str, str]:
    return {"given_up": attempt_id, "why_outcome": outcome, "why_reason": told(reason)}
