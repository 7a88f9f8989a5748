"""Progress of a run, from Spark's status tracker: tasks done of tasks known so far."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from penstock.events import BatchProgressed, Bus
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

    thread = threading.Thread(target=look, name="penstock-progress", daemon=True)
    looking = False
    with suppress(RuntimeError):  # the machine has no more threads for us: nobody sees the run's progress
        thread.start()
        looking = True
    try:
        yield
    finally:
        ended.set()
        if looking:
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
