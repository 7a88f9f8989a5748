"""The settings without which a session must not write tables, and PySpark's loggers."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

REQUIRED_CONF: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # pyiceberg refuses INT96, Spark's default, and INT96 carries no statistics.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # LEGACY would write old dates as days of another calendar, which only Spark could read.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # The type of an exception in a Python worker says if an object or the machine is at fault.
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "false",
    # Files are listed in a manifest, so nothing reads the marker file.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # The ledger's commit makes files count, so the second rename of version 1 protects nothing.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
}

# PySpark logs every failed query to stderr a second time, as one JSON line of many kilobytes.
QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

_HADOOP = "spark.hadoop."  # prefix; a running session takes Hadoop's settings without it


def set_required(spark: SparkSession) -> None:
    """Set `REQUIRED_CONF` in a running session, which must be ours."""
    for key, value in REQUIRED_CONF.items():
        spark.conf.set(key.removeprefix(_HADOOP), value)


@contextmanager
def silenced_unless_failed(*loggers: str) -> Iterator[None]:
    """Turn loggers off in this process; if the block raises, give them their levels back."""
    before = {name: logging.getLogger(name).level for name in loggers}
    for name in loggers:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    except BaseException:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
        raise
