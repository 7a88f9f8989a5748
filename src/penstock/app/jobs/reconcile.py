"""The job that reconciles a worker's pipelines and object handlers with their sources.

The ledger records when each was reconciled. A reconcile that fails after the worker was asked to stop counts as
cancelled.
"""

from collections.abc import Callable, Sequence
from functools import partial

from penstock.app.jobs.elected import CHECK_SECONDS_MAX, CHECKS_A_PERIOD, ElectedJob, JobTask, TaskRun, elected_job
from penstock.app.reconcile_target import ReconcileTarget
from penstock.app.service import ServiceContext
from penstock.app.system_health import has_left
from penstock.messaging.broker import Broker
from penstock.worker.shutdown import StopSignal

NAME = "reconcile"
CLAIMED_AS = "penstock-reconcile"
PATIENCE_PERIODS = 4  # how long to wait for messages of the previous reconcile to leave the queue

Reconcile = Callable[[ReconcileTarget, StopSignal], object]  # reconciles one target until it is done or stopped


def reconcile_job(
    targets: Sequence[ReconcileTarget], reconcile: Reconcile, context: ServiceContext, *, every_seconds: float
) -> ElectedJob:
    """Return the job for these targets. Each is due by its last reconcile, also one that a person started."""
    return elected_job(
        NAME,
        [
            JobTask(
                name=target.pipeline,
                run=partial(_run, reconcile, target),
                is_due=partial(is_due, target, every_seconds=every_seconds),
            )
            for target in targets
        ],
        context,
        claimed_as=CLAIMED_AS,
        every_seconds=None,
        check_seconds=min(every_seconds / CHECKS_A_PERIOD, CHECK_SECONDS_MAX),
    )


def is_due(target: ReconcileTarget, *, every_seconds: float) -> bool:
    """Return True if a reconcile is due by the ledger's clock.

    Not while messages of the previous one still wait in the queue: all of them would be sent again.
    """
    seconds = target.ledger.seconds_since_reconciliation(target.pipeline)
    if seconds is None:
        return True
    if seconds < every_seconds:
        return False
    last = target.ledger.reconciliation(target.pipeline)
    if last is None or not last.sent or seconds >= PATIENCE_PERIODS * every_seconds:
        return True
    return has_settled(target.broker, target.queue, seconds=seconds)


def has_settled(broker: Broker, queue: str, *, seconds: float) -> bool:
    """Return True if no message is left in the queue that was there ``seconds`` ago. In doubt, False."""
    return has_left(broker.stats(queue), seconds=seconds)


def _run(reconcile: Reconcile, target: ReconcileTarget, task_run: TaskRun) -> None:
    reconcile(target, task_run.stop)
