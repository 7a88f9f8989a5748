"""Check that Spark's Python workers can run Penstock, before anything is claimed.

Which Python they are is settled when a session is started: by PYSPARK_PYTHON, or else `python3` of the PATH. A session
that was handed in may so have workers without Penstock, and hosts of a cluster may lack packages.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import ConfigurationError
from penstock.pipeline.faults import SPARK_ERRORS, explain, python_fault
from penstock.pipeline.session import cores, runs_here
from penstock.pipeline.source import datasource

NAME = "penstock_check"
TASKS = "tasks"  # option: how many


def check_python(spark: SparkSession) -> None:
    """Plan and run a small job by all the ways in which a pipeline uses Python; return at once if they are this Python.

    Raises `ConfigurationError` where the workers cannot run Penstock.
    """
    if runs_here(spark) and all(map(_is_ours, _pythons(spark))):
        return
    spark.dataSource.register(CheckSource)
    tasks = 1 if runs_here(spark) else cores(spark) + 1
    try:
        spark.read.format(NAME).option(TASKS, tasks).load().mapInArrow(_same, "task int").collect()
    except SPARK_ERRORS as error:
        fault = python_fault(error)
        if fault is None:
            raise explain(error) from error
        where = "" if runs_here(spark) else ", on all hosts of the cluster,"
        raise ConfigurationError(
            f"Spark's Python workers ({' and '.join(_pythons(spark))}) cannot run Penstock: {fault}. Set PYSPARK_PYTHON"
            f"{where} to a Python that has it, before the Spark session is started; this process runs {sys.executable}."
        ) from error


class CheckSource(DataSource):
    """One row a task; to read it, a worker imports all that the pipeline's own source needs."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "task int"

    def reader(self, schema: StructType) -> "CheckReader":  # noqa: ARG002 # Spark passes it by name
        return CheckReader(int(self.options[TASKS]))


class CheckReader(DataSourceReader):
    """Travels to every task."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._source = datasource.NAME

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (partition.value,)


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _pythons(spark: SparkSession) -> Sequence[str]:
    """The programs that Spark starts: for tasks, and for planning beside the driver's JVM."""
    tasks = spark.sparkContext.pythonExec
    return sorted({tasks, os.environ.get("PYSPARK_DRIVER_PYTHON", tasks)})


def _is_ours(python: str) -> bool:
    """Return True for this process's own Python, of the same environment."""
    found = shutil.which(python)
    own = Path(sys.executable)
    return found is not None and Path(found).parent == own.parent and Path(found).samefile(own)
