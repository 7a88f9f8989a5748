"""Ending a session that Penstock started writes nothing to the terminal, however its JVM ends."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

# Spark's own stop takes longer than its time limit, so its calls reach a JVM that has ended.
SLOW_STOP = """
import os, sys, threading
from pathlib import Path
from penstock.pipeline.spark.java import find_java
from penstock.pipeline.spark.classic import SessionSettings, end_session, start_session

folder = Path(sys.argv[1])
spark = start_session(SessionSettings(
    master="local[1]", java_home=find_java(os.environ).home, scratch=folder / "scratch", log=folder / "spark.log",
    driver_memory="1g",
))
spark.range(10).mapInArrow(lambda batches: batches, "id long").count()
process, stop = spark.sparkContext._gateway.proc, spark.stop

def late():
    process.wait()
    stop()

spark.stop = late
end_session(spark, at_once=False, seconds=0.0)
for thread in threading.enumerate():
    if thread.name == "penstock-spark-stop":
        thread.join()
print("ended")
"""


def test_a_jvm_that_ends_before_spark_has_stopped_leaves_no_traceback(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SLOW_STOP, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "ended\n"), ended.stderr
    assert ended.stderr == ""
