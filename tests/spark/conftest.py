"""One Spark session for all tests of this folder, and what tests on a cluster share."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.services.bare_python import bare_python, site_packages
from tests.services.one_session import OneSession
from tests.services.spark_cluster import SparkCluster
from tests.spark.executors import settings

from penstock.pipeline.spark.java import find_java
from penstock.pipeline.spark.requirements import FOR_S3, REQUIRED
from penstock.pipeline.spark.source import datasource

OLDER_PENSTOCK = "raise ImportError('this is an older Penstock')\n"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    os.environ["JAVA_HOME"] = str(find_java(os.environ).home)
    scratch: Path = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    datasource.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def executor_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with nothing but what tasks need, and an older Penstock."""
    folder = tmp_path_factory.mktemp("executors") / "python"
    program = bare_python(folder, [*REQUIRED, *FOR_S3])
    older = site_packages(folder) / "penstock" / "__init__.py"
    older.parent.mkdir()
    older.write_text(OLDER_PENSTOCK)
    return program


@pytest.fixture(scope="module")
def cluster_session(
    tmp_path_factory: pytest.TempPathFactory, cluster: SparkCluster, executor_python: Path
) -> Iterator[OneSession]:
    """Return one session on the cluster for the commands of a file. It occupies all executors."""
    conf = json.loads(settings(cluster, executor_python)["spark_conf"])
    with closing(OneSession(tmp_path_factory.mktemp("session"), master=cluster.url, conf=conf)) as made:
        yield made
