"""Use a session without knowing its kind: classic, or of Spark Connect. Connect is imported only if it is used."""

from pyspark.sql import SparkSession, is_remote

from penstock.errors import ConfigurationError
from penstock.pipeline.spark.ctrl_c import ctrl_c_kept
from penstock.pipeline.spark.faults import START_ERRORS, explain
from penstock.pipeline.spark.runtime import SparkRuntime

_CONNECT = "pyspark.sql.connect"  # the package of Connect's classes, whose import needs gRPC


def runtime_of(spark: SparkSession) -> SparkRuntime:
    """Return the runtime of a session, classic or Connect."""
    if _is_connect(spark):
        from penstock.pipeline.spark.connect import connect_runtime

        return connect_runtime(spark)
    from penstock.pipeline.spark.classic import ClassicRuntime

    return ClassicRuntime(spark)


def is_session(value: object) -> bool:
    """Return True for a Spark session, classic or Connect."""
    return isinstance(value, SparkSession) or type(value).__module__ == "pyspark.sql.connect.session"


def has_session() -> bool:
    """Return True if this process has a session, ours or the user's, in whichever thread it was started."""
    if is_remote():
        from penstock.pipeline.spark import connect

        return connect.found_session() is not None
    from penstock.pipeline.spark import classic

    return classic.has_session()


def current_session() -> SparkSession:
    """Return the session of this process; PySpark makes one if there is none yet, as under spark-submit.

    Raises `ConfigurationError` if it cannot.
    """
    try:
        return _found_session() or _made_session()
    except START_ERRORS as error:
        raise ConfigurationError(f"PySpark has no session and could make none: {explain(error)}") from error


def leave_sibling(sibling: SparkSession, given: SparkSession, seconds: float) -> None:
    """Stop using a sibling. The given session is not affected. Takes up to ``seconds``.

    Classic Spark gets the given session as the active one again, and a Connect server releases the sibling, which it
    would keep for an hour.
    """
    if _is_connect(sibling):
        from penstock.pipeline.spark import connect

        connect.release_sibling(sibling, seconds=seconds)
    else:
        from penstock.pipeline.spark import classic

        classic.leave_sibling(sibling, given)


def end_session(spark: SparkSession, *, at_once: bool, seconds: float) -> None:
    """End a session of our own, or one that `current_session` made; give up after ``seconds``.

    ``at_once`` skips classic Spark's own shutdown.
    """
    if _is_connect(spark):
        from penstock.pipeline.spark import connect

        connect.end_session(spark, seconds=seconds)
    else:
        from penstock.pipeline.spark import classic

        classic.end_session(spark, at_once=at_once, seconds=seconds)


def _is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith(_CONNECT)


def _found_session() -> SparkSession | None:
    if is_remote():
        from penstock.pipeline.spark import connect

        return connect.found_session()
    from penstock.pipeline.spark import classic

    return classic.found_session()


def _made_session() -> SparkSession:
    from penstock.pipeline.spark import connect

    with ctrl_c_kept(), connect.mode_noted():
        return SparkSession.builder.getOrCreate()
