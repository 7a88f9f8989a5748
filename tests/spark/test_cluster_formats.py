"""Every format on a standalone cluster, from S3 into a table in S3.

The executors' Python has only the packages that tasks need. All ingests share a session.
"""

from pathlib import Path

import pytest
from tests.chaos.format_objects import FORMATS, check_read_once_from_s3
from tests.chaos.s3_case import S3Case
from tests.services.aws_server import AwsServer
from tests.services.one_session import OneSession
from tests.services.spark_cluster import SparkCluster
from tests.spark.executors import settings

pytestmark = pytest.mark.spark


QUICK = ("json", "csv", "parquet", "avro", "a function")  # one of each way of reading


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FORMATS]
)
def test_objects_in_s3_are_read_once_into_a_table_in_s3(
    tmp_path: Path,
    cluster: SparkCluster,
    cluster_session: OneSession,
    executor_python: Path,
    moto: AwsServer,
    name: str,
) -> None:
    case = S3Case(tmp_path, moto, by_queue=False, content=FORMATS[name], **settings(cluster, executor_python))
    case.session = cluster_session
    check_read_once_from_s3(case)
