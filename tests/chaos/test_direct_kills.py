"""Faults on a cluster while tasks write the rows that they read: `penstock.pipeline.spark.direct`.

A hook in the executors' Python strikes once, in the task that first has a file ready: it holds the task, it stops the
executor's JVM and lets the task write on, so that its result stays there, or it fails the write. The tests kill
processes by their ids. The oracle checks that each line is in the table once; the files on disk show which attempts of
a task wrote theirs.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.chaos.oracle import attempts, check_done, files_in_log, objects
from tests.chaos.runs import FORMATS, Case, Running
from tests.services.jvm import QUICK_JVM
from tests.services.spark_cluster import FROM_DRIVER, SPECULATION, SparkCluster

pytestmark = pytest.mark.spark

OBJECTS = 80  # two tasks, one for each executor
HOLD, STOP, FAIL = "hold", "stop", "fail"  # the faults, and the files that ask for them
STRUCK = "struck"  # the process id of the executor that was struck
GO = "go"  # ends a hold
HOOK = """
import errno
import os
import pathlib
import signal
import time

faults, fsync = pathlib.Path({faults!r}), os.fsync


def struck(descriptor):
    path = os.readlink(f"/proc/self/fd/{{descriptor}}")
    if "/table/data/" in path and ".parquet" in path:
        for fault in ("hold", "stop", "fail"):
            try:
                (faults / fault).unlink()
            except FileNotFoundError:
                continue
            daemon = pathlib.Path(f"/proc/{{os.getppid()}}/stat").read_text()
            executor = daemon.rpartition(")")[2].split()[1]
            if fault == "stop":
                os.kill(int(executor), signal.SIGSTOP)
            (faults / "half").write_text(executor)
            (faults / "half").replace(faults / "struck")
            if fault == "fail":
                raise OSError(errno.EIO, "the disk failed once")
            while fault == "hold" and not (faults / "go").exists():
                time.sleep(0.02)  # between two looks at a file that the test makes
    fsync(descriptor)


os.fsync = struck
"""


class StruckCase(Case):
    """A case whose ingests run on the cluster, without a transform, with a hook in the tasks that write."""

    def __init__(self, folder: Path, cluster: SparkCluster, *, scheme: str) -> None:
        self.cluster = cluster
        self.faults = folder / "faults"
        hooks = folder / "hooks"
        for made in (self.faults, hooks):
            made.mkdir()
        (hooks / "sitecustomize.py").write_text(HOOK.format(faults=str(self.faults)))
        self.conf = {
            **FROM_DRIVER,
            "spark.pyspark.python": sys.executable,
            "spark.executor.extraJavaOptions": QUICK_JVM,
            "spark.executorEnv.PYTHONPATH": str(hooks),
        }
        super().__init__(folder, scheme=scheme, spark_master=cluster.url, objects_max_retry_wait=1)
        self.add_objects(range(OBJECTS))

    def strike(self, fault: str, **conf: str) -> tuple[Running, int]:
        """Start an ingest and let the fault happen. Return the ingest, and the process id of the executor."""
        (self.faults / fault).touch()
        running = self.start(spark_conf=json.dumps({**self.conf, **conf}))
        running.wait_until((self.faults / STRUCK).exists)
        executor = int((self.faults / STRUCK).read_text())
        assert any(executor in self.cluster.executors(number) for number in range(self.cluster.workers))
        return running, executor

    def written(self) -> set[str]:
        """Return the files of all attempts of tasks that have their final names."""
        return {path for path in self.on_disk() if not path.rpartition("/")[2].startswith(".")}

    def on_disk(self, *, suffix: str = "") -> set[str]:
        """Return the files of the table, or of its quarantine, that are named after an attempt."""
        root = self.table.with_name(f"{self.table.name}{suffix}")
        found = (root / "data").rglob("*.parquet*") if root.is_dir() else ()
        return {path.relative_to(root).as_posix() for path in found}

    def check(self, running: Running, *, left: int, counted: int = 1) -> None:
        """Check the table after the ingest, and that gc deletes the files that attempts of tasks without effect left.

        ``counted``: attempts of each object.
        """
        report = running.end().expect(0).report
        whole = self.truth()
        check_done(whole, self.table)
        assert (report["rows_written"], report["lines_quarantined"]) == (len(whole.good), len(whole.bad))
        assert {count for _, count, _ in objects(self.table).values()} == {counted}
        named, named_bad = set(files_in_log(self.table)), set(files_in_log(Path(f"{self.table}_quarantine")))
        assert named <= self.written(), "a file that the table names was removed"
        assert len(self.on_disk() - named) == left, running.log()
        self.command("admin", "gc", "--table", self.address, "--data-dir", str(self.table / "_penstock"))
        assert (self.on_disk(), self.on_disk(suffix="_quarantine")) == (named, named_bad)
        check_done(whole, self.table)


@pytest.fixture
def struck(tmp_path: Path, cluster: SparkCluster, scheme: str) -> Iterator[StruckCase]:
    with closing(StruckCase(tmp_path, cluster, scheme=scheme)) as made:
        yield made


def test_a_task_whose_executor_is_killed_after_it_wrote_is_repeated_into_other_files(struck: StruckCase) -> None:
    running, executor = struck.strike(STOP)
    running.wait_until(lambda: len(struck.written()) == 2)
    os.kill(executor, signal.SIGKILL)
    struck.check(running, left=1)


def test_a_task_with_a_passing_fault_is_repeated_and_not_its_run(struck: StruckCase) -> None:
    running, _ = struck.strike(FAIL)
    struck.check(running, left=0)
    assert attempts(struck.table).total() == 1


@pytest.mark.parametrize("scheme", FORMATS)
def test_of_two_attempts_of_a_task_that_both_wrote_one_counts(struck: StruckCase) -> None:
    running, executor = struck.strike(STOP, **SPECULATION)
    running.wait_until(lambda: len(struck.written()) == 3)  # of its copy, on the other host, as well
    with suppress(ProcessLookupError):
        os.kill(executor, signal.SIGCONT)
    struck.check(running, left=1)


@pytest.mark.slow
def test_a_task_whose_executor_is_killed_while_it_writes_is_repeated(struck: StruckCase) -> None:
    running, executor = struck.strike(HOLD)
    os.kill(executor, signal.SIGKILL)
    struck.check(running, left=1)


@pytest.mark.slow
def test_the_copy_of_a_task_that_hangs_while_it_writes_counts(struck: StruckCase) -> None:
    running, _ = struck.strike(HOLD, **SPECULATION)
    struck.check(running, left=1)


@pytest.mark.slow
def test_a_run_that_is_given_up_with_an_executor_leaves_nothing_in_the_next_one(struck: StruckCase) -> None:
    running, executor = struck.strike(STOP, **{"spark.task.maxFailures": "1"})
    running.wait_until(lambda: len(struck.written()) == 2)
    os.kill(executor, signal.SIGKILL)
    struck.check(running, left=0, counted=2)  # files of an abandoned attempt are deleted at once
    assert attempts(struck.table)["abandoned"] == 1
