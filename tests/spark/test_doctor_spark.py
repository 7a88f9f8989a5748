"""`penstock doctor --spark`: the findings about a cluster."""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.runs import environment
from tests.services.aws_server import AwsServer
from tests.services.bare_python import bare_python
from tests.services.forked_process import run_forked
from tests.services.one_session import Called, OneSession
from tests.services.spark_cluster import SparkCluster
from tests.spark.executors import settings

from penstock.operations.doctor.checks import STARTING_SPARK

APP = """
from penstock import App, DeltaSink, ObjectSource

app = App.from_config()
for number, (source, table) in enumerate({places!r}):
    where = ObjectSource(source, queue=f"queue-{{number}}", schema="id long")
    app.pipeline(f"pipeline-{{number}}", source=where, sink=DeltaSink(table))
"""
LAKE = "lake"
SECONDS_MAX = 600.0  # of a command


def findings(
    folder: Path, *arguments: str, code: int, session: OneSession | None = None, **given: Any
) -> Mapping[str, Any]:
    """Return the findings of a run by their check. Without ``session``, it starts one."""
    own = environment(**given)
    own["PYTHONPATH"] += f":{folder}"
    options = ["doctor", "--spark", "--json", *arguments]
    if session is None:
        done = run_forked([sys.executable, "-m", "penstock", *options], cwd=folder, env=own, timeout=SECONDS_MAX)
        ended = Called(code=done.returncode, out=done.stdout, err=done.stderr)
    else:
        ended = session.call(options, folder=folder, environment=own)
    assert ended.code == code, f"{ended.out}\n{ended.err}"
    assert ended.err == f"{STARTING_SPARK}\n"
    found: dict[str, Any] = {}
    for one in json.loads(ended.out):
        found.setdefault(one["check"], []).append(one)
    return found


def app_in(folder: Path, *places: tuple[str, str]) -> None:
    """Write an app with a pipeline for each of these pairs of source and table."""
    (folder / "lake_app.py").write_text(APP.format(places=places))


def levels(found: Mapping[str, Any]) -> dict[str, set[str]]:
    return {check: {one["level"] for one in every} for check, every in found.items()}


def test_a_cluster_that_fits_has_one_finding_for_each_need(
    tmp_path: Path, cluster: SparkCluster, cluster_session: OneSession, executor_python: Path, moto: AwsServer
) -> None:
    moto.client("s3").create_bucket(Bucket=LAKE)
    (tmp_path / "in").mkdir()
    app_in(tmp_path, (str(tmp_path / "in"), f"s3://{LAKE}/clicks"))
    given = settings(cluster, executor_python) | {"aws_endpoint_url": moto.url, "aws_region": moto.aws.region}
    found = findings(tmp_path, "--app", "lake_app:app", code=0, session=cluster_session, **given)
    needs = [
        "spark session",
        "workers",
        "packages",
        "penstock",
        "mapInArrow",
        "cancel",
        "shared folders",
        "s3 in tasks",
    ]
    assert levels(found) == {check: {"ok"} for check in needs}
    (opened,) = found["spark session"]
    assert f" on {cluster.url}, tasks at once: 2, executors: " in opened["found"]
    assert {one["found"].split(":")[0] for one in found["workers"]} == {"spark-host-0", "spark-host-1"}
    assert all(f"({executor_python})" in one["found"] for one in found["workers"])
    assert all("obstore 0." in one["found"] for one in found["packages"])
    assert "shipped to the workers; the Python data source works" in found["penstock"][0]["found"]
    assert found["cancel"][0]["found"] == "a job was cancelled by its tag"
    assert "all executors share its folders: 1" in found["shared folders"][0]["found"]
    assert (
        "listed on spark-host-0 (credentials: env), spark-host-1 (credentials: env)" in found["s3 in tasks"][0]["found"]
    )
    assert "secret" not in json.dumps(found).lower()


def test_folders_that_hosts_do_not_share_and_a_bucket_that_tasks_cannot_list_are_failures(
    tmp_path: Path,
    cluster: SparkCluster,
    cluster_session: OneSession,
    executor_python: Path,
    apart: Path,
    moto: AwsServer,
) -> None:
    (apart / "in").mkdir(exist_ok=True)
    app_in(tmp_path, (str(apart / "in"), "s3://nowhere/clicks"))
    given = settings(cluster, executor_python) | {"aws_endpoint_url": moto.url, "aws_region": moto.aws.region}
    try:
        found = findings(tmp_path, "--app", "lake_app:app", code=3, session=cluster_session, **given)
    finally:
        shutil.rmtree(apart / "in")
    assert f"do not share the folder {apart}/in: the host spark-host-" in found["shared folders"][0]["found"]
    assert "s3://nowhere/clicks cannot be listed in a task on the host spark-host-" in found["s3 in tasks"][0]["found"]
    assert "the bucket does not exist" in found["s3 in tasks"][0]["found"]


def test_executors_without_packages_are_a_failure_for_each_host_and_end_the_checks(
    tmp_path: Path, cluster: SparkCluster, cluster_session: OneSession
) -> None:
    app_in(tmp_path, ("s3://nowhere/in", str(tmp_path / "table")))
    given = settings(cluster, bare_python(tmp_path / "python", ["pyarrow", "numpy"]))
    found = findings(tmp_path, "--app", "lake_app:app", code=3, session=cluster_session, **given)
    assert levels(found) == {"spark session": {"ok"}, "workers": {"ok"}, "packages": {"failed"}}
    assert [one["found"].split(" ", 3)[3] for one in found["packages"]] == [
        "lacks zstandard and lacks boto3, obstore"
    ] * 2
    assert "`penstock admin spark pack --extra aws` writes an archive" in found["packages"][0]["hint"]


def test_a_program_that_no_host_has_is_one_failure(
    tmp_path: Path, cluster: SparkCluster, cluster_session: OneSession
) -> None:
    given = settings(cluster, tmp_path / "nowhere" / "python3")
    found = findings(tmp_path, code=3, session=cluster_session, **given)
    assert levels(found) == {"spark session": {"ok"}, "workers": {"failed"}}
    assert f"the program {tmp_path}/nowhere/python3 cannot be started" in found["workers"][0]["found"]


def test_a_master_that_does_not_exist_is_one_failure(tmp_path: Path) -> None:
    found = findings(tmp_path, "--master", "nonsense", code=3)
    assert levels(found) == {"spark session": {"failed"}}
    assert found["spark session"][0]["found"].startswith("Spark did not start: ")


@pytest.mark.slow
def test_spark_on_this_host_needs_no_sharing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    app_in(tmp_path, (str(tmp_path / "in"), str(tmp_path / "table")))
    found = findings(tmp_path, "--app", "lake_app:app", "--master", "local[1]", code=0)
    assert levels(found).keys() >= {"penstock", "mapInArrow", "cancel", "shared folders"}
    assert found["shared folders"][0]["found"].endswith("table: all tasks run on this host")
