"""Check that Spark's Python workers can run Penstock, before anything is claimed.

Spark fixes the workers' Python when a session starts: from spark.pyspark.python, PYSPARK_PYTHON, or else `python3` on
PATH. Executors may run another version of Python, lack packages, or differ from host to host.

`survey` asks the workers with a function that needs nothing but Python. `check_workers` turns the replies into one
sentence, and then runs a job that uses Python as a pipeline does: in a data source and in an Arrow function.
`require_packages` checks the packages that only some pipelines need.
"""

import json
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession, functions
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import ConfigurationError, PenstockError
from penstock.pipeline.spark import survey_task
from penstock.pipeline.spark.faults import SPARK_ERRORS, explain, python_fault
from penstock.pipeline.spark.requirements import REQUIRED
from penstock.pipeline.spark.runtime import SparkRuntime
from penstock.pipeline.spark.session import runtime_of
from penstock.pipeline.spark.source import datasource

NAME = "penstock_check"
TASKS = "tasks"  # option: number of tasks
_COLUMNS = "task int, file string"
REMEDY = (
    "`penstock admin spark pack{options}` writes an archive with all packages for spark.archives; or install "
    "'penstock[pipeline{extras}]' on all hosts of the cluster for the Python that spark.pyspark.python "
    "(PYSPARK_PYTHON) names."
)

_checked: "WeakKeyDictionary[Any, set[str]]" = WeakKeyDictionary()  # names of packages by session; under _lock
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPython:
    """The Python of one worker."""

    host: str
    program: str  # sys.executable
    version: str  # such as 3.11.7
    packages: Mapping[str, str | None] = field(default_factory=dict)  # version by name; None: cannot be imported


def survey(spark: SparkSession, packages: Sequence[str]) -> Sequence[WorkerPython]:
    """Return the different Pythons of the workers, from a job with one task per slot and one more.

    Raises Spark's errors, also for workers with another minor version of Python than this process.
    """
    tasks = runtime_of(spark).tasks_at_once() + 1
    asked = json.dumps(list(packages))
    by_value: Any = cloudpickle  # untyped
    # The workers may lack Penstock. Never undone: another thread may be here, too, and only this function sends it.
    by_value.register_pickle_by_value(survey_task)
    reply = functions.udf(survey_task.reply, "string", useArrow=False)
    replies = spark.range(0, tasks, 1, tasks).select(reply(functions.lit(asked)).alias("reply")).collect()
    return [WorkerPython(**json.loads(text)) for text in sorted({row.reply for row in replies})]


def check_workers(spark: SparkSession) -> None:
    """Raise `ConfigurationError` if Spark's Python workers cannot run Penstock.

    Returns at once if all workers run this process's Python on this host.
    """
    runtime = runtime_of(spark)
    if _all_ours(runtime):
        return
    try:
        if not runtime.is_local:
            _check_replies(survey(spark, list(REQUIRED)), REQUIRED, runtime)
    except SPARK_ERRORS as error:
        raise refused(error, runtime) from error
    try:
        penstock_in_workers(spark)
    except SPARK_ERRORS as error:
        raise refused(error, runtime, when_planning=True) from error


def penstock_in_workers(spark: SparkSession) -> Sequence[str]:
    """Return the different folders and zip files from which the workers import Penstock.

    Runs a job through a data source and an Arrow function, as a pipeline does. Raises Spark's errors.
    """
    runtime = runtime_of(spark)
    spark.dataSource.register(CheckSource)
    tasks = 1 if runtime.is_local else runtime.tasks_at_once() + 1
    rows = spark.read.format(NAME).option(TASKS, tasks).load().mapInArrow(unchanged, _COLUMNS).collect()
    return sorted({row.file for row in rows})


def require_packages(spark: SparkSession, packages: Mapping[str, str], *, purpose: str, extra: str) -> None:
    """Check that all workers have packages that only ``purpose`` needs. Runs one small job per session.

    ``packages`` have their oldest versions; ``extra`` is the pip extra that installs them. Raises `ConfigurationError`.
    """
    runtime = runtime_of(spark)
    with _lock:
        is_known = packages.keys() <= _checked.get(spark, set())
    if is_known or _all_ours(runtime):
        return
    try:
        _check_replies(survey(spark, list(packages)), packages, runtime, purpose=purpose, extra=extra)
    except SPARK_ERRORS as error:
        raise refused(error, runtime) from error
    with _lock:
        _checked.setdefault(spark, set()).update(packages)


def package_faults(worker: WorkerPython, packages: Mapping[str, str]) -> Sequence[str]:
    """Return the defects of a worker's packages, as the ends of a sentence about its Python."""
    versions = worker.packages
    missing = [name for name in packages if versions.get(name) is None]
    old = [
        f"{name} {versions[name]} (at least {oldest} is needed)"
        for name, oldest in packages.items()
        if name not in missing and _is_older(str(versions[name]), oldest)
    ]
    return [f"{word} {', '.join(names)}" for word, names in (("lacks", missing), ("has", old)) if names]


def refused(error: Exception, runtime: SparkRuntime, *, when_planning: bool = False) -> PenstockError:
    """Return the error of a check. ``when_planning``: the executors' Python has run and has all packages."""
    fault = python_fault(error)
    if fault is None:
        return explain(error)
    if when_planning and not runtime.is_local:
        return ConfigurationError(
            "Spark plans reads on the driver's host with the program of the executors, which cannot run Penstock "
            f"there: {fault}. Install it there, too. A relative path, as in an archive, begins in the driver's working "
            "directory: unpack the archive there."
        )
    if not runtime.is_local:
        return ConfigurationError(
            f"The executors of {runtime.address} cannot run Penstock: {fault}; this process is Python "
            f"{'.'.join(map(str, sys.version_info[:3]))}. {remedy()}"
        )
    pythons = " and ".join(runtime.worker_pythons())
    return ConfigurationError(
        f"Spark's Python workers ({pythons}) cannot run Penstock: {fault}. Set PYSPARK_PYTHON to a Python that has it, "
        f"before the Spark session is started; this process runs {sys.executable}."
    )


def remedy(extra: str = "") -> str:
    """Return how the workers get all packages, with those of a pip extra."""
    return REMEDY.format(options=f" --extra {extra}" if extra else "", extras=f",{extra}" if extra else "")


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the batches as they are: the smallest Arrow function."""
    return batches


class CheckSource(DataSource):
    """Data source with one row per task: the folder or zip file of the worker's Penstock.

    Reading it makes a worker import all that the pipeline's own source needs.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return _COLUMNS

    def reader(self, schema: StructType) -> "CheckReader":  # noqa: ARG002 # Spark passes it by name
        return CheckReader(int(self.options[TASKS]))


class CheckReader(DataSourceReader):
    """Reader of `CheckSource`. Pickled to every task."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._source = datasource.NAME

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        yield partition.value, str(Path(__file__).parents[2])


def _check_replies(
    replies: Sequence[WorkerPython],
    packages: Mapping[str, str],
    runtime: SparkRuntime,
    *,
    purpose: str = "Penstock",
    extra: str = "",
) -> None:
    for worker in replies:
        faults = package_faults(worker, packages)
        if faults:
            raise ConfigurationError(
                f"The executors of {runtime.address} cannot run {purpose}: Python {worker.version} at {worker.program} "
                f"on the host {worker.host} {' and '.join(faults)}. {remedy(extra)}"
            )


def _is_older(version: str, oldest: str) -> bool:
    """Return True if a version is older than another. One without numbers is not."""
    numbers, oldest_numbers = ([int(text) for text in re.findall(r"\d+", one)[:3]] for one in (version, oldest))
    return bool(numbers) and numbers < oldest_numbers


def _all_ours(runtime: SparkRuntime) -> bool:
    return runtime.is_local and all(map(_is_ours, runtime.worker_pythons()))


def _is_ours(python: str) -> bool:
    """Return True for this process's own Python in the same environment."""
    found = shutil.which(python)
    own = Path(sys.executable)
    return found is not None and Path(found).parent == own.parent and Path(found).samefile(own)
