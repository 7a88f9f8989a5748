"""Progress of a run and the page that shows it.

Progress is tasks done of tasks known so far, from Spark's status tracker. The page is in Spark's UI, which ends with
the application. If an event log is written and a history server is named, the page is the one in the history server,
which stays. Both are Spark settings, so a session passed in by the user brings its own.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from penstock.errors import TemporaryError
from penstock.events import BatchProgressed, Bus
from penstock.messaging.threads import begin_thread
from penstock.pipeline.spark.faults import SPARK_ERRORS

END_SECONDS = 0.5  # a poll may hang on a Spark that is shutting down; the run does not wait for it
POLL_SECONDS = 0.5

# a history server, or the pattern of an application's page with {app_id} in it
HISTORY_URL = "spark.penstock.history.url"
APP_ID = "{app_id}"
_HISTORY = f"/history/{APP_ID}"  # the history server's own path of an application


@contextmanager
def watched(spark: SparkSession, pipeline: str, attempt_id: str, bus: Bus) -> Iterator[None]:
    """Emit `BatchProgressed` from a separate thread while the block runs. The jobs' group is the attempt's id."""
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(POLL_SECONDS):
            with suppress(*SPARK_ERRORS):  # a failed poll does not fail the run
                tasks, done = _tasks(spark, attempt_id)
                if tasks:
                    bus.emit(BatchProgressed(pipeline=pipeline, attempt_id=attempt_id, tasks_done=done, tasks=tasks))

    thread: threading.Thread | None = None
    with suppress(TemporaryError):  # without a thread the run only shows no progress
        thread = begin_thread(poll, name="penstock-progress")
    try:
        yield
    finally:
        ended.set()
        if thread is not None:
            thread.join(END_SECONDS)


def run_url(spark: SparkSession, attempt_id: str) -> str | None:
    """Return the page of the first Spark job of an attempt.

    Returns None if no page exists: the UI is off, and there is no event log or no history server is named.
    """
    root = _root(spark)
    if root is None:
        return None
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(attempt_id)
    return f"{root}/jobs/job/?id={min(jobs)}" if jobs else f"{root}/jobs/"


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


def _root(spark: SparkSession) -> str | None:
    context = spark.sparkContext
    conf = context.getConf()
    history_url = conf.get(HISTORY_URL)
    if history_url and conf.get("spark.eventLog.enabled", "false") == "true":
        pattern = history_url if APP_ID in history_url else history_url.rstrip("/") + _HISTORY
        return pattern.replace(APP_ID, context.applicationId or "").rstrip("/")
    return context.uiWebUrl
