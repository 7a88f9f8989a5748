"""`penstock doctor --spark`: the findings about a cluster, one process each."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.runs import environment
from tests.services.aws_server import AwsServer
from tests.services.bare_python import bare_python
from tests.services.spark_cluster import SparkCluster
from tests.spark.executors import settings

from penstock.operations.doctor.checks import STARTING_SPARK

pytestmark = pytest.mark.timeout(600)

APP = """
from penstock import App, DeltaSink, ObjectSource

app = App.from_config()
app.pipeline("clicks", source=ObjectSource({source!r}, queue="clicks", schema="id long"), sink=DeltaSink({table!r}))
"""
LAKE = "lake"


def findings(folder: Path, *arguments: str, code: int, **given: Any) -> Mapping[str, Any]:
    """Return the findings of a run by their check; the last one of each, but all workers as a list."""
    own = environment(**given)
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "doctor", "--spark", "--json", *arguments],
        cwd=folder,
        env=own | {"PYTHONPATH": f"{own['PYTHONPATH']}:{folder}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    assert done.stderr == f"{STARTING_SPARK}\n"
    found: dict[str, Any] = {}
    for one in json.loads(done.stdout):
        found.setdefault(one["check"], []).append(one)
    return found


def app_in(folder: Path, *, source: str, table: str) -> None:
    (folder / "lake_app.py").write_text(APP.format(source=source, table=table))


def levels(found: Mapping[str, Any]) -> dict[str, set[str]]:
    return {check: {one["level"] for one in every} for check, every in found.items()}


def test_a_cluster_that_fits_has_one_finding_for_each_need(
    tmp_path: Path, cluster: SparkCluster, executor_python: Path, moto: AwsServer
) -> None:
    moto.client("s3").create_bucket(Bucket=LAKE)
    (tmp_path / "in").mkdir()
    app_in(tmp_path, source=str(tmp_path / "in"), table=f"s3://{LAKE}/clicks")
    given = settings(cluster, executor_python) | {"aws_endpoint_url": moto.url, "aws_region": moto.aws.region}
    found = findings(tmp_path, "--app", "lake_app:app", code=0, **given)
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
    (session,) = found["spark session"]
    assert f" on {cluster.url}, tasks at once: 2, executors: " in session["found"]
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
    tmp_path: Path, cluster: SparkCluster, executor_python: Path, apart: Path, moto: AwsServer
) -> None:
    (apart / "in").mkdir(exist_ok=True)
    app_in(tmp_path, source=str(apart / "in"), table="s3://nowhere/clicks")
    given = settings(cluster, executor_python) | {"aws_endpoint_url": moto.url, "aws_region": moto.aws.region}
    try:
        found = findings(tmp_path, "--app", "lake_app:app", code=3, **given)
    finally:
        shutil.rmtree(apart / "in")
    assert f"do not share the folder {apart}/in: the host spark-host-" in found["shared folders"][0]["found"]
    assert "s3://nowhere/clicks cannot be listed in a task on the host spark-host-" in found["s3 in tasks"][0]["found"]
    assert "the bucket does not exist" in found["s3 in tasks"][0]["found"]


def test_executors_without_packages_are_a_failure_for_each_host_and_end_the_checks(
    tmp_path: Path, cluster: SparkCluster, moto: AwsServer
) -> None:
    app_in(tmp_path, source="s3://nowhere/in", table=str(tmp_path / "table"))
    given = settings(cluster, bare_python(tmp_path / "python", ["pyarrow", "numpy"]))
    found = findings(tmp_path, "--app", "lake_app:app", code=3, **given)
    assert levels(found) == {"spark session": {"ok"}, "workers": {"ok"}, "packages": {"failed"}}
    assert [one["found"].split(" ", 3)[3] for one in found["packages"]] == [
        "lacks zstandard and lacks boto3, obstore"
    ] * 2
    assert "`penstock admin spark pack --extra aws` writes an archive" in found["packages"][0]["hint"]


def test_a_program_that_no_host_has_is_one_failure(tmp_path: Path, cluster: SparkCluster) -> None:
    given = settings(cluster, tmp_path / "nowhere" / "python3")
    found = findings(tmp_path, code=3, **given)
    assert levels(found) == {"spark session": {"ok"}, "workers": {"failed"}}
    assert f"the program {tmp_path}/nowhere/python3 cannot be started" in found["workers"][0]["found"]


def test_a_master_that_does_not_exist_is_one_failure(tmp_path: Path) -> None:
    found = findings(tmp_path, "--master", "nonsense", code=3)
    assert levels(found) == {"spark session": {"failed"}}
    assert found["spark session"][0]["found"].startswith("Spark did not start: ")


def test_spark_on_this_host_needs_no_sharing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    app_in(tmp_path, source=str(tmp_path / "in"), table=str(tmp_path / "table"))
    found = findings(tmp_path, "--app", "lake_app:app", "--master", "local[1]", code=0)
    assert levels(found).keys() >= {"penstock", "mapInArrow", "cancel", "shared folders"}
    assert found["shared folders"][0]["found"].endswith("table: all tasks run on this host")
