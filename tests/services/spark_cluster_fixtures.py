"""One standalone Spark cluster for all tests of a process, wherever they are.

It is started on first use. Tests may kill a worker if they start it again.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.services.spark_cluster import SparkCluster, why_not_here


@pytest.fixture(scope="session")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a path that is a different folder on each host of the cluster."""
    return tmp_path_factory.mktemp("apart")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, apart: Path) -> Iterator[SparkCluster]:
    """Return a cluster of a master and two workers of one core each."""
    if (reason := why_not_here()) is not None:
        pytest.skip(f"not applicable: {reason}")
    made = SparkCluster(folder=tmp_path_factory.mktemp("cluster"), private=[apart])
    try:
        yield made.start()
    finally:
        made.close()
