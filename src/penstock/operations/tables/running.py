"""The attempts that work on a pipeline's objects now."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.app.running_batches import RecordedRun
from penstock.ledger.batch_lists import BatchSummary
from penstock.ledger.records import AttemptRow
from penstock.operations.inspection import ScopeView


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAttempt:
    """An open attempt."""

    attempt: AttemptRow
    objects: int  # that it holds
    overdue_seconds: float | None  # since its lease expired: its worker is gone, or cannot reach the ledger
    spark_ui_url: str | None  # of the last batch that its worker committed: the page of its Spark session
    progress: RecordedRun | None  # from the record of its worker; None: on another host, or no pipeline with Spark


def running_attempts(seen: ScopeView, pipeline: str, newest: Sequence[BatchSummary]) -> Sequence[RunningAttempt]:
    """Return the open attempts of a pipeline, oldest first. ``newest`` are its last batches."""
    found = seen.ledger.open_attempts(pipeline)
    if not found:
        return ()
    counts, now = seen.ledger.lists.count_of_attempts([one.id for one in found]), seen.ledger.now()
    progress = {batch.attempt_id: batch for record in seen.workers.records() for batch in record.batches}
    pages = {batch.worker: batch.spark_ui_url for batch in reversed(newest)}
    return [
        RunningAttempt(
            attempt=one,
            objects=counts.get(one.id, 0),
            overdue_seconds=now - one.lease_until if now > one.lease_until else None,
            spark_ui_url=pages.get(one.worker),
            progress=progress.get(one.id),
        )
        for one in found
    ]
