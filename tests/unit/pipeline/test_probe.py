"""The packages of Spark's workers: which are needed, and the sentences about them."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import ConfigurationError
from penstock.pipeline.spark import probe
from penstock.pipeline.spark.probe import (
    WorkerPython,
    package_faults,
    remedy,
    require_packages,
)
from penstock.pipeline.spark.requirements import FOR_LEDGER, FOR_S3, REQUIRED

ROOT = Path(__file__).parents[3]
FIT = {"pyarrow": "26.0.1", "numpy": "2.4", "zstandard": "unknown"}


class Session:
    """A session, of which the checks need only the identity."""


class Surveys:
    """Replace the survey job. ``packages`` are those of the workers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, packages: dict[str, str | None], *, is_local: bool) -> None:
        self.asked: list[Sequence[str]] = []
        self._packages = packages
        runtime = SimpleNamespace(is_local=is_local, address="spark://head:7077", worker_pythons=lambda: ())
        monkeypatch.setattr(probe, "runtime_of", lambda _: runtime)
        monkeypatch.setattr(probe, "survey", self._survey)

    def _survey(self, _: object, names: Sequence[str]) -> Sequence[WorkerPython]:
        self.asked.append(names)
        found = {name: self._packages.get(name) for name in names}
        return [WorkerPython(host="h1", program="/py", version="3.11.2", packages=found)]


def worker(**packages: str | None) -> WorkerPython:
    return WorkerPython(host="h1", program="/py", version="3.11.2", packages=packages)


def test_missing_and_old_packages_are_named() -> None:
    assert package_faults(worker(**FIT), REQUIRED) == []
    assert package_faults(worker(**FIT | {"pyarrow": "17.0.0", "numpy": None}), REQUIRED) == [
        "lacks numpy",
        "has pyarrow 17.0.0 (at least 18 is needed)",
    ]


def test_the_oldest_versions_are_those_of_the_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = "\n".join([*project["dependencies"], *project["optional-dependencies"]["pipeline"]])
    declared += "\n" + "\n".join(project["optional-dependencies"]["aws"])
    for name, oldest in {**REQUIRED, **FOR_S3, **FOR_LEDGER}.items():
        distribution = "python-ulid" if name == "ulid" else name
        assert f"{distribution}>={oldest}" in declared


def test_packages_are_checked_once_per_session(monkeypatch: pytest.MonkeyPatch) -> None:
    surveys, spark = Surveys(monkeypatch, {"boto3": "1.44", "obstore": "0.12"}, is_local=False), Session()
    for session in (spark, spark, Session()):
        any_session: Any = session
        require_packages(any_session, FOR_S3, purpose="pipelines on S3", extra="aws")
    assert surveys.asked == [["boto3", "obstore"]] * 2


def test_a_failed_check_is_repeated_and_names_purpose_and_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    surveys = Surveys(monkeypatch, {"boto3": "1.0"}, is_local=False)
    spark: Any = Session()
    for _ in range(2):
        with pytest.raises(ConfigurationError) as refused:
            require_packages(spark, FOR_S3, purpose="pipelines on S3", extra="aws")
    assert len(surveys.asked) == 2
    assert str(refused.value) == (
        "The executors of spark://head:7077 cannot run pipelines on S3: Python 3.11.2 at /py on the host h1 lacks "
        f"obstore and has boto3 1.0 (at least 1.40 is needed). {remedy('aws')}"
    )
    assert "spark pack --extra aws`" in remedy("aws")
    assert "'penstock[pipeline,aws]'" in remedy("aws")


def test_workers_with_this_process_own_python_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    surveys = Surveys(monkeypatch, {}, is_local=True)
    spark: Any = Session()
    require_packages(spark, FOR_S3, purpose="pipelines on S3", extra="aws")
    assert surveys.asked == []


def test_a_reply_is_json_of_any_worker() -> None:
    from penstock.pipeline.spark.survey_task import reply

    found = json.loads(reply(json.dumps(["json", "nothing_like_it"])))
    assert found["packages"]["nothing_like_it"] is None
    assert found["packages"]["json"]
