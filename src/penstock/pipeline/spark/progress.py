"""Emit the progress of a run: tasks done of tasks known so far."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock.errors import RestartNeeded, TemporaryError
from penstock.events import BatchProgressed, Bus
from penstock.messaging.threads import begin_thread
from penstock.pipeline.spark.faults import SPARK_ERRORS
from penstock.pipeline.spark.runtime import SparkRuntime

END_SECONDS = 0.5  # a poll may hang on a Spark that is shutting down; the run does not wait for it
POLL_SECONDS = 0.5


@contextmanager
def watched(runtime: SparkRuntime, pipeline: str, tag: str, bus: Bus) -> Iterator[None]:
    """Emit `BatchProgressed` from a separate thread while the block runs. The tag is the attempt's id."""
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(POLL_SECONDS):
            with suppress(*SPARK_ERRORS, RestartNeeded):  # a failed poll does not fail the run
                done, known = runtime.tasks(tag)
                if known:
                    bus.emit(BatchProgressed(pipeline=pipeline, attempt_id=tag, tasks_done=done, tasks=known))

    thread: threading.Thread | None = None
    with suppress(TemporaryError):  # without a thread the run only shows no progress
        thread = begin_thread(poll, name="penstock-progress")
    try:
        yield
    finally:
        ended.set()
        if thread is not None:
            thread.join(END_SECONDS)
