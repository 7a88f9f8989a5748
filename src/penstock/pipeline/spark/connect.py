"""Sessions of Spark Connect: the driver is in a server, and this process is a client without a JVM."""

import os
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from pyspark.sql import SparkSession, functions

from penstock.errors import ConfigurationError, RestartNeeded
from penstock.pipeline.extra import require_connect
from penstock.pipeline.spark.conf import QUERY_LOGGERS, set_required, silenced_unless_failed
from penstock.pipeline.spark.faults import SPARK_ERRORS, connect_reason
from penstock.pipeline.spark.runtime import HISTORY_URL, history_root

SCHEME = "sc://"
# PySpark repeats a request to a server that cannot be reached for more than ten minutes. With these values it gives up
# after 10 to 12 seconds: a server that restarts has lost the session anyway. A server may ask for a longer wait.
RETRIES_MAX = 6
FIRST_WAIT_MS, WAIT_FACTOR, WAIT_MAX_MS = 50, 4.0, 3000
OPEN_ERRORS: tuple[type[Exception], ...] = (*SPARK_ERRORS, ValueError)  # ValueError: an impossible address
END_SECONDS = 2.0  # for a session that could not be prepared
RANGE_ROWS = 100_000  # more than any cluster has slots

# PySpark sets this variable with the first Connect session of a process, and never unsets it. While it is set, its
# functions build expressions for Connect, and classic Spark cannot start.
MODE = "SPARK_CONNECT_MODE_ENABLED"

_ANY_SETTING = "spark.sql.session.timeZone"

# By id of the session, which its runtime keeps alive; a session keeps its runtime if that has a progress handler.
_runtimes: "WeakValueDictionary[int, ConnectRuntime]" = WeakValueDictionary()  # under _lock
_lock = threading.Lock()
_is_mode_ours = False  # under _lock: PySpark set `MODE` for a session that was made here
_open: set[int] = set()  # under _lock: ids of the open sessions of our own


def open_session(address: str, conf: Mapping[str, str]) -> SparkSession:
    """Open a session of our own at a server, such as ``sc://host:15002``.

    ``conf`` are settings of the session. Raises `ConfigurationError` if there is no such server, or if it refuses the
    client or a setting.
    """
    require_connect()
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]", UserWarning)  # the error says it
    with silenced_unless_failed(*QUERY_LOGGERS), mode_noted():
        spark = _opened(address, conf)
    with _lock:
        _open.add(id(spark))
    return spark


def _opened(address: str, conf: Mapping[str, str]) -> SparkSession:
    try:
        spark: SparkSession = SparkSession.builder.remote(address).create()  # sends no request
    except OPEN_ERRORS as error:
        raise _not_opened(address, error) from error
    try:
        _give_up_early(spark)
        spark.conf.get(_ANY_SETTING)
        for key, value in conf.items():
            _set(spark, key, value)
        set_required(spark)
    except BaseException as error:
        end_session(spark, seconds=END_SECONDS)
        if isinstance(error, SPARK_ERRORS):
            raise _not_opened(address, error) from error
        raise
    return spark


@contextmanager
def mode_noted() -> Iterator[None]:
    """Note if PySpark makes this a process of Connect in the block, for `end_session`; undo it if the block raises."""
    global _is_mode_ours  # the variable, too, is the process's
    before = MODE in os.environ
    try:
        yield
    except BaseException:
        if not before:
            os.environ.pop(MODE, None)
        raise
    if not before and MODE in os.environ:
        with _lock:
            _is_mode_ours = True


def place_of(address: str) -> str:
    """Return an address without its parameters, which may hold a token."""
    return address.partition("/;")[0].partition(";")[0].rstrip("/")


def without_parameters(text: str, address: str) -> str:
    """Return a text about an address without the values of its parameters."""
    for parameter in address.removeprefix(place_of(address)).strip("/").split(";"):
        value = parameter.partition("=")[2]
        if value:
            text = text.replace(value, "...")
    return text


def end_session(spark: SparkSession, *, seconds: float) -> None:
    """End a session of our own; give up after ``seconds``. The server ends it itself if it cannot be reached."""
    _within(seconds, spark, _stop_quietly)
    _leave_mode(spark)


def release_sibling(spark: SparkSession, *, seconds: float) -> None:
    """Free a session that `ConnectRuntime.sibling` made, at the server and here; give up after ``seconds``.

    `SparkSession.stop` would also end a server that PySpark started in this process, for the user's session.
    """
    _within(seconds, spark, _release_quietly)


def found_session() -> SparkSession | None:
    """Return the session that this thread uses, or else the default one of the process; None if there is none."""
    require_connect()
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    found: Any = ConnectSession.getActiveSession() or ConnectSession._get_default_session()
    return None if found is None or found.is_stopped else found  # typed as a classic session, like all others


def connect_runtime(spark: SparkSession) -> "ConnectRuntime":
    """Return the runtime of a session; one per session, since it collects the progress of its jobs."""
    with _lock:
        runtime = _runtimes.get(id(spark))
        if runtime is None:
            runtime = _runtimes[id(spark)] = ConnectRuntime(spark)
        return runtime


@dataclass(slots=True)
class _Jobs:
    """The progress of the jobs with one tag, by operation. A server reports each stage with its tasks so far."""

    operations: dict[str, tuple[int, int]] = field(default_factory=dict)  # tasks done and known


class ConnectRuntime:
    """A `penstock.pipeline.spark.runtime.SparkRuntime` of Spark Connect.

    The progress handler is registered with the first tag, so a user's session that only reads tables has none.
    """

    is_local = False
    tasks_run_once = False
    task_attempts_max = 1  # a server in local mode ignores the setting, and does not say so

    def __init__(self, spark: SparkSession) -> None:
        self._spark: Any = spark  # typed as a classic session, which lacks some of these methods
        self._lock = threading.Lock()
        self._parallelism: int | None = None  # written by any thread, with the same value
        self._tag = threading.local()
        self._jobs: dict[str, _Jobs] = defaultdict(_Jobs)  # under _lock, by tag
        self._listens = False  # under _lock
        self._packages: set[str] = set()  # written under _lock: names of the archives that the server has

    @property
    def address(self) -> str:
        return f"{SCHEME}{self._spark.client.host}"

    def tasks_at_once(self) -> int:
        """A client cannot ask for it, but a range has this many partitions unless told otherwise."""
        if self._parallelism is None:
            parts = self._spark.range(0, RANGE_ROWS).select(functions.spark_partition_id().alias("part"))
            self._parallelism = max(1, parts.distinct().count())
        return self._parallelism

    def executors(self) -> None:
        return None

    def worker_pythons(self) -> Sequence[str]:
        return ()

    @contextmanager
    def tagged(self, tag: str, description: str, *, pool: str | None = None) -> Iterator[None]:  # noqa: ARG002
        self._listen()
        self._spark.addTag(tag)
        self._tag.value = tag
        try:
            yield
        finally:
            self._tag.value = None
            with self._lock:
                self._jobs.pop(tag, None)
            with suppress(*SPARK_ERRORS):
                self._spark.removeTag(tag)

    def cancel(self, tag: str) -> None:
        self._spark.interruptTag(tag)

    def tasks(self, tag: str) -> tuple[int, int]:
        with self._lock:
            counts = list(self._jobs[tag].operations.values()) if tag in self._jobs else []
        return sum(done for done, _ in counts), sum(known for _, known in counts)

    def page(self, tag: str) -> str | None:  # noqa: ARG002
        """Return the application's page in the history server: a client does not know the server's job ids or UI."""
        conf = self._spark.conf
        with suppress(*SPARK_ERRORS):
            root = history_root(
                conf.get(HISTORY_URL, None),
                is_logged=conf.get("spark.eventLog.enabled", "false") == "true",
                app_id=conf.get("spark.app.id", None),
            )
            return None if root is None else f"{root}/jobs/"
        return None

    def check(self) -> None:
        if self._spark.is_stopped:
            raise RestartNeeded("The Spark Connect session was ended. Nothing is lost; run it again.")

    def add_package(self, archive: Path) -> None:
        if archive.name in self._packages:
            return
        self._spark.addArtifacts(str(archive), pyfile=True)
        with self._lock:
            self._packages.add(archive.name)

    def sibling(self) -> SparkSession:
        if not hasattr(self._spark, "cloneSession"):
            raise ConfigurationError(
                "A given Spark Connect session can be used from Spark 4.1 on. With this version, let Penstock open its "
                "own session: set spark.master to the server's address (sc://HOST:PORT)."
            )
        self._spark.conf.get(_ANY_SETTING)  # a server cannot clone a session that has sent no request yet
        sibling: SparkSession = self._spark.cloneSession()
        _give_up_early(sibling)
        set_required(sibling)
        return sibling

    def _listen(self) -> None:
        with self._lock:
            if not self._listens:
                self._spark.registerProgressHandler(self._record_progress)
                self._listens = True

    def _record_progress(
        self,
        stages: Iterable[Any] | None,
        inflight_tasks: int,  # noqa: ARG002
        operation_id: str | None,
        done: bool,  # noqa: ARG002
    ) -> None:
        """Called in the thread that waits for the job, which is the one that set the tag."""
        tag = getattr(self._tag, "value", None)
        if tag is None or operation_id is None or stages is None:
            return
        found = list(stages)
        counts = sum(stage.num_completed_tasks for stage in found), sum(stage.num_tasks for stage in found)
        with self._lock:
            self._jobs[tag].operations[operation_id] = counts


def _not_opened(address: str, error: Exception) -> ConfigurationError:
    reason = without_parameters(connect_reason(error), address)
    return ConfigurationError(f"No session could be opened at {place_of(address)}: {reason}.")


def _give_up_early(spark: SparkSession) -> None:
    """Bound the time that a session of our own, or a sibling, waits for a server that cannot be reached."""
    from pyspark.sql.connect.client.retries import DefaultPolicy  # imports gRPC

    policy = DefaultPolicy(
        max_retries=RETRIES_MAX,
        initial_backoff=FIRST_WAIT_MS,
        backoff_multiplier=WAIT_FACTOR,
        max_backoff=WAIT_MAX_MS,
    )
    client: Any = spark.client
    client.set_retry_policies([policy])


def _set(spark: SparkSession, key: str, value: str) -> None:
    try:
        spark.conf.set(key, value)
    except SPARK_ERRORS as error:
        raise ConfigurationError(
            f"The Spark Connect server does not accept the setting {key} (spark.conf): {connect_reason(error)}. Leave "
            "it out here, or set it where the server is started."
        ) from error


def _within(seconds: float, spark: SparkSession, end: Callable[[Any], None]) -> None:
    client: Any = spark.client
    client.set_retry_policies([])
    ending = threading.Thread(target=end, args=(spark,), name="penstock-spark-stop", daemon=True)
    ending.start()
    ending.join(seconds)


def _leave_mode(ended: Any) -> None:
    """Unset `MODE` if a session that was made here had set it, unless another session of this process is open."""
    global _is_mode_ours
    with _lock:
        _open.discard(id(ended))
        if _is_mode_ours and not _open and found_session() in (None, ended):
            _is_mode_ours = False
            os.environ.pop(MODE, None)


def _stop_quietly(spark: SparkSession) -> None:
    with suppress(*SPARK_ERRORS, OSError):
        spark.stop()


def _release_quietly(spark: Any) -> None:
    with suppress(*SPARK_ERRORS, OSError):
        spark.client.release_session()
    with suppress(*SPARK_ERRORS, OSError):
        spark.client.close()
