"""Find out whether Spark's Python workers can run Penstock, before anything is claimed.

Spark fixes the workers' Python when a session starts: from spark.pyspark.python, PYSPARK_PYTHON, or else `python3` on
PATH. Executors may run another version of Python, lack packages, or differ from host to host.

`survey` asks the workers with a function that needs nothing but Python. `check_workers` turns the replies into one
sentence, and then runs a job through every path on which a pipeline uses Python.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession, functions
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import ConfigurationError, PenstockError
from penstock.pipeline.spark import survey_task
from penstock.pipeline.spark.faults import SPARK_ERRORS, explain, python_fault
from penstock.pipeline.spark.runtime import SparkRuntime
from penstock.pipeline.spark.session import runtime_of
from penstock.pipeline.spark.source import datasource

NAME = "penstock_check"
TASKS = "tasks"  # option: number of tasks
REQUIRED = ("pyarrow", "numpy", "zstandard")  # what tasks import besides Penstock, which is shipped
FOR_S3 = ("obstore",)  # the same, for sources and tables in S3
REMEDY = (
    "`penstock spark pack` writes them into an archive for --archives; or install 'penstock[pipeline]' on all hosts of "
    "the cluster for the Python that spark.pyspark.python (PYSPARK_PYTHON) names."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPython:
    """The Python of one worker."""

    host: str
    program: str  # sys.executable
    version: str  # such as 3.11.7
    packages: Mapping[str, str | None] = field(default_factory=dict)  # version by name; None: cannot be imported


def survey(spark: SparkSession, packages: Sequence[str]) -> Sequence[WorkerPython]:
    """Return the different Pythons of the workers that a job with one task per slot meets.

    Raises Spark's errors, also for workers with another minor version of Python than this process.
    """
    tasks = runtime_of(spark).tasks_at_once() + 1
    asked = json.dumps(list(packages))
    by_value: Any = cloudpickle  # untyped
    by_value.register_pickle_by_value(survey_task)  # the workers may lack Penstock
    try:
        reply = functions.udf(survey_task.reply, "string", useArrow=False)
        replies = spark.range(0, tasks, 1, tasks).select(reply(functions.lit(asked)).alias("reply")).collect()
    finally:
        by_value.unregister_pickle_by_value(survey_task)
    return [WorkerPython(**json.loads(text)) for text in sorted({row.reply for row in replies})]


def check_workers(spark: SparkSession, *, uses_s3: bool = False) -> None:
    """Raise `ConfigurationError` if Spark's Python workers cannot run Penstock.

    Returns at once if all workers run this process's Python on this host.
    """
    runtime = runtime_of(spark)
    if runtime.is_local and all(map(_is_ours, runtime.worker_pythons())):
        return
    try:
        if not runtime.is_local:
            _check_replies(survey(spark, (*REQUIRED, *FOR_S3) if uses_s3 else REQUIRED), runtime)
        spark.dataSource.register(CheckSource)
        tasks = 1 if runtime.is_local else runtime.tasks_at_once() + 1
        spark.read.format(NAME).option(TASKS, tasks).load().mapInArrow(_same, "task int").collect()
    except SPARK_ERRORS as error:
        raise _refused(error, runtime) from error


def try_out(spark: SparkSession, folder: Path) -> None:
    """Send numbers through Python workers and, if they run on this host, write them as Parquet below ``folder``.

    Raises `ConfigurationError`.
    """
    try:
        numbers = spark.range(100).mapInArrow(_same, "id long")
        if runtime_of(spark).is_local:
            numbers.write.parquet(str(folder / "try"))
        else:
            numbers.collect()
    except SPARK_ERRORS as error:
        raise ConfigurationError(f"Spark started and did not work: {explain(error)}") from error


class CheckSource(DataSource):
    """Data source with one row per task. Reading it makes a worker import all that the pipeline's own source needs."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "task int"

    def reader(self, schema: StructType) -> "CheckReader":  # noqa: ARG002 # Spark passes it by name
        return CheckReader(int(self.options[TASKS]))


class CheckReader(DataSourceReader):
    """Reader of `CheckSource`. Pickled to every task."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._source = datasource.NAME

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (partition.value,)


def _check_replies(replies: Sequence[WorkerPython], runtime: SparkRuntime) -> None:
    for worker in replies:
        missing = [name for name, version in worker.packages.items() if version is None]
        if missing:
            raise ConfigurationError(
                f"The executors of {runtime.place} cannot run Penstock: Python {worker.version} at {worker.program} on "
                f"the host {worker.host} lacks {', '.join(missing)}. {REMEDY}"
            )


def _refused(error: Exception, runtime: SparkRuntime) -> PenstockError:
    fault = python_fault(error)
    if fault is None:
        return explain(error)
    if not runtime.is_local:
        return ConfigurationError(
            f"The executors of {runtime.place} cannot run Penstock: {fault}; this process is Python "
            f"{'.'.join(map(str, sys.version_info[:3]))}. {REMEDY}"
        )
    pythons = " and ".join(runtime.worker_pythons())
    return ConfigurationError(
        f"Spark's Python workers ({pythons}) cannot run Penstock: {fault}. Set PYSPARK_PYTHON to a Python that has it, "
        f"before the Spark session is started; this process runs {sys.executable}."
    )


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _is_ours(python: str) -> bool:
    """Return True for this process's own Python in the same environment."""
    found = shutil.which(python)
    own = Path(sys.executable)
    return found is not None and Path(found).parent == own.parent and Path(found).samefile(own)
