"""Between works and their table rows: pure conversions, both ways."""

from penstock.ledger.owner_records import WorkOwner
from penstock.ledger.rows import AnyRow, Values
from penstock.ledger.rules import check_handler, storable, told, work_id_of
from penstock.ledger.work_records import WorkAttempt, WorkDone, WorkEnd, WorkRow, WorkState


def new_work(
    handler: str,
    key: str,
    *,
    attempt_id: str,
    worker: str,
    lease_seconds: float,
    owner: WorkOwner | None,
    retention_seconds: float | None,
) -> Values:
    """What a work's first attempt and any later one bring; the times are the database's."""
    check_handler(handler)
    return {
        "of_work": work_id_of(handler, key, owner),
        "of_handler": storable(handler),
        "of_key": told(key),
        "fresh": attempt_id,
        "by_worker": storable(worker),
        "lease_seconds": lease_seconds,
        "of_app": None if owner is None else storable(owner.app),
        "of_queue": None if owner is None else storable(owner.queue),
        "keep_seconds": retention_seconds,
    }


def previous_attempt(row: AnyRow) -> WorkAttempt | None:
    """The last attempt that ended without completing the work."""
    if row.last_attempt_id is None:
        return None
    return WorkAttempt(
        attempt_id=row.last_attempt_id,
        worker=row.last_worker,
        started_at=row.last_started_at,
        ended_at=row.last_ended_at,
        outcome=WorkEnd(row.last_outcome),
        reason=row.last_reason,
    )


def work_done(row: AnyRow) -> WorkDone:
    return WorkDone(outcome=row.outcome, completed_at=row.ended_at, worker=row.worker, attempt_id=row.attempt_id)


def work_row(row: AnyRow) -> WorkRow:
    state = WorkState(row.state)
    return WorkRow(
        work_id=row.work_id,
        handler=row.handler,
        key=row.key,
        app=row.app,
        queue=row.queue,
        state=state,
        attempts=row.attempts,
        attempt_id=row.attempt_id,
        worker=row.worker,
        started_at=row.started_at,
        lease_until=row.lease_until if state is WorkState.OPEN else None,
        outcome=row.outcome,
        completed_at=row.ended_at if state is WorkState.DONE else None,
        first_seen_at=row.first_seen_at,
        previous=previous_attempt(row),
    )
