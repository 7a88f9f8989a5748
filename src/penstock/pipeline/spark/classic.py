"""Sessions of classic Spark: a driver in this process, which talks to its JVM through Py4J.

`start_session` launches a JVM of our own, `ClassicRuntime` operates a session, ours or the user's.
"""

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from penstock.errors import ConfigurationError, RestartNeeded
from penstock.pipeline.spark.conf import REQUIRED_CONF, set_required
from penstock.pipeline.spark.faults import SPARK_ERRORS, START_ERRORS, explain
from penstock.pipeline.spark.runtime import HISTORY_URL, history_root

# PySpark logs every failed query to stderr a second time, as one JSON line of many kilobytes.
# Py4J logs every call that a stop breaks off, with a traceback, although it also raises.
PY4J = "py4j"
QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

WORKER_PYTHON = "spark.pyspark.python"
DRIVER_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
_POOL_PROPERTY = "spark.scheduler.pool"

LOGGED_BYTES_MAX = 1 << 20  # read from the log to find why Spark did not start

LOCAL_DRIVER_MEMORY = "2g"

_LOCAL = re.compile(r"local(\[\s*(?:\d+|\*)\s*(?:,\s*(?P<attempts>\d+)\s*)?\])?")

# Launch errors as Java, its virtual machine and Spark print them.
_COMPLAINT = re.compile(
    r"^(?:Exception in thread \"[^\"]*\" |Error: |Error occurred during initialization of VM\s+|Caused by: )"
    r"(?:(?:[\w$]+\.)+[\w$]+: )?(?P<text>\S.*)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """The master of a Spark session and its resources. ``scratch`` and ``log`` are local paths of this process."""

    master: str
    java_home: Path
    scratch: Path
    log: Path
    driver_memory: str | None = None  # None: the cluster's default; in local mode LOCAL_DRIVER_MEMORY
    extra_conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Return True if tasks run in the JVM of this process."""
        return _LOCAL.fullmatch(self.master) is not None


def start_session(settings: SessionSettings) -> SparkSession:
    """Launch a JVM and open a session in it. The JVM's output goes to the log file, not to the terminal.

    Raises `ConfigurationError`, naming the log, if Spark does not start.
    """
    if "," in str(settings.scratch):  # Spark would split it into several folders
        raise ConfigurationError(
            f"Spark cannot keep its scratch files in {settings.scratch}, since there is a comma in that path; name a "
            "folder without one for the state (--data-dir)."
        )
    settings.scratch.mkdir(parents=True, exist_ok=True)
    settings.log.parent.mkdir(parents=True, exist_ok=True)
    os.environ.update(_environment(settings))
    for name in (*QUERY_LOGGERS, PY4J):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_not_of_py4j)  # Py4J logs a broken connection through the root logger
    conf = _conf(settings)
    folder = _planning_folder(settings, conf)
    gateway: Any = None
    logged_bytes = settings.log.stat().st_size if settings.log.exists() else 0
    try:
        with settings.log.open("ab") as log:
            gateway = launch_gateway(conf, popen_kwargs={"stdout": log, "stderr": log, "cwd": folder})
        if not settings.is_local:
            _use_configured_python(gateway)
        with _ctrl_c_kept():
            return SparkSession(SparkContext(gateway=gateway, conf=conf))
    except START_ERRORS as error:
        if gateway is not None:
            gateway.proc.stdin.close()  # the JVM watches its stdin and exits when it closes
        text = _logged_since(settings.log, logged_bytes)
        raise ConfigurationError(
            f"Spark did not start: {complaint(text) or explain(error)} Its log is {settings.log}; `penstock "
            "doctor` looks at Java and Spark."
        ) from error


def complaint(log: str) -> str | None:
    """Return why a JVM ended, as a sentence: the first exception or error in its log. None if there is none."""
    found = _COMPLAINT.search(log)
    return None if found is None else f"{found['text'].rstrip('. ')}."


def end_session(spark: SparkSession, *, at_once: bool, seconds: float) -> None:
    """End a session of our own and its JVM; kill a JVM that does not exit within ``seconds``.

    ``at_once`` skips Spark's own shutdown, which loses nothing: all committed work is in the ledger. A JVM that started
    this process (spark-submit) is stopped, and exits after this process.
    """
    gateway: Any = spark.sparkContext._gateway  # PySpark keeps the process it launched in an untyped attribute
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    accumulators: Any = spark.sparkContext._accumulatorServer
    accumulators.handle_error = lambda *_: None  # it would print a traceback for the connection that is cut here
    if not at_once or process is None:
        stopping = threading.Thread(target=_stop_quietly, args=(spark,), name="penstock-spark-stop", daemon=True)
        stopping.start()
        stopping.join(seconds)
    if process is None:
        return
    if process.stdin is not None:
        process.stdin.close()  # the JVM watches its stdin and exits when it closes
    if at_once:
        process.kill()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()


class ClassicRuntime:
    """A `penstock.pipeline.spark.runtime.SparkRuntime` of classic Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context = spark.sparkContext

    @property
    def place(self) -> str:
        return self._context.master or ""

    @property
    def is_local(self) -> bool:
        return _LOCAL.fullmatch(self.place) is not None

    @property
    def tasks_run_once(self) -> bool:
        found = _LOCAL.fullmatch(self.place)
        return found is not None and found["attempts"] in (None, "1")

    def tasks_at_once(self) -> int:
        return max(1, self._context.defaultParallelism)

    def executors(self) -> int:
        context: Any = self._context._jsc  # PySpark has no API for this
        return max(1, int(context.sc().getExecutorMemoryStatus().size()) - 1)  # without the driver

    def worker_pythons(self) -> Sequence[str]:
        tasks = self._context.pythonExec
        return sorted({tasks, os.environ.get("PYSPARK_DRIVER_PYTHON", tasks)})

    @contextmanager
    def tagged(self, tag: str, description: str, *, pool: str | None = None) -> Iterator[None]:
        context = self._context
        context.setJobGroup(tag, description)  # for `tasks` and `page`
        context.addJobTag(tag)  # for `cancel`
        pool_before = context.getLocalProperty(_POOL_PROPERTY) or "default"
        if pool is not None:
            context.setLocalProperty(_POOL_PROPERTY, pool)
        try:
            yield
        finally:
            with suppress(*SPARK_ERRORS):  # Spark has ended; the block's own result or error matters more
                context.removeJobTag(tag)
                if pool is not None:
                    context.setLocalProperty(_POOL_PROPERTY, pool_before)

    def cancel(self, tag: str) -> None:
        # Measured: SparkSession.interruptTag does nothing when called from another thread; cancelJobsWithTag works.
        self._context.cancelJobsWithTag(tag)

    def tasks(self, tag: str) -> tuple[int, int]:
        tracker = self._context.statusTracker()
        done = known = 0
        for job_id in tracker.getJobIdsForGroup(tag):
            job = tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job else ():
                stage = tracker.getStageInfo(stage_id)
                if stage:
                    known += stage.numTasks
                    done += stage.numCompletedTasks
        return done, known

    def page(self, tag: str) -> str | None:
        conf = self._context.getConf()
        is_logged = conf.get("spark.eventLog.enabled", "false") == "true"
        root = (
            history_root(conf.get(HISTORY_URL), is_logged=is_logged, app_id=self._context.applicationId)
            or self._context.uiWebUrl
        )
        if root is None:
            return None
        jobs = self._context.statusTracker().getJobIdsForGroup(tag)
        return f"{root}/jobs/job/?id={min(jobs)}" if jobs else f"{root}/jobs/"

    def check(self) -> None:
        gateway: Any = self._context._gateway  # untyped, as in end_session
        process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)  # None: the JVM started this process
        ended = None if process is None else process.poll()
        if ended is not None:
            how = f"with exit code {ended}" if ended >= 0 else f"by {signal.Signals(-ended).name}"
            raise RestartNeeded(f"Spark's JVM ended {how}. Nothing is lost; run it again.")

    def add_package(self, archive: Path) -> None:
        self._context.addPyFile(str(archive))

    def sibling(self) -> SparkSession:
        java: Any = self._spark._jsparkSession  # PySpark offers only newSession, which drops settings and views
        sibling = SparkSession(self._context, java.cloneSession())
        set_required(sibling)
        return sibling


def _stop_quietly(spark: SparkSession) -> None:
    """Stop a session. If its JVM ends meanwhile, PySpark's calls fail, which loses nothing."""
    warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM process", RuntimeWarning)
    with suppress(*SPARK_ERRORS, OSError):
        spark.stop()


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != PY4J


def _logged_since(log: Path, start_bytes: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(start_bytes)
            return file.read(LOGGED_BYTES_MAX).decode("utf-8", errors="replace")
    except OSError:
        return ""


@contextmanager
def _ctrl_c_kept() -> Iterator[None]:
    """Restore the SIGINT handler after the block.

    PySpark installs its own, which cancels all jobs inside the handler and raises KeyboardInterrupt at any point.
    Restoring the previous handler keeps an orderly stop possible.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _environment(settings: SessionSettings) -> dict[str, str]:
    """Return the variables that Spark's launcher and PySpark read only from the environment.

    On a cluster, the Python of its hosts is the user's choice: spark.pyspark.python, or PYSPARK_PYTHON as it is set.
    """
    environment = {"JAVA_HOME": str(settings.java_home), "PYSPARK_DRIVER_PYTHON": sys.executable}
    if not settings.is_local:
        return environment
    return environment | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def _use_configured_python(gateway: Any) -> None:
    """Let spark.pyspark.python win over PYSPARK_PYTHON, as spark-submit does. PySpark itself reads only the variable.

    The setting may be in spark-defaults.conf, which only the JVM has read.
    """
    program = str(gateway.jvm.SparkConf().get(WORKER_PYTHON, ""))
    if program:
        os.environ["PYSPARK_PYTHON"] = program


def _planning_folder(settings: SessionSettings, conf: SparkConf) -> Path | None:
    """Return the folder to start the JVM in if the executors' Python is a relative path, as in an archive; else None.

    Spark plans reads on this host with the same path. In this folder it leads to this process's own Python. Java's own
    relative paths still begin in the current folder.
    """
    program = Path(settings.extra_conf.get(WORKER_PYTHON) or os.environ.get("PYSPARK_PYTHON", ""))
    if settings.is_local or program.is_absolute() or len(program.parts) < 2 or ".." in program.parts:
        return None
    folder = settings.scratch / "planning"
    (folder / program).parent.mkdir(parents=True, exist_ok=True)
    (folder / program).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (folder / program).chmod(0o755)
    user_dir = shlex.quote(f"-Duser.dir={Path.cwd()}")
    conf.set(DRIVER_JAVA_OPTIONS, f"{conf.get(DRIVER_JAVA_OPTIONS, '')} {user_dir}".strip())
    return folder


def _conf(settings: SessionSettings) -> SparkConf:
    """Return the settings with which the JVM is launched. They override the cluster's own (spark-defaults.conf)."""
    conf = SparkConf(loadDefaults=False)
    for key, value in {**_own_conf(settings), **settings.extra_conf, **REQUIRED_CONF}.items():
        conf.set(key, value)
    return conf


def _own_conf(settings: SessionSettings) -> dict[str, str]:
    """Return what we choose ourselves: on a cluster almost nothing, since its defaults fit it better."""
    if settings.is_local:
        return _local_conf(settings)
    memory = {} if settings.driver_memory is None else {"spark.driver.memory": settings.driver_memory}
    return {"spark.master": settings.master, "spark.app.name": "penstock", **memory}


def _local_conf(settings: SessionSettings) -> dict[str, str]:
    return {
        "spark.master": settings.master,
        "spark.app.name": "penstock",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": settings.driver_memory or LOCAL_DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": _log_option(),
        "spark.scheduler.mode": "FAIR",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.warehouse.dir": (settings.scratch / "warehouse").as_uri(),
        "spark.local.dir": str(settings.scratch),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 1)),
    }


def _log_option() -> str:
    log4j = Path(str(files("penstock.pipeline.spark").joinpath("log4j2.properties")))
    return f"-Dlog4j2.configurationFile={log4j.as_uri()}"
