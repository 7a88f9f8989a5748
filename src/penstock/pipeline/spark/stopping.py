"""Watch the jobs that check a cluster, which a full one may begin hours later: report it, and cancel at a stop."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from penstock.errors import RestartNeeded, TemporaryError
from penstock.messaging.threads import begin_thread
from penstock.pipeline.spark.faults import SPARK_ERRORS
from penstock.pipeline.spark.runtime import SparkRuntime

POLL_SECONDS = 0.5
REPORT_AFTER_SECONDS = 20.0  # executors that start take some seconds
DESCRIPTION = "penstock checks the cluster"


@contextmanager
def cancelled_at_stop(
    runtime: SparkRuntime, requested: Callable[[], bool], report_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Cancel the Spark jobs that this thread starts in the block, once ``requested`` returns True.

    Calls ``report_wait`` once, from another thread, if the block takes longer than `REPORT_AFTER_SECONDS`. Does nothing
    if all tasks run in this process: they begin at once.
    """
    if runtime.is_local:
        yield
        return
    ended, tag = threading.Event(), f"penstock-check-{uuid4().hex}"

    def poll() -> None:
        report_at, is_reported = time.monotonic() + REPORT_AFTER_SECONDS, False
        while not ended.wait(POLL_SECONDS):
            if not is_reported and time.monotonic() >= report_at:
                is_reported = True
                report_wait()
            if requested():  # again and again: a job that starts later is not covered by the first cancellation
                with suppress(*SPARK_ERRORS, RestartNeeded):
                    runtime.cancel(tag)

    with suppress(TemporaryError):  # without a thread the jobs only run to their end
        begin_thread(poll, name="penstock-cancel")
    try:
        with runtime.tagged(tag, DESCRIPTION):
            yield
    finally:
        ended.set()
