"""Jobs of a reconcile: told of while they run, cancelled from outside, and their failures in our own words."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from penstock.events import BatchProgressed, Bus, Event, ReconcileProgressed
from penstock.pipeline.faults import SPARK_ERRORS, explain
from penstock.pipeline.progress import watched

POOL = "penstock-reconcile"  # of Spark's scheduler, so that batches do not wait behind it
_POOL_PROPERTY = "spark.scheduler.pool"


@contextmanager
def jobs(spark: SparkSession, tag: str, pipeline: str, bus: Bus) -> Iterator[None]:
    """Run jobs of this thread under a tag of their own, in a pool of their own. Raises Spark's failures as ours."""
    context = spark.sparkContext
    context.setJobGroup(tag, f"penstock reconcile {pipeline}")
    context.addJobTag(tag)
    pool = context.getLocalProperty(_POOL_PROPERTY) or "default"
    context.setLocalProperty(_POOL_PROPERTY, POOL)
    try:
        with watched(spark, pipeline, tag, Bus(_telling(bus))):
            yield
    except SPARK_ERRORS as error:
        raise explain(error) from error
    finally:
        context.removeJobTag(tag)
        context.setLocalProperty(_POOL_PROPERTY, pool)


@contextmanager
def cancelled_when(asked: threading.Event, spark: SparkSession, tag: str) -> Iterator[None]:
    """Cancel the jobs under that tag as soon as the event is set, for as long as the block lasts."""
    ended = threading.Event()

    def wait() -> None:
        asked.wait()
        while not ended.is_set():  # again: what is not yet a job cannot be cancelled
            spark.sparkContext.cancelJobsWithTag(tag)
            ended.wait(0.2)

    threading.Thread(target=wait, name="penstock-reconcile-cancel", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        asked.set()


def _telling(bus: Bus) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        if isinstance(event, BatchProgressed):
            bus.emit(
                ReconcileProgressed(pipeline=event.pipeline, what="tasks", done=event.tasks_done, total=event.tasks)
            )

    return tell
