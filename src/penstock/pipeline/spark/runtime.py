"""The operations of a Spark session that differ between classic Spark and Spark Connect.

Everything else in Penstock uses DataFrames, ``spark.read``, ``spark.range`` and ``spark.conf``, which are the same in
both. Only `penstock.pipeline.spark.classic` and `penstock.pipeline.spark.jvm` touch the JVM, and only
`penstock.pipeline.spark.connect` touches a Connect client; `tests/unit/test_spark_access.py` checks that.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeAlias

from pyspark.sql import SparkSession

Session = SparkSession  # for packages above, which name the type but never import Spark

GivenSpark: TypeAlias = SparkSession | Callable[[], SparkSession]
"""A session of the user's, or a function that returns one. Penstock neither changes nor stops it."""

# A history server, or the pattern of an application's page with {app_id} in it.
HISTORY_URL = "spark.penstock.history.url"
APP_ID = "{app_id}"
_HISTORY = f"/history/{APP_ID}"  # the history server's own path of an application


class SparkRuntime(Protocol):
    """The operations of one Spark session. Thread-safe. Raises Spark's errors; see `penstock.pipeline.spark.faults`."""

    @property
    def address(self) -> str:
        """Return the address of its master or of its Connect server, for people."""
        ...

    @property
    def is_local(self) -> bool:
        """Return True if all tasks run in this process's own JVM: ``local``, ``local[4]``, ``local[*]``."""
        ...

    @property
    def tasks_run_once(self) -> bool:
        """Return True if all tasks run in this process's own JVM and each has a single attempt."""
        ...

    @property
    def task_attempts_max(self) -> int:
        """Return how often Spark starts a task whose attempts fail; 1 if it is unknown."""
        ...

    def tasks_at_once(self) -> int:
        """Return the number of tasks that run at once; at least 1. May run a small job on the first call."""
        ...

    def executors(self) -> int | None:
        """Return the number of executors registered so far, at least 1; None if it is unknown."""
        ...

    def worker_pythons(self) -> Sequence[str]:
        """Return the Python programs that Spark starts for tasks and for planning; empty if they are unknown."""
        ...

    def tagged(self, tag: str, description: str, *, pool: str | None = None) -> AbstractContextManager[None]:
        """Mark the jobs that this thread starts in the block, for `cancel`, `tasks` and `page`.

        ``pool`` is the scheduler pool of the jobs. Spark Connect has no pools.
        """
        ...

    def cancel(self, tag: str) -> None:
        """Cancel the jobs with the tag that run now. Jobs that start later are not affected."""
        ...

    def tasks(self, tag: str) -> tuple[int, int]:
        """Return how many tasks of the jobs with the tag are done, and how many are known so far."""
        ...

    def page(self, tag: str) -> str | None:
        """Return the URL of the page that shows the jobs with the tag; None if there is none."""
        ...

    def check(self) -> None:
        """Raise `RestartNeeded` if this Spark has ended. Never waits."""
        ...

    def add_package(self, archive: Path) -> None:
        """Make the modules in a zip file importable in the workers. Adding a file of the same name again has no effect.

        The session keeps a copy until it ends.
        """
        ...

    def sibling(self) -> SparkSession:
        """Return a session with this one's settings, views and functions, whose later changes do not show in this one.

        Raises `ConfigurationError` if this version of Spark cannot do that.
        """
        ...


def history_root(history_url: str | None, *, is_logged: bool, app_id: str | None) -> str | None:
    """Return the history server's page of an application; None if there is none.

    ``is_logged``: Spark writes an event log, without which a history server shows nothing.
    """
    if not (history_url and is_logged):
        return None
    pattern = history_url if APP_ID in history_url else history_url.rstrip("/") + _HISTORY
    return pattern.replace(APP_ID, app_id or "").rstrip("/")
