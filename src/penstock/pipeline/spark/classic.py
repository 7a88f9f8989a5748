"""Sessions of classic Spark: a driver in this process, which talks to its JVM through Py4J.

`start_session` launches a JVM of our own, `ClassicRuntime` operates a session, ours or the user's.
"""

import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pyspark
from pyspark import RDD, SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from penstock.errors import ConfigurationError, RestartNeeded
from penstock.pipeline.spark import worker_daemon
from penstock.pipeline.spark.class_archive import ClassArchive, class_archive
from penstock.pipeline.spark.conf import QUERY_LOGGERS, REQUIRED_CONF, set_required, silenced_unless_failed
from penstock.pipeline.spark.ctrl_c import ctrl_c_kept
from penstock.pipeline.spark.faults import SPARK_ERRORS, START_ERRORS, explain
from penstock.pipeline.spark.runtime import HISTORY_URL, history_root

# Py4J logs every call that a stop breaks off, with a traceback, although it also raises.
PY4J = "py4j"

WORKER_PYTHON = "spark.pyspark.python"
API_MODE = "spark.api.mode"
DAEMON_MODULE = "spark.python.daemon.module"
DRIVER_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
# Properties of a thread that `ClassicRuntime.tagged` sets. Job tags are added and removed one by one.
_JOB_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
_POOL_PROPERTY = "spark.scheduler.pool"
_JVM_SESSION = "org.apache.spark.sql.classic.SparkSession"

LOGGED_BYTES_MAX = 1 << 20  # read from the log to find why Spark did not start

LOCAL_DRIVER_MEMORY = "2g"

PATIENT_COMPILER = (
    "-XX:+IgnoreUnrecognizedVMOptions",  # of other virtual machines than HotSpot
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Ten times HotSpot's own thresholds for its second compiler, which takes a third of the CPU time of a short run.

Code that processes rows reaches them within a second.
"""

# For the launcher, a JVM that only computes Spark's command.
LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_archives: "WeakKeyDictionary[SparkSession, ClassArchive]" = WeakKeyDictionary()  # of sessions that were started here

# A line of spark-defaults.conf: Java's properties, without escapes and continued lines.
_DEFAULT = re.compile(r"(?P<name>spark\.[^\s=:]+)(?:\s*[=:]\s*|\s+)(?P<value>.*)")

_TASK_ATTEMPTS_DEFAULT = "4"  # Spark's
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

    Raises `ConfigurationError`, naming the log, if Spark does not start, or if this process has a session already.
    """
    _check_alone(settings.master)
    if "," in str(settings.scratch):  # Spark would split it into several folders
        raise ConfigurationError(
            f"Spark cannot keep its scratch files in {settings.scratch}, since there is a comma in that path; name a "
            "folder without one for the state (--data-dir)."
        )
    settings.scratch.mkdir(parents=True, exist_ok=True)
    settings.log.parent.mkdir(parents=True, exist_ok=True)
    with silenced_unless_failed(*QUERY_LOGGERS, PY4J), _no_py4j_in_the_root_logger():
        return _launched(settings)


def _launched(settings: SessionSettings) -> SparkSession:
    # PySpark would use the JVM of an earlier session of this process, which was stopped, and ignore ours.
    SparkContext._gateway = SparkContext._jvm = None
    archive = _class_archive(settings)
    conf = _conf(settings, archive)
    folder = _planning_folder(settings, conf)
    gateway: Any = None
    logged_bytes = settings.log.stat().st_size if settings.log.exists() else 0
    try:
        with settings.log.open("ab") as log, _launching_in(_environment(settings)), ctrl_c_kept():
            gateway = launch_gateway(conf, popen_kwargs={"stdout": log, "stderr": log, "cwd": folder})
            context = SparkContext(gateway=gateway, conf=conf)
            # PySpark's functions take it only from the environment, while data sources and spark-submit prefer this.
            context.pythonExec = context.getConf().get(WORKER_PYTHON) or context.pythonExec
            spark = SparkSession(context)
            if archive is not None:
                _archives[spark] = archive
            return spark
    except START_ERRORS as error:
        if gateway is not None:
            gateway.proc.stdin.close()  # the JVM watches its stdin and exits when it closes
            _forget(gateway)
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
    make_archive = None if at_once else _archive_maker(spark)
    if not at_once or process is None:
        stopping = threading.Thread(target=_stop_quietly, args=(spark,), name="penstock-spark-stop", daemon=True)
        stopping.start()
        stopping.join(seconds)
    if process is None:
        return
    _forget(gateway)
    if process.stdin is not None:
        process.stdin.close()  # the JVM watches its stdin and exits when it closes
    if at_once:
        process.kill()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    if make_archive is not None:
        make_archive()


def _archive_maker(spark: SparkSession) -> Callable[[], object] | None:
    """Return the function that makes an archive of this session's classes after its end; None if none is missing."""
    archive = _archives.get(spark)
    if archive is None or archive.is_usable():
        return None
    opened: Any = spark  # PySpark has no API for properties of the JVM
    with suppress(*SPARK_ERRORS):  # Spark has ended
        return partial(archive.make_later, opened._jvm.java.lang.System.getProperty("java.class.path"))
    return None


def has_session() -> bool:
    """Return True if this process has a Spark that runs, also if only another thread knows its session.

    PySpark's `getActiveSession` returns None in threads other than the one that started the session, and for a bare
    `SparkContext`.
    """
    context: Any = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        return False
    try:
        return not context._jsc.sc().isStopped()
    except SPARK_ERRORS:  # its JVM has ended
        return False


def found_session() -> SparkSession | None:
    """Return the session that this thread uses, or else the one of the process; None if there is none."""
    return SparkSession.getActiveSession() or SparkSession._instantiatedSession if has_session() else None


def leave_sibling(sibling: SparkSession, given: SparkSession) -> None:
    """Make the given session the active one again. `createDataFrame` makes the session active that it is called on."""
    if SparkSession._activeSession is not sibling:
        return
    SparkSession._activeSession = given
    opened: Any = given  # PySpark has no API to set the active session
    with suppress(*SPARK_ERRORS):  # Spark has ended
        getattr(opened._jvm, _JVM_SESSION).setActiveSession(opened._jsparkSession)


class ClassicRuntime:
    """A `penstock.pipeline.spark.runtime.SparkRuntime` of classic Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self._gateway: Any = getattr(self._context, "_gateway", None)  # PySpark forgets it when the session ends

    @property
    def address(self) -> str:
        return self._context.master or ""

    @property
    def is_local(self) -> bool:
        return _LOCAL.fullmatch(self.address) is not None

    @property
    def tasks_run_once(self) -> bool:
        return self.is_local and self.task_attempts_max == 1

    @property
    def task_attempts_max(self) -> int:
        found = _LOCAL.fullmatch(self.address)
        if found is not None:  # Spark ignores the setting
            return int(found["attempts"] or 1)
        return int(self._context.getConf().get("spark.task.maxFailures", _TASK_ATTEMPTS_DEFAULT))

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
        self.check()
        context: Any = self._context  # PySpark types properties as str, and takes None to unset one
        names = (*_JOB_PROPERTIES, *([_POOL_PROPERTY] if pool is not None else []))
        before = {name: context.getLocalProperty(name) for name in names}  # this thread may be the user's
        context.setJobGroup(tag, description)  # for `tasks` and `page`
        context.addJobTag(tag)  # for `cancel`
        if pool is not None:
            context.setLocalProperty(_POOL_PROPERTY, pool)
        try:
            yield
        finally:
            # Spark has ended, or was stopped; the block's own result or error matters more
            with suppress(*SPARK_ERRORS, AttributeError):
                context.removeJobTag(tag)
                for name, value in before.items():
                    context.setLocalProperty(name, value)

    def cancel(self, tag: str) -> None:
        # Measured: SparkSession.interruptTag does nothing when called from another thread; cancelJobsWithTag works.
        with self._stop_noticed():
            self._context.cancelJobsWithTag(tag)

    def tasks(self, tag: str) -> tuple[int, int]:
        done = known = 0
        with self._stop_noticed():
            tracker = self._context.statusTracker()
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
        process: subprocess.Popen[bytes] | None = getattr(self._gateway, "proc", None)  # None: the JVM started us
        ended = None if process is None else process.poll()
        if ended is not None:
            how = f"with exit code {ended}" if ended >= 0 else f"by {signal.Signals(-ended).name}"
            raise RestartNeeded(f"Spark's JVM ended {how}. Nothing is lost; run it again.")
        if self._context._jsc is None:  # SparkContext.stop() was called
            raise RestartNeeded("The Spark session was stopped. Nothing is lost; start a session and run it again.")

    @contextmanager
    def _stop_noticed(self) -> Iterator[None]:
        """Raise `RestartNeeded` if the session is stopped meanwhile: PySpark then has None where its objects were."""
        try:
            yield
        except AttributeError:
            self.check()
            raise

    def add_package(self, archive: Path) -> None:
        """Add a copy of the archive: executors that start later fetch it too, even after Penstock has ended here."""
        context: Any = self._context  # for attributes that PySpark does not declare
        if archive.name in context._python_includes:
            return
        kept = Path(context._temp_dir, archive.name)  # Spark deletes this folder when it stops
        shutil.copyfile(archive, kept)
        path_before = list(sys.path)
        context.addPyFile(str(kept))
        sys.path[:] = path_before  # the archive is for tasks; this process imports the installed package

    def sibling(self) -> SparkSession:
        java: Any = self._spark._jsparkSession  # PySpark offers only newSession, which drops settings and views
        rdds: Any = RDD
        to_frame = rdds.toDF
        sibling = SparkSession(self._context, java.cloneSession())
        rdds.toDF = to_frame  # PySpark had bound it to the sibling, also for the user's RDDs
        set_required(sibling)
        return sibling


def _stop_quietly(spark: SparkSession) -> None:
    """Stop a session. If its JVM ends meanwhile, PySpark's calls fail, which loses nothing."""
    warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM process", RuntimeWarning)
    with suppress(*SPARK_ERRORS, OSError):
        spark.stop()


@contextmanager
def _no_py4j_in_the_root_logger() -> Iterator[None]:
    """Filter Py4J's records, which the root logger logs for a broken connection; if the block raises, undo that."""
    had_filter = _not_of_py4j in logging.getLogger().filters  # of an earlier session
    logging.getLogger().addFilter(_not_of_py4j)
    try:
        yield
    except BaseException:
        if not had_filter:
            logging.getLogger().removeFilter(_not_of_py4j)
        raise


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != PY4J


def _logged_since(log: Path, start_bytes: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(start_bytes)
            return file.read(LOGGED_BYTES_MAX).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _check_alone(master: str) -> None:
    """Raise `ConfigurationError` if PySpark has a Spark already: a process can have only one."""
    context = SparkContext._active_spark_context
    if context is None:
        return
    if has_session():
        raise ConfigurationError(
            f"This process has a Spark session already, at {context.master}, so none can be started at {master}: set "
            "spark.session = current to use it, or stop it before."
        )
    raise ConfigurationError("The Spark session of this process has ended; call its stop() or restart the process.")


def _forget(gateway: Any) -> None:
    """Make PySpark forget a JVM that was launched here, so that this process can launch another one."""
    with SparkContext._lock:
        if SparkContext._gateway is not gateway:
            return
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None


@contextmanager
def _launching_in(environment: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process for the block. Spark and PySpark read them when a session starts."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _environment(settings: SessionSettings) -> dict[str, str]:
    """Return the variables that Spark's launcher and PySpark read only from the environment.

    On a cluster, the Python of its hosts is the user's choice: spark.pyspark.python, or PYSPARK_PYTHON as it is set.
    """
    environment = {"JAVA_HOME": str(settings.java_home), "PYSPARK_DRIVER_PYTHON": sys.executable}
    if not settings.is_local:
        return environment
    launcher = os.environ.get("SPARK_LAUNCHER_OPTS") or LAUNCHER_OPTIONS
    return environment | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LAUNCHER_OPTS": launcher,
    }


def _planning_folder(settings: SessionSettings, conf: SparkConf) -> Path | None:
    """Return the folder to start the JVM in if the executors' Python is a relative path, as in an archive; else None.

    Spark plans reads on this host with the same path. In this folder it leads to this process's own Python. Java's own
    relative paths still begin in the current folder.
    """
    if settings.is_local:
        return None
    defaults = _cluster_defaults()
    named = settings.extra_conf.get(WORKER_PYTHON) or defaults.get(WORKER_PYTHON)
    program = Path(named or os.environ.get("PYSPARK_PYTHON", ""))
    if program.is_absolute() or len(program.parts) < 2 or ".." in program.parts:
        return None
    folder = settings.scratch / "planning"
    (folder / program).parent.mkdir(parents=True, exist_ok=True)
    (folder / program).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (folder / program).chmod(0o755)
    user_dir = shlex.quote(f"-Duser.dir={Path.cwd()}")
    options = conf.get(DRIVER_JAVA_OPTIONS, defaults.get(DRIVER_JAVA_OPTIONS, ""))
    conf.set(DRIVER_JAVA_OPTIONS, f"{options} {user_dir}".strip())
    return folder


def _cluster_defaults() -> dict[str, str]:
    """Return the settings in spark-defaults.conf, as far as a line has one whole setting."""
    folder = os.environ.get("SPARK_CONF_DIR") or str(Path(_find_spark_home(), "conf"))
    try:
        lines = Path(folder, "spark-defaults.conf").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found = (_DEFAULT.fullmatch(line.strip()) for line in lines)
    return {setting["name"]: setting["value"] for setting in found if setting is not None}


def _class_archive(settings: SessionSettings) -> ClassArchive | None:
    """Return the archive of Spark's classes for a local session. On a cluster, the start of a driver matters less."""
    if not settings.is_local:
        return None
    jars, conf = Path(_find_spark_home(), "jars"), {**_cluster_defaults(), **settings.extra_conf}
    return class_archive(settings.java_home, jars, conf, scratch=settings.scratch, environ=os.environ)


def _conf(settings: SessionSettings, archive: ClassArchive | None = None) -> SparkConf:
    """Return the settings with which the JVM is launched. They override the cluster's own (spark-defaults.conf)."""
    conf = SparkConf(loadDefaults=False)
    # spark-defaults.conf may choose Spark Connect, with which the JVM has no session for this process.
    own = _own_conf(settings, () if archive is None else archive.java_options())
    for key, value in {**own, **settings.extra_conf, **REQUIRED_CONF, API_MODE: "classic"}.items():
        conf.set(key, value)
    return conf


def _own_conf(settings: SessionSettings, java_options: Sequence[str] = ()) -> dict[str, str]:
    """Return what we choose ourselves: on a cluster almost nothing, since its defaults fit it better.

    ``java_options`` are added to those of a local JVM.
    """
    if settings.is_local:
        return _local_conf(settings, [_log_option(), *PATIENT_COMPILER, *java_options])
    memory = {} if settings.driver_memory is None else {"spark.driver.memory": settings.driver_memory}
    return {"spark.master": settings.master, "spark.app.name": "penstock", **memory}


def _local_conf(settings: SessionSettings, java_options: Sequence[str]) -> dict[str, str]:
    return {
        "spark.master": settings.master,
        "spark.app.name": "penstock",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": settings.driver_memory or LOCAL_DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": shlex.join(java_options),
        "spark.scheduler.mode": "FAIR",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.warehouse.dir": (settings.scratch / "warehouse").as_uri(),
        "spark.local.dir": str(settings.scratch),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 1)),
        **({DAEMON_MODULE: worker_daemon.__name__} if _workers_have_our_daemon(settings) else {}),
    }


def _workers_have_our_daemon(settings: SessionSettings) -> bool:
    """Return True if the workers run this Python, with the installed PySpark, and no daemon was chosen for them.

    Another Python may have no PySpark. In local mode, PYSPARK_PYTHON is this Python (`_environment`).
    """
    chosen = {**_cluster_defaults(), **settings.extra_conf}
    is_ours = shutil.which(chosen.get(WORKER_PYTHON) or sys.executable) == sys.executable
    return is_ours and DAEMON_MODULE not in chosen and _spark_is_installed()


def _spark_is_installed() -> bool:
    """Return True if Spark is the one of the installed PySpark: then the workers can import that PySpark."""
    return Path(_find_spark_home()).resolve() == Path(pyspark.__file__).resolve().parent


def _log_option() -> str:
    log4j = Path(str(files("penstock.pipeline.spark").joinpath("log4j2.properties")))
    return f"-Dlog4j2.configurationFile={log4j.as_uri()}"
