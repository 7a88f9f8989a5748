"""Runs under spark-submit in client mode, on this host; those on a cluster are in test_submit_to_cluster.py.

Both processes end, with the program's exit code, and a session of the program's own stays as it was.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.chaos.runs import IN_PROCESS
from tests.spark.submitted import APP, EVERY_ID, INGEST, SCRIPT, Submitted, environment, ids, objects, run, script

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

BAD_TRANSFORM = "def transform(frame):\n    return frame.select('no_such_column')\n"
# A task that says that it runs, and waits for a file.
SLOW_TRANSFORM = """
from pathlib import Path
from pyspark.sql.functions import udf

HERE = Path.cwd()

def transform(frame):
    @udf("long")
    def waiting(number):
        import time
        (HERE / "running").touch()
        while not (HERE / "go").exists():
            time.sleep(0.05)
        return number
    return frame.withColumn("id", waiting("id"))
"""
NO_SESSION = f"""{APP}
import threading
from pyspark import SparkContext

made, clicks = app("app")
assert clicks.run(source="in").rows_written == 30
for thread in threading.enumerate():
    if thread.name == "penstock-spark-stop":  # which a busy machine may not finish in its seconds
        thread.join()
print("context", SparkContext._active_spark_context)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    objects(tmp_path / "in")
    return tmp_path


def test_a_program_without_a_session_gets_that_of_spark_submit_which_is_stopped_at_the_end(folder: Path) -> None:
    ended = run(folder, script(folder, NO_SESSION))
    assert ended.code == 0, ended.err
    assert "context None" in ended.out
    assert ids(folder / "app" / "table") == EVERY_ID


@pytest.mark.slow
def test_the_exit_code_of_a_failed_run_is_that_of_spark_submit(folder: Path) -> None:
    (folder / "bad.py").write_text(BAD_TRANSFORM)
    ended = run(folder, SCRIPT, *INGEST, "--transform", "bad:transform")
    assert ended.code == 1, ended.err
    assert "Spark cannot plan what the transform returned" in ended.out  # Spark merges Python's standard error into it


@pytest.mark.parametrize(
    ("finishes", "rows"),
    [
        pytest.param(True, 10, id="the batch finishes", marks=pytest.mark.slow),
        pytest.param(False, 0, id="it is cancelled"),
    ],
)
def test_sigterm_stops_a_run_within_its_budget(finishes: bool, rows: int, folder: Path) -> None:
    (folder / "slow.py").write_text(SLOW_TRANSFORM)
    (folder / "penstock.toml").write_text("[objects]\nbatches_in_flight = 1\n")
    submitted = Submitted(
        folder, SCRIPT, *INGEST, "--transform", "slow:transform", "--max-batch-objects", "1", "--stop-timeout", "20"
    )
    try:
        submitted.wait_for((folder / "running").exists)
        os.kill(submitted.python, signal.SIGTERM)
        if finishes:
            (folder / "go").touch()
        ended = submitted.end()
    finally:
        submitted.close()
    assert ended.code == 75, ended.err
    assert f"Stopped with {3 - rows // 10} objects left; run the same command again to continue." in ended.out
    if rows:
        assert ids(folder / "table") == list(range(10))
    else:
        assert not (folder / "table" / "_delta_log").exists()


def test_python_ends_when_the_jvm_is_terminated(folder: Path) -> None:
    """A container passes SIGTERM to the JVM alone, which ends at once, in the middle of the run."""
    (folder / "slow.py").write_text(SLOW_TRANSFORM)
    submitted = Submitted(folder, SCRIPT, *INGEST, "--transform", "slow:transform")
    try:
        submitted.wait_for((folder / "running").exists)
        submitted.process.send_signal(signal.SIGTERM)
        ended = submitted.end()
        submitted.wait_until_python_ended()
    finally:
        submitted.close()
    assert ended.code == 128 + signal.SIGTERM
    # The next run, without Spark, which this test does not need.
    subprocess.run([sys.executable, "-m", IN_PROCESS, *INGEST], cwd=folder, env=environment(), check=True)
    assert ids(folder / "table") == EVERY_ID
