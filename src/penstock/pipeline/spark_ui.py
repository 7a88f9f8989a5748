"""Where a run can be looked at: in Spark's own pages while the application is there, in its history server for longer.

A page of the application ends with it. With an event log, and a history server that reads it, the same page stays; then
that is the address that is kept. Both are Spark's settings, so that a session that is handed in says it by itself.
"""

from pyspark.sql import SparkSession

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
