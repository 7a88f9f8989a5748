"""A session of the user's is neither changed nor stopped, however it reaches Penstock and however the run ends.

A session of Penstock's own follows the defaults of the cluster.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.services.spark_cluster import FROM_DRIVER, SparkCluster

from penstock.pipeline.spark.java import find_java

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def run_story(
    name: str, folder: Path, without: Sequence[str] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a function of `given_session_story` as a program of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment = {
        **inherited,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "JAVA_HOME": str(find_java(os.environ).home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "JAVA_TOOL_OPTIONS": QUICK,
        **variables,
    }
    for variable in without:
        environment.pop(variable, None)
    return subprocess.run(
        [sys.executable, "-m", "tests.spark.given_session_story", name, str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("story", ["stays_unchanged", "other_threads", "bare_context"])
def test_a_session_of_the_user_is_neither_changed_nor_stopped(story: str, tmp_path: Path) -> None:
    ended = run_story(story, tmp_path)
    assert ended.returncode == 0, ended.stderr[-6000:]


def test_a_session_of_penstock_on_a_cluster_follows_spark_defaults(tmp_path: Path, cluster: SparkCluster) -> None:
    """Only the master, the name and the settings that tables need are Penstock's."""
    defaults = {
        "spark.executor.memory": "512m",
        "spark.driver.memory": "600m",
        "spark.local.dir": str(tmp_path / "scratch"),
        "spark.sql.shuffle.partitions": "3",
        "spark.pyspark.python": sys.executable,
        "spark.ui.enabled": "false",
        "spark.executor.extraJavaOptions": QUICK,
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
    assert QUICK in found["context"]["spark.executor.extraJavaOptions"]  # Spark adds options of its own
    del defaults["spark.executor.extraJavaOptions"]
    assert {key: found["context"].get(key) for key in defaults} == defaults
    assert found["session"]["spark.sql.shuffle.partitions"] == "3"
    assert found["session"]["spark.sql.session.timeZone"] == "UTC"
    assert found["python"] == sys.executable
    assert not {"spark.scheduler.mode", "spark.sql.catalogImplementation"} & set(found["context"])
