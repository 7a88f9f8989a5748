"""A session whose Python workers lack Penstock: one sentence at the start, and an unchanged session."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession

import penstock
from penstock.pipeline.spark.java import find_java
from penstock.pipeline.spark.probe import survey

SOURCE = Path(penstock.__file__).parents[1]
STORY = """
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.errors import ConfigurationError
from penstock.worker.shutdown import StopSignal

theirs = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
before = dict(theirs.conf.getAll)
request = IngestRequest(source="in", table="table", schema="id long")
try:
    ingest(request, stop=StopSignal(), spark=theirs)
except ConfigurationError as error:
    print(error)
assert dict(theirs.conf.getAll) == before
theirs.stop()
"""


def test_a_session_whose_workers_lack_penstock_is_distinguished_from_a_faulty_transform(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    # A Python without site packages, except for the launcher, which asks with -P for the path of the bundled Java.
    # PYTHONPATH may have this Penstock, for the driver.
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -P ] && exec {sys.executable} "$@"\n'
        f'export PYTHONPATH=$(printf %s "$PYTHONPATH" | sed "s#{SOURCE}##")\nexec {sys.executable} -S "$@"\n'
    )
    python.chmod(0o755)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"id": 1}\n')
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "PENSTOCK_"))}
    environment = {
        **inherited,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "JAVA_HOME": str(find_java(os.environ).home),
    }
    found = subprocess.run(
        [sys.executable, "-c", STORY], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "Spark's Python workers (python3) cannot run Penstock: they lack the package penstock." in found.stdout
    assert "Set PYSPARK_PYTHON to a Python that has it, before the Spark session is started" in found.stdout
    assert f"this process runs {sys.executable}." in found.stdout
    assert "Traceback" not in found.stdout


def test_two_pipelines_may_ask_the_workers_at_the_same_time(spark: SparkSession) -> None:
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(survey, [spark, spark], [["numpy"], ["pyarrow"]])
    assert [[*worker.packages] for worker in (*one, *other)] == [["numpy"], ["pyarrow"]]
