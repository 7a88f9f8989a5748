"""The runtime of a session, classic or Connect, and the session that this process has already."""

from pyspark.sql import SparkSession

from penstock.errors import ConfigurationError
from penstock.pipeline.spark.faults import START_ERRORS, explain
from penstock.pipeline.spark.runtime import SparkRuntime

_CONNECT = "pyspark.sql.connect"  # the package of Connect's classes, whose import needs gRPC


def runtime_of(spark: SparkSession) -> SparkRuntime:
    """Return the runtime of a session, classic or Connect."""
    if type(spark).__module__.startswith(_CONNECT):
        from penstock.pipeline.spark.connect import connect_runtime

        return connect_runtime(spark)
    from penstock.pipeline.spark.classic import ClassicRuntime

    return ClassicRuntime(spark)


def tasks_at_once(spark: SparkSession) -> int:
    """Return the number of tasks that the session runs at once."""
    return runtime_of(spark).tasks_at_once()


def is_session(value: object) -> bool:
    """Return True for a Spark session, classic or Connect."""
    return isinstance(value, SparkSession) or type(value).__module__ == "pyspark.sql.connect.session"


def session_is_there() -> bool:
    """Return True if this process has a session that was not stopped, ours or the user's."""
    active = SparkSession.getActiveSession()
    return active is not None and not getattr(active, "is_stopped", False)


def current_session() -> SparkSession:
    """Return the session of this process; PySpark makes one if there is none yet, as under spark-submit.

    Raises `ConfigurationError` if it cannot.
    """
    try:
        return SparkSession.builder.getOrCreate()
    except START_ERRORS as error:
        raise ConfigurationError(f"PySpark has no session and could make none: {explain(error)}") from error


def end(spark: SparkSession, at_once: bool, seconds: float) -> None:
    """End a session that `current_session` made."""
    if type(spark).__module__.startswith(_CONNECT):
        from penstock.pipeline.spark import connect

        connect.end_session(spark, seconds=seconds)
    else:
        from penstock.pipeline.spark import classic

        classic.end_session(spark, at_once=at_once, seconds=seconds)


def release(sibling: SparkSession, seconds: float) -> None:
    """Free a session that `SparkRuntime.sibling` made. The session that it was made from is not affected."""
    if type(sibling).__module__.startswith(_CONNECT):
        from penstock.pipeline.spark import connect

        connect.release_sibling(sibling, seconds=seconds)  # otherwise the server keeps it for an hour
