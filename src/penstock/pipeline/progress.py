"""Progress of a run, from Spark's status tracker: tasks done of tasks known so far."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from penstock.errors import TemporaryError
from penstock.events import BatchProgressed, Bus
from penstock.messaging.threads import begin_thread
from penstock.pipeline.faults import SPARK_ERRORS

END_SECONDS = 0.5  # a look may hang on a Spark that is ending, and the run does not wait for it
LOOK_EVERY_SECONDS = 0.5


@contextmanager
def watched(spark: SparkSession, pipeline: str, attempt_id: str, bus: Bus) -> Iterator[None]:
    """Emit `BatchProgressed` while the block runs, from a thread of its own. The jobs' group is the attempt's id."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_EVERY_SECONDS):
            with suppress(*SPARK_ERRORS):  # a look that fails is no failure of the run
                tasks, done = _tasks(spark, attempt_id)
                if tasks:
                    bus.emit(BatchProgressed(pipeline=pipeline, attempt_id=attempt_id, tasks_done=done, tasks=tasks))

    thread: threading.Thread | None = None
    with suppress(TemporaryError):  # without a thread the run only shows no progress
        thread = begin_thread(look, name="penstock-progress")
    try:
        yield
    finally:
        ended.set()
        if thread is not None:
            thread.join(END_SECONDS)


def _tasks(spark: SparkSession, group: str) -> tuple[int, int]:
    tracker = spark.sparkContext.statusTracker()
    tasks = done = 0
    for job_id in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job else ():
            stage = tracker.getStageInfo(stage_id)
            if stage:
                tasks += stage.numTasks
                done += stage.numCompletedTasks
    return tasks, done
