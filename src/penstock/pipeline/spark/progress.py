"""Progress of a run, from Spark's status tracker: tasks done of tasks known so far.

Where a run can be looked at: in Spark's own pages while the application is there, in its history server for longer.

A page of the application ends with it. With an event log, and a history server that reads it, the same page stays; then
that is the address that is kept. Both are Spark's settings, so that a session that is handed in says it by itself.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from penstock.errors import TemporaryError
from penstock.events import BatchProgressed, Bus
from penstock.messaging.threads import begin_thread
from penstock.pipeline.spark.faults import SPARK_ERRORS

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


HISTORY_URL = "spark.penstock.history.url"  # a history server, or its page of an application with {app_id} in it
APP_ID = "{app_id}"
_HISTORY = f"/history/{APP_ID}"  # the server's own path of an application


def run_url(spark: SparkSession, attempt_id: str) -> str | None:
    """The page of the first Spark job of an attempt; None where nobody shows one: the UI is off, and there is no event
    log or no history server is named."""
    root = _root(spark)
    if root is None:
        return None
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(attempt_id)
    return f"{root}/jobs/job/?id={min(jobs)}" if jobs else f"{root}/jobs/"


def _root(spark: SparkSession) -> str | None:
    context = spark.sparkContext
    conf = context.getConf()
    history_url = conf.get(HISTORY_URL)
    if history_url and conf.get("spark.eventLog.enabled", "false") == "true":
        pattern = history_url if APP_ID in history_url else history_url.rstrip("/") + _HISTORY
        return pattern.replace(APP_ID, context.applicationId or "").rstrip("/")
    return context.uiWebUrl
