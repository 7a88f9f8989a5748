"""Executors with a Python of their own, which lacks Penstock, packages, or the driver's version.

They run on a standalone cluster. Each ingest is a process with a session of its own.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from tests.chaos.oracle import attempts, check_done, messages
from tests.chaos.runs import Case, environment
from tests.chaos.s3_case import LAKE, S3Case
from tests.services.aws_server import AwsServer
from tests.services.bare_python import bare_python, site_packages
from tests.services.spark_cluster import SparkCluster
from tests.spark.executors import settings

from penstock.operations.spark.pack import PYTHON_VARIABLE, PackRequest, pack
from penstock.pipeline.spark.requirements import REQUIRED

CANNOT_WORK = 78
STOPPED = 75  # before all objects were done
LATE_SECONDS = 60.0  # a stop timeout of 10 s, on a busy machine
OBJECTS = 8
OTHER_VERSION = """
import sys

class Version(tuple):
    major, minor, micro, releaselevel, serial = 3, 99, 0, "final", 0

sys.version_info = Version((3, 99, 0, "final", 0))
"""
# Reads a file by a path relative to the folder of the driver.
TRANSFORM = """
def with_a_relative_path(frame):
    assert frame.sparkSession.read.text("relative.txt").count() == 1
    return frame
"""
# One session on the cluster; each Python is checked as if the session had been started with it.
CHECKS = """
import json, os, sys
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.pipeline.spark import classic, shipping
from penstock.pipeline.spark.java import find_java
from penstock.operations.spark.pack import PYTHON_VARIABLE, PackRequest, pack
from penstock.pipeline.spark.probe import check_workers, require_packages
from penstock.pipeline.spark.requirements import FOR_LEDGER, FOR_S3
from penstock.pipeline.spark.session import runtime_of

master, conf, pythons, folder = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), Path(sys.argv[4])
spark = classic.start_session(
    classic.SessionSettings(
        master=master, java_home=find_java(os.environ).home, scratch=folder, log=folder / "spark.log", extra_conf=conf
    )
)
runtime_of(spark).add_package(shipping.package_archive(folder))
replies = {}
for name, program in pythons.items():
    spark.sparkContext.pythonExec = program
    try:
        check_workers(spark)
        require_packages(spark, FOR_S3, purpose="pipelines on S3", extra="aws")
        replies[name] = "fit"
        require_packages(spark, {**FOR_LEDGER, "psycopg": ""}, purpose="this reconcile", extra="postgresql")
    except ConfigurationError as error:
        replies.setdefault(name, "")
        replies[name] += str(error)
spark.stop()
print(json.dumps(replies))
"""


# A session that never ran a pipeline reads a table, which its executors do with Penstock's code.
READ = """
import json, os, sys
from pathlib import Path

from penstock.pipeline.spark import classic
from penstock.pipeline.spark.frames import frame_of
from penstock.pipeline.spark.java import find_java
from penstock.sinks.delta.sink import DeltaTableSink
from penstock.storage.aws import Aws
from penstock.storage.roots import files_at

master, conf, table, endpoint_url, folder = sys.argv[1], json.loads(sys.argv[2]), *sys.argv[3:5], Path(sys.argv[5])
spark = classic.start_session(
    classic.SessionSettings(
        master=master, java_home=find_java(os.environ).home, scratch=folder, log=folder / "spark.log", extra_conf=conf
    )
)
root = files_at(table, Aws(endpoint_url=endpoint_url, region="us-east-1"))
print(frame_of(spark, DeltaTableSink(root, pipeline="p", partition_by=None).load()).count())
spark.stop()
"""


def check_nothing_claimed(case: Case, ended_err: str) -> None:
    """Check that one sentence says why, and that every object still waits with no attempt counted."""
    assert "Traceback" not in ended_err
    assert not attempts(case.table)
    assert messages(case.table) == OBJECTS


USERS_MODULE = """
from pyspark.sql import functions

def is_kept(offset):
    return offset >= 0

def kept(frame):
    return frame.where(functions.udf(is_kept, "boolean")("_offset"))
"""


def test_without_the_packages_for_s3_nothing_is_claimed_and_with_them_every_line_arrives(
    tmp_path: Path, cluster: SparkCluster, executor_python: Path, moto: AwsServer
) -> None:
    """Penstock ships itself and the user's modules, and wins over an older one in the executors."""
    without = bare_python(tmp_path / "python", [*REQUIRED, "boto3"])
    with closing(S3Case(tmp_path, moto, by_queue=False)) as case:
        (case.folder / "checks.py").write_text(USERS_MODULE)
        case.add_objects(range(OBJECTS))
        transformed = ("--transform", "checks:kept")
        modules = json.dumps([f"{case.folder}/checks.py"])
        ended = case.ingest(*transformed, code=CANNOT_WORK, spark_py_files=modules, **settings(cluster, without))
        assert "cannot run pipelines on S3: Python 3." in ended.err
        assert " lacks obstore. `penstock admin spark pack --extra aws` writes an archive" in ended.err
        check_nothing_claimed(case, ended.err)
        case.ingest(*transformed, spark_py_files=modules, **settings(cluster, executor_python))
        check_done(case.truth(), case.mirror())
        conf = settings(cluster, executor_python)["spark_conf"]
        place = (f"s3://{LAKE}/table", moto.url, str(tmp_path / "session"))
        done = subprocess.run(
            [sys.executable, "-c", READ, cluster.url, conf, *place],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.split() == [str(len(case.truth().good))], done.stderr


@pytest.mark.slow
def test_a_packed_archive_is_all_that_executors_need(tmp_path: Path, cluster: SparkCluster) -> None:
    packed = pack(PackRequest(output=tmp_path / "packed.tar.gz"))
    bare = bare_python(tmp_path / "bare", [])
    conf = {f"spark.executorEnv.{PYTHON_VARIABLE}": str(bare), **packed.settings}
    with closing(Case(tmp_path, **settings(cluster, packed.settings["spark.pyspark.python"], **conf))) as case:
        case.add_objects(range(OBJECTS))
        (tmp_path / "transforms.py").write_text(TRANSFORM)
        (tmp_path / "relative.txt").write_text("one line\n")
        case.ingest("--transform", "transforms:with_a_relative_path")
        check_done(case.truth(), case.mirror())


def test_a_stop_ends_an_ingest_that_waits_for_an_executor(tmp_path: Path, cluster: SparkCluster) -> None:
    """A full cluster starts no executor until others free its slots; here none has enough memory for one."""
    conf = settings(cluster, sys.executable, **{"spark.executor.memory": "60g", "spark.starvation.timeout": "1s"})
    with closing(Case(tmp_path, worker_stop_timeout="10s", **conf)) as case:
        case.add_objects(range(OBJECTS))
        running = case.start()
        waits = "Initial job has not accepted any resources"
        running.wait_until(lambda: any(waits in log.read_text() for log in tmp_path.rglob("spark.log")))
        running.send(signal.SIGTERM)
        ended = running.end(seconds=LATE_SECONDS)
        assert ended.code == STOPPED, ended.err
        assert ended.report["stopped"]
        check_nothing_claimed(case, ended.err)


@pytest.mark.slow
def test_executors_of_another_version_of_python_are_refused_before_anything_is_claimed(
    tmp_path: Path, cluster: SparkCluster, other_version: Path
) -> None:
    with closing(Case(tmp_path, **settings(cluster, other_version))) as case:
        case.add_objects(range(OBJECTS))
        ended = case.ingest(code=CANNOT_WORK)
        assert "they are Python 3.99, and the driver is another version; this process is Python 3." in ended.err
        check_nothing_claimed(case, ended.err)


@pytest.fixture(scope="module")
def other_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other") / "python"
    program = bare_python(folder, [*REQUIRED])
    (site_packages(folder) / "sitecustomize.py").write_text(OTHER_VERSION)
    return program


def test_each_defect_of_the_executors_is_one_sentence(
    tmp_path: Path, cluster: SparkCluster, apart: Path, executor_python: Path, other_version: Path
) -> None:
    old = tmp_path / "old"
    with_an_old_package = bare_python(old, [*REQUIRED])
    (site_packages(old) / "zstandard").unlink()
    (site_packages(old) / "zstandard.py").write_text("__version__ = '0.9.1'\n")
    only_there = apart / "python" / "bin" / "python3"
    for number in range(cluster.workers):
        bare_python(cluster.private_folder(number, apart) / "python", [*REQUIRED])
    pythons = {
        "bare": bare_python(tmp_path / "bare", []),
        "without zstandard": bare_python(tmp_path / "no-zstandard", ["pyarrow", "numpy"]),
        "old": with_an_old_package,
        "other version": other_version,
        "missing": tmp_path / "nowhere" / "python3",
        "only in executors": only_there,
        "fit": executor_python,
    }
    found = replies_of(pythons, cluster, tmp_path / "session")
    for name, sentence in {
        "bare": f"at {pythons['bare']} on the host spark-host-",
        "without zstandard": " lacks zstandard. `penstock admin spark pack` writes an archive with all packages",
        "old": " has zstandard 0.9.1 (at least 0.23 is needed). ",
        "other version": "they are Python 3.99, and the driver is another version",
        "missing": f"the program {pythons['missing']} cannot be started",
    }.items():
        assert found[name].startswith(f"The executors of {cluster.url} cannot run Penstock: "), found[name]
        assert sentence in found[name]
    assert found["only in executors"].startswith(
        "Spark plans reads on the driver's host with the program of the executors, which cannot run Penstock there: "
        f"the program {only_there} cannot be started. Install it there, too. "
    )
    assert " lacks pyarrow, numpy, zstandard. " in found["bare"]
    assert found["fit"].startswith(f"fitThe executors of {cluster.url} cannot run this reconcile: ")
    assert " lacks pydantic, sqlalchemy, tenacity, ulid, psycopg. " in found["fit"]
    assert "spark pack --extra postgresql` writes" in found["fit"]


def replies_of(pythons: Mapping[str, Path], cluster: SparkCluster, folder: Path) -> dict[str, str]:
    """Return the result of the checks for each Python."""
    conf: str = settings(cluster, "python3")["spark_conf"]
    programs = json.dumps({name: str(program) for name, program in pythons.items()})
    done = subprocess.run(
        [sys.executable, "-c", CHECKS, cluster.url, conf, programs, str(folder)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    replies: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return replies
