"""Ingests on a standalone cluster of two workers that are hosts of their own, as far as their mounts go.

Judged by the oracle: a run either has every line exactly once, or it fails and has committed nothing.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chaos import cluster_transforms
from tests.chaos.cluster_transforms import EXECUTOR, FAULTS, OVER, STRAGGLER, TASK, WORKERS
from tests.chaos.oracle import attempts, check_done, check_meanwhile, look, objects, truth
from tests.chaos.runs import KILLED, Case, write_objects
from tests.chaos.s3_case import S3Case
from tests.services.aws_server import AwsServer
from tests.services.spark_cluster import FROM_DRIVER, SparkCluster, why_not_here

from penstock.messaging.steps import Step

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

OBJECTS = 200  # several partitions
CANNOT_WORK = 78
FAULT_PERSISTS = 75
EAGER_COPIES = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "1s",
}


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is another one on each host."""
    return tmp_path_factory.mktemp("apart")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, apart: Path) -> Iterator[SparkCluster]:
    if (reason := why_not_here()) is not None:
        pytest.skip(f"not applicable: {reason}")
    made = SparkCluster(folder=tmp_path_factory.mktemp("cluster"), private=[apart])
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture
def case(tmp_path: Path, cluster: SparkCluster) -> Iterator[Case]:
    made = Case(tmp_path, **settings(cluster))
    write_objects(made.source, range(OBJECTS))
    shutil.copy(cluster_transforms.__file__, made.folder)
    yield made
    made.close()


def settings(cluster: SparkCluster) -> dict[str, Any]:
    return {"spark_master": cluster.url, "spark_conf": json.dumps(FROM_DRIVER | EAGER_COPIES), "retry_cap_seconds": 1}


def check_nothing_happened(case: Case) -> None:
    """No object has an end, no attempt is committed, and no row is in the table."""
    assert {state for state, _, _ in objects(case.table).values()} <= {"unprocessed"}
    assert attempts(case.table).keys() <= {"abandoned"}
    assert look(case.table).rows == ()


def test_a_table_that_the_hosts_do_not_share_is_refused(case: Case, apart: Path) -> None:
    case.table = apart / "table"
    ended = case.ingest(code=CANNOT_WORK)
    assert f"do not share the folder {apart}/table" in ended.err
    assert "Traceback" not in ended.err
    check_nothing_happened(case)
    assert not attempts(case.table), "something was claimed"


def test_a_source_that_the_hosts_do_not_share_is_refused(case: Case, apart: Path) -> None:
    case.source = apart / "in"
    case.source.mkdir()
    write_objects(case.source, range(8))
    ended = case.ingest(code=CANNOT_WORK)
    assert f"do not share the folder {apart}/in: the host" in ended.err
    check_nothing_happened(case)
    assert not attempts(case.table), "something was claimed"


@pytest.mark.parametrize("folder", ["table/data", "in"])
def test_a_disk_that_is_another_one_after_the_proof_loses_nothing(
    case: Case, cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    over = case.folder / folder
    workers = [str(cluster.pid(number)) for number in range(cluster.workers)]
    monkeypatch.setenv(WORKERS, ",".join(workers))
    monkeypatch.setenv(OVER, str(over))
    try:
        ended = case.ingest("--transform", "cluster_transforms:diverge", code=FAULT_PERSISTS)
    finally:
        for worker in workers:
            inside = ["nsenter", "--mount", "--target", worker]
            while subprocess.run([*inside, "umount", str(over)], capture_output=True, check=False).returncode == 0:
                pass
    # Whichever notices first: the driver, or the executor that had looked into the folder before.
    assert re.search("[Aa]ll hosts of the Spark cluster must share|is another folder than before", ended.err)
    check_nothing_happened(case)
    case.ingest()
    check_done(truth(case.source), case.table)


def test_with_a_shared_disk_no_death_loses_or_doubles_a_line(
    case: Case, cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = truth(case.source)
    case.ingest(code=KILLED, kill_at=Step.WRITTEN.value)
    check_meanwhile(whole, case.table)
    faults = with_faults(tmp_path, monkeypatch)
    running = case.start("--transform", "cluster_transforms:faulty")
    running.wait_until((faults / EXECUTOR).exists)
    cluster.kill_worker(1)
    cluster.start_worker(1)
    running.end().but(0)
    assert {TASK, EXECUTOR, STRAGGLER} == {file.name for file in faults.iterdir()}
    check_done(whole, case.table)


def test_with_s3_no_death_loses_or_doubles_a_line(
    tmp_path: Path, cluster: SparkCluster, moto: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = S3Case(tmp_path, moto, by_queue=False, **settings(cluster))
    try:
        shutil.copy(cluster_transforms.__file__, case.folder)
        case.upload(write_objects(case.source, range(OBJECTS)))
        faults = with_faults(tmp_path, monkeypatch)
        case.ingest("--transform", "cluster_transforms:faulty")
        assert {TASK, EXECUTOR, STRAGGLER} == {file.name for file in faults.iterdir()}
        check_done(case.truth(), case.mirror())
    finally:
        case.close()


def with_faults(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    faults = folder / "faults"
    faults.mkdir()
    monkeypatch.setenv(FAULTS, str(faults))
    return faults
