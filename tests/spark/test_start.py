"""The archive of Spark's classes, and the JVM and the Python workers of a local session, with a real Java."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pyspark
import pytest

import penstock

pytestmark = pytest.mark.spark

INGEST = "import sys; from penstock.cli.main import main; sys.exit(main())"
ARCHIVE_SECONDS_MAX = 600  # it is made with low priority

# A user's own function in a worker: from where it has PySpark.
WORKER = """
import os, sys
from pathlib import Path
from penstock.pipeline.spark.classic import SessionSettings, end_session, start_session
from penstock.pipeline.spark.java import find_java

def places(batches):
    import pyarrow as pa
    import pyspark
    for _ in batches:
        threads = Path("/proc", str(os.getppid()), "task")
        yield pa.RecordBatch.from_pydict({"path": [pyspark.__file__], "threads": [len(list(threads.iterdir()))]})

folder = Path(sys.argv[1])
spark = start_session(SessionSettings(
    master="local[2]", java_home=find_java(os.environ).home, scratch=folder / "scratch", log=folder / "spark.log",
    driver_memory="1g",
))
row, = spark.range(0, 1, 1, 1).mapInArrow(places, "path string, threads long").collect()
end_session(spark, at_once=True, seconds=5.0)
print(row.path, row.threads)
"""


def environment(folder: Path, **variables: str) -> Mapping[str, str]:
    """Return the environment of a user who has set nothing, with a cache in ``folder``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    source = Path(penstock.__file__).parent.parent
    return {**kept, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(source), **variables}


def ingested(folder: Path, table: str, **variables: str) -> None:
    """Ingest into a new table."""
    command = [sys.executable, "-c", INGEST, "ingest", str(folder / "in"), str(folder / table)]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder, **variables), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2 rows written" in done.stdout


@pytest.mark.slow  # three to four sessions, and the archive
def test_the_second_ingest_starts_from_an_archive_and_a_damaged_one_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    ingested(tmp_path, "first")
    archive = waited_for(tmp_path / "cache" / "penstock")

    log = tmp_path / "classes.log"
    ingested(tmp_path, "second", SPARK_SUBMIT_OPTS=f"-Xlog:class+load:file={log}")
    loaded = log.read_text(errors="replace").splitlines()
    shared = sum("shared objects file" in line for line in loaded)
    assert shared > len(loaded) / 2, "most classes come from the archive"

    with archive.open("r+b") as file:
        file.truncate(1 << 20)
    ingested(tmp_path, "third")
    archive.write_bytes(b"no archive")
    ingested(tmp_path, "fourth")


def waited_for(cache: Path) -> Path:
    until = time.monotonic() + ARCHIVE_SECONDS_MAX
    while time.monotonic() < until:
        if made := list(cache.glob("spark-*.jsa")):
            return made[0]
        time.sleep(0.1)
    raise AssertionError(f"no archive: {[path.name for path in cache.glob('*')]}")


def test_workers_import_the_installed_pyspark_and_are_forked_from_one_thread(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(tmp_path)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"(\S+) (\d+)\n", done.stdout)
    assert found is not None, done.stdout
    assert found.groups() == (pyspark.__file__, "1")
