"""The findings of `penstock doctor --spark` that a healthy cluster never shows."""

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.app.scope import ScopeRequest
from penstock.app.spark import Spark
from penstock.errors import ConfigurationError
from penstock.operations.doctor import spark as module
from penstock.operations.doctor.findings import Finding
from penstock.operations.doctor.spark import NO_CANCEL, spark_checks
from penstock.pipeline.spark import probe, session, trial
from penstock.pipeline.spark.probe import WorkerPython
from penstock.pipeline.spark.requirements import FOR_S3, REQUIRED

ALL = {**REQUIRED, **FOR_S3}
SHIPPED = "/srv/spark/penstock-1.zip/penstock"


class Cluster:
    """A Spark without a JVM. Its attributes are the results of the jobs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.packages: dict[str, str | None] = dict(ALL)
        self.penstock = [SHIPPED]
        self.can_cancel = True
        self.failure: Exception | None = None
        runtime = SimpleNamespace(
            is_local=False, address="spark://head:7077", tasks_at_once=lambda: 2, executors=lambda: None
        )
        monkeypatch.setattr(module, "require_spark", lambda: None)
        monkeypatch.setattr(module, "pipeline_locations", lambda _: [])
        monkeypatch.setattr(Spark, "session", lambda _: self._session())
        monkeypatch.setattr(Spark, "close", lambda _: None)
        monkeypatch.setattr(session, "runtime_of", lambda _: runtime)
        monkeypatch.setattr(probe, "survey", self._survey)
        monkeypatch.setattr(probe, "penstock_in_workers", lambda _: self.penstock)
        monkeypatch.setattr(trial, "run_arrow", lambda _: 2)
        monkeypatch.setattr(trial, "cancel_by_tag", lambda _: self.can_cancel)

    def findings(self) -> dict[str, Finding]:
        return {one.check: one for one in spark_checks(ScopeRequest())}

    def _session(self) -> Any:
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(version="4.0.0")

    def _survey(self, *_: object) -> list[WorkerPython]:
        return [WorkerPython(host="h1", program="/py", version="3.11.2", packages=self.packages)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_a_session_that_cannot_be_opened_is_the_only_finding(cluster: Cluster) -> None:
    cluster.failure = ConfigurationError("No session could be opened at sc://head.")
    found = cluster.findings()
    assert list(found) == ["spark session"]
    assert (found["spark session"].level, found["spark session"].found) == (
        "failed",
        "No session could be opened at sc://head.",
    )


def test_a_penstock_of_the_executors_that_hides_the_shipped_one_is_a_failure(cluster: Cluster) -> None:
    cluster.penstock = ["/opt/lib/penstock", SHIPPED]
    found = cluster.findings()
    assert list(found)[-1] == "penstock"
    assert found["penstock"].level == "failed"
    assert found["penstock"].found.startswith("the workers import Penstock from /opt/lib/penstock, and not ")


def test_a_job_that_cannot_be_cancelled_is_a_warning(cluster: Cluster) -> None:
    cluster.can_cancel = False
    found = cluster.findings()["cancel"]
    assert (found.level, found.found, found.hint) == (
        "warning",
        "a job could not be cancelled by its tag",
        NO_CANCEL,
    )


def test_missing_packages_for_s3_are_no_failure_without_a_table_in_s3(cluster: Cluster) -> None:
    cluster.packages["obstore"] = None
    found = cluster.findings()["packages"]
    assert found.level == "ok"
    assert found.found.endswith("; not enough for S3: it lacks obstore")


def test_the_number_of_executors_is_left_out_if_spark_does_not_tell(cluster: Cluster) -> None:
    assert cluster.findings()["spark session"].found == "Spark 4.0.0 on spark://head:7077, tasks at once: 2"


@pytest.mark.parametrize("failure", [None, ConfigurationError("Spark did not start.")], ids=["started", "failed"])
def test_the_log_of_spark_stays_only_if_spark_did_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: Exception | None
) -> None:
    def open_or_fail(self: Spark) -> object:
        self._log.write_text("why")
        if failure is not None:
            raise failure
        return SimpleNamespace(session=object(), end=lambda _: None)

    monkeypatch.setattr(module, "require_spark", lambda: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Spark, "_open", open_or_fail)
    monkeypatch.setattr(Spark, "_prepare", lambda _, opened: opened)
    monkeypatch.setattr(module, "_description", lambda _: "Spark")
    monkeypatch.setattr(module, "_SessionChecks", lambda *_: SimpleNamespace(findings=lambda: iter([])))
    list(spark_checks(ScopeRequest()))
    assert [file.read_text() for file in tmp_path.iterdir()] == ([] if failure is None else ["why"])
