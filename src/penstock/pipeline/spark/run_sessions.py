"""A session for each run: runs that overlap must not share one.

Temporary views and functions belong to a session. A transform that registers one by a fixed name, and then reads it,
would read the rows of another batch if that batch's transform did the same in between.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from penstock.errors import ConfigurationError
from penstock.pipeline.spark.faults import SPARK_ERRORS
from penstock.pipeline.spark.session import leave_sibling, runtime_of

LEAVE_SECONDS = 2.0  # for a Spark Connect server to free a session
CHECK_SECONDS = 0.5  # between two checks of a run that waits for its session

# Spark Connect before 4.1 has no siblings, in the client or in the server.
NO_SIBLING: tuple[type[Exception], ...] = (ConfigurationError, *SPARK_ERRORS)

# Ids of the sessions in which a run is going. The pipelines of a worker share one session. Written under the condition.
_taken: set[int] = set()
_freed = threading.Condition()


@contextmanager
def run_session(spark: SparkSession, check_cancelled: Callable[[], None]) -> Iterator[SparkSession]:
    """Yield a session that no other run uses: this one, or else a sibling of it.

    If this Spark offers no siblings, wait until the other run has ended; ``check_cancelled`` may raise meanwhile.
    """
    if _take(spark):
        with _held(spark):
            yield spark
        return
    try:
        sibling = runtime_of(spark).sibling()
    except NO_SIBLING:
        _wait_for(spark, check_cancelled)
        with _held(spark):
            yield spark
        return
    try:
        yield sibling
    finally:
        leave_sibling(sibling, spark, LEAVE_SECONDS)


def _take(spark: SparkSession) -> bool:
    with _freed:
        is_free = id(spark) not in _taken
        _taken.add(id(spark))
    return is_free


def _wait_for(spark: SparkSession, check_cancelled: Callable[[], None]) -> None:
    while not _take(spark):
        with _freed:
            if id(spark) in _taken:
                _freed.wait(CHECK_SECONDS)
        check_cancelled()


@contextmanager
def _held(spark: SparkSession) -> Iterator[None]:
    try:
        yield
    finally:
        with _freed:
            _taken.discard(id(spark))
            _freed.notify_all()
