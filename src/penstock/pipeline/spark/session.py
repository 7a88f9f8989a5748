"""Start a Spark session of our own, with the settings that a pipeline depends on.

A session passed in by the user is neither stopped nor changed: pipelines run in a second session beside it, which
shares everything except `REQUIRED_CONF`.
"""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from penstock.errors import ConfigurationError, RestartNeeded
from penstock.pipeline.spark.faults import SPARK_ERRORS, explain

Session = SparkSession  # for packages above, which name the type but never import Spark

# PySpark logs every failed query to stderr a second time, as one JSON line of many kilobytes.
# Py4J logs every call that a stop breaks off, with a traceback, although it also raises.
PY4J = "py4j"
QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

REQUIRED_CONF: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # pyiceberg refuses INT96, Spark's default, and INT96 carries no statistics.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Files are listed in a manifest, so nothing reads the marker file.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # The ledger's commit makes files count, so the second rename of version 1 protects nothing.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
}

_HADOOP = "spark.hadoop."  # prefix; a running session takes Hadoop's settings without it

LOGGED_BYTES_MAX = 1 << 20  # read from the log to find why Spark did not start

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
    driver_memory: str
    extra_conf: Mapping[str, str] = field(default_factory=dict)


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
    gateway: Any = None
    logged_bytes = settings.log.stat().st_size if settings.log.exists() else 0
    try:
        with settings.log.open("ab") as log:
            gateway = launch_gateway(conf, popen_kwargs={"stdout": log, "stderr": log})
        with _ctrl_c_kept():
            return SparkSession(SparkContext(gateway=gateway, conf=conf))
    except (*SPARK_ERRORS, OSError) as error:
        if gateway is not None:
            gateway.proc.stdin.close()  # the JVM watches its stdin and exits when it closes
        text = _logged_since(settings.log, logged_bytes)
        raise ConfigurationError(
            f"Spark did not start: {complaint(text) or explain(error)} Its log is {settings.log}; `penstock "
            "doctor` looks at Java and Spark."
        ) from error


def session_beside(given: SparkSession) -> SparkSession:
    """Return a session on the same Spark with the given session's views, functions and settings, plus `REQUIRED_CONF`.

    Later changes of one session do not show in the other, so the user's session stays as it is.
    """
    java: Any = given._jsparkSession  # PySpark offers only `newSession`, which drops settings and registrations
    beside = SparkSession(given.sparkContext, java.cloneSession())
    for key, value in REQUIRED_CONF.items():
        beside.conf.set(key.removeprefix(_HADOOP), value)
    return beside


def complaint(log: str) -> str | None:
    """Return why a JVM ended, as a sentence: the first exception or error in its log. None if there is none."""
    found = _COMPLAINT.search(log)
    return None if found is None else f"{found['text'].rstrip('. ')}."


def end_session(spark: SparkSession, *, at_once: bool, seconds: float) -> None:
    """End a session of our own and its JVM; kill a JVM that does not exit within ``seconds``.

    ``at_once`` skips Spark's own shutdown, which loses nothing: all committed work is in the ledger.
    """
    gateway: Any = spark.sparkContext._gateway  # PySpark keeps the process it launched in an untyped attribute
    process: subprocess.Popen[bytes] = gateway.proc
    accumulators: Any = spark.sparkContext._accumulatorServer
    accumulators.handle_error = lambda *_: None  # it would print a traceback for the connection that is cut here
    if not at_once:
        stopping = threading.Thread(target=_stop_quietly, args=(spark,), name="penstock-spark-stop", daemon=True)
        stopping.start()
        stopping.join(seconds)
    if process.stdin is not None:
        process.stdin.close()  # the JVM watches its stdin and exits when it closes
    if at_once:
        process.kill()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()


def check_jvm(spark: SparkSession) -> None:
    """Raise `RestartNeeded` if this process started the session's JVM and the JVM has ended. Never waits."""
    gateway: Any = spark.sparkContext._gateway  # untyped, as in end_session
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)  # None: the JVM started this process
    ended = None if process is None else process.poll()
    if ended is not None:
        how = f"with exit code {ended}" if ended >= 0 else f"by {signal.Signals(-ended).name}"
        raise RestartNeeded(f"Spark's JVM ended {how}. Nothing is lost; run it again.")


def try_spark(settings: SessionSettings) -> None:
    """Start a session, run a Python worker, write Parquet, end the session. Raises as a pipeline would."""
    spark = start_session(settings)
    try:
        numbers = spark.range(100).mapInArrow(lambda batches: batches, "id long")
        numbers.write.parquet(str(settings.scratch / "try"))
    except SPARK_ERRORS as error:
        raise ConfigurationError(
            f"Spark started and did not work: {explain(error)} Its log is {settings.log}."
        ) from error
    finally:
        end_session(spark, at_once=False, seconds=10.0)


def session_is_there() -> bool:
    """Return True if this process has an active session, ours or the user's."""
    return SparkSession.getActiveSession() is not None


def runs_here(spark: SparkSession) -> bool:
    """Return True if all tasks run in this process's own JVM: ``local``, ``local[4]``, ``local[*]``."""
    return _LOCAL.fullmatch(spark.sparkContext.master or "") is not None


def tasks_run_once(spark: SparkSession) -> bool:
    """Return True if all tasks run in this process's own JVM and each has a single attempt."""
    found = _LOCAL.fullmatch(spark.sparkContext.master or "")
    return found is not None and found["attempts"] in (None, "1")


def cores(spark: SparkSession) -> int:
    """Return the number of tasks that the session runs at once."""
    return max(1, spark.sparkContext.defaultParallelism)


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
    """Return the variables that Spark's launcher and PySpark read only from the environment."""
    environment = {
        "JAVA_HOME": str(settings.java_home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    return environment | ({"SPARK_LOCAL_IP": "127.0.0.1"} if settings.master.startswith("local") else {})


def _conf(settings: SessionSettings) -> SparkConf:
    conf = SparkConf(loadDefaults=False)
    for key, value in {**_own_conf(settings), **settings.extra_conf, **REQUIRED_CONF}.items():
        conf.set(key, value)
    return conf


def _own_conf(settings: SessionSettings) -> dict[str, str]:
    log4j = Path(str(files("penstock.pipeline.spark").joinpath("log4j2.properties")))
    conf: dict[str, str] = {
        "spark.master": settings.master,
        "spark.app.name": "penstock",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.warehouse.dir": (settings.scratch / "warehouse").as_uri(),
        "spark.local.dir": str(settings.scratch),
        "spark.sql.catalogImplementation": "in-memory",
    }
    if settings.master.startswith("local"):
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 1)),
        }
    return conf
