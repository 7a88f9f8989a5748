"""Programs on a standalone cluster: under spark-submit in client mode, and with the defaults of the cluster."""

import json
import sys
from pathlib import Path

import pytest
from tests.services.jvm import QUICK_JVM
from tests.services.spark_cluster import FROM_DRIVER, SparkCluster
from tests.spark.submitted import APP, EVERY_ID, INGEST, SCRIPT, ids, objects, run, script
from tests.spark.test_given_sessions import run_story

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

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


@pytest.fixture(params=[pytest.param("this host", marks=pytest.mark.slow), "standalone"])
def master(request: pytest.FixtureRequest) -> str:
    return "local[2]" if request.param == "this host" else request.getfixturevalue("cluster").url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    objects(tmp_path / "in")
    return tmp_path


def test_the_command_line_runs_under_spark_submit(folder: Path, master: str) -> None:
    ended = run(folder, SCRIPT, *INGEST, master=master)
    assert ended.code == 0, ended.err
    assert "3 objects processed, 0 skipped (already in the table), 30 rows written" in ended.out
    assert ids(folder / "table") == EVERY_ID


def test_a_session_of_the_program_still_works_after_runs_and_has_its_settings(folder: Path, master: str) -> None:
    ended = run(folder, script(folder, OWN_SESSION), master=master)
    assert ended.code == 0, ended.err
    assert "still works" in ended.out
    assert ids(folder / "app-0" / "table") == ids(folder / "app-1" / "table") == EVERY_ID


@pytest.mark.slow
def test_a_session_of_penstock_on_a_cluster_follows_spark_defaults(tmp_path: Path, cluster: SparkCluster) -> None:
    """Only the master, the name and the settings that tables need are Penstock's."""
    defaults = {
        "spark.executor.memory": "512m",
        "spark.driver.memory": "600m",
        "spark.local.dir": str(tmp_path / "scratch"),
        "spark.sql.shuffle.partitions": "3",
        "spark.pyspark.python": sys.executable,
        "spark.ui.enabled": "false",
        "spark.executor.extraJavaOptions": QUICK_JVM,
    }
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "".join(f"{key} {value}\n" for key, value in defaults.items())
    )
    (tmp_path / "scratch").mkdir()
    variables = {
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
        "STORY_CONF": json.dumps({"spark.master": cluster.url, **FROM_DRIVER}),
    }
    ended = run_story("cluster_defaults", tmp_path, without=("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), **variables)
    assert ended.returncode == 0, ended.stderr[-6000:]
    found = json.loads(ended.stdout)
    assert QUICK_JVM in found["context"]["spark.executor.extraJavaOptions"]  # Spark adds options of its own
    del defaults["spark.executor.extraJavaOptions"]
    assert {key: found["context"].get(key) for key in defaults} == defaults
    assert found["session"]["spark.sql.shuffle.partitions"] == "3"
    assert found["session"]["spark.sql.session.timeZone"] == "UTC"
    assert found["python"] == sys.executable
    assert not {"spark.scheduler.mode", "spark.sql.catalogImplementation"} & set(found["context"])
