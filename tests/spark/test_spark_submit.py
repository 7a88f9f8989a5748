"""Runs under spark-submit in client mode, on this host and on a standalone cluster.

Both processes end, with the program's exit code, and a session of the program's own stays as it was.
"""

import os
import signal
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.spark.submitted import QUICK, SCRIPT, Ended, Submitted, objects

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

INGEST = ("ingest", "in", "table", "--schema", "id long")
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
APP = """
import json
import sys
from pathlib import Path
from penstock import App, DeltaSink, ObjectSource
from penstock.config import Settings

def app(folder):
    settings = Settings.model_construct(
        broker=f"sqlite:///{folder}/state/queue.db", ledger=f"sqlite:///{folder}/state/ledger.db",
        data_dir=f"{folder}/state",
    )
    made = App(settings=settings)
    clicks = made.pipeline(
        "clicks", source=ObjectSource("in", queue="events", schema="id long"), sink=DeltaSink(f"{folder}/table")
    )
    return made, clicks
"""
OWN_SESSION = f"""{APP}
from pyspark.sql import SparkSession

theirs = SparkSession.builder.config("spark.sql.shuffle.partitions", "7").getOrCreate()
theirs.range(3).createTempView("theirs")
for number, options in enumerate([dict(spark=theirs), {{}}]):  # given, and found
    made, clicks = app(f"app-{{number}}")
    assert clicks.run(**options, source="in").rows_written == 30
assert theirs.conf.get("spark.sql.shuffle.partitions") == "7"
assert theirs.conf.get("spark.sql.session.timeZone") != "UTC"
if not theirs.sparkContext.master.startswith("local"):
    # A new executor fetches everything that a run added to the context, although the run has ended.
    import os, signal
    from pyspark.sql.functions import udf

    @udf("long")
    def executor(_):  # the parent of the process that forks Python workers
        import os
        from pathlib import Path
        return int(Path(f"/proc/{{os.getppid()}}/stat").read_text().rpartition(")")[2].split()[1])

    first = theirs.range(1).select(executor("id")).first()[0]
    os.kill(first, signal.SIGKILL)
    assert theirs.range(1).select(executor("id")).first()[0] != first
theirs.udf.register("plus_one", lambda number: number + 1, "long")
assert [row[0] for row in theirs.sql("SELECT plus_one(id) FROM theirs").collect()] == [1, 2, 3]
print("still works")
theirs.stop()
"""
NO_SESSION = f"""{APP}
from pyspark import SparkContext

made, clicks = app("app")
assert clicks.run(source="in").rows_written == 30
print("context", SparkContext._active_spark_context)
"""


@pytest.fixture(params=["this host", "standalone"])
def master(request: pytest.FixtureRequest) -> str:
    return "local[2]" if request.param == "this host" else request.getfixturevalue("cluster").url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    objects(tmp_path / "in")
    return tmp_path


def run(folder: Path, program: Path, *arguments: str, master: str = "local[2]") -> Ended:
    submitted = Submitted(folder, program, *arguments, master=master, conf={"spark.executor.extraJavaOptions": QUICK})
    try:
        ended = submitted.end()
        submitted.wait_until_python_ended()
        return ended
    finally:
        submitted.close()


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def ids(table: Path) -> list[int]:
    found: list[int] = sorted(DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist())
    return found


EVERY_ID = sorted(list(range(10)) * 3)


def test_the_command_line_runs_under_spark_submit(folder: Path, master: str) -> None:
    ended = run(folder, SCRIPT, *INGEST, master=master)
    assert ended.code == 0, ended.err
    assert "3 objects processed, 0 skipped (already in the table), 30 rows written" in ended.out
    assert ids(folder / "table") == EVERY_ID


def test_a_program_without_a_session_gets_that_of_spark_submit_which_is_stopped_at_the_end(folder: Path) -> None:
    ended = run(folder, script(folder, NO_SESSION))
    assert ended.code == 0, ended.err
    assert "context None" in ended.out
    assert ids(folder / "app" / "table") == EVERY_ID


def test_a_session_of_the_program_still_works_after_runs_and_has_its_settings(folder: Path, master: str) -> None:
    ended = run(folder, script(folder, OWN_SESSION), master=master)
    assert ended.code == 0, ended.err
    assert "still works" in ended.out
    assert ids(folder / "app-0" / "table") == ids(folder / "app-1" / "table") == EVERY_ID


def test_the_exit_code_of_a_failed_run_is_that_of_spark_submit(folder: Path) -> None:
    (folder / "bad.py").write_text(BAD_TRANSFORM)
    ended = run(folder, SCRIPT, *INGEST, "--transform", "bad:transform")
    assert ended.code == 1, ended.err
    assert "Spark cannot plan what the transform returned" in ended.out  # Spark merges Python's standard error into it


@pytest.mark.parametrize(("finishes", "rows"), [(True, 10), (False, 0)], ids=["the batch finishes", "it is cancelled"])
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
    (folder / "go").touch()
    again = run(folder, SCRIPT, *INGEST, "--transform", "slow:transform")
    assert again.code == 0, again.err
    assert ids(folder / "table") == EVERY_ID
