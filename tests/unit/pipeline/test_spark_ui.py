"""The stored Spark UI address of a run: none, the application's, or the history server's."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.pipeline.spark.classic import ClassicRuntime
from penstock.pipeline.spark.runtime import HISTORY_URL

UI = "http://driver:4040"
LOGGED = {"spark.eventLog.enabled": "true"}


def session(conf: dict[str, str], *, ui: str | None, jobs: list[int]) -> Any:
    """Return a stand-in for a session, with the attributes that `page` uses."""
    tracker = SimpleNamespace(getJobIdsForGroup=lambda attempt_id: jobs if attempt_id == "a" else [])
    return SimpleNamespace(
        sparkContext=SimpleNamespace(
            getConf=lambda: conf,
            uiWebUrl=ui,
            applicationId="app-1",
            statusTracker=lambda: tracker,
        )
    )


@pytest.mark.parametrize(
    ("conf", "ui", "expected"),
    [
        ({}, None, None),
        ({}, UI, f"{UI}/jobs/job/?id=3"),
        ({HISTORY_URL: "http://history:18080/"}, None, None),  # without an event log it would show nothing
        ({HISTORY_URL: "http://history:18080/"}, UI, f"{UI}/jobs/job/?id=3"),
        ({HISTORY_URL: "http://history:18080/", **LOGGED}, UI, "http://history:18080/history/app-1/jobs/job/?id=3"),
        ({HISTORY_URL: "https://x/{app_id}/1/", **LOGGED}, None, "https://x/app-1/1/jobs/job/?id=3"),
    ],
)
def test_the_address_is_the_page_of_the_first_job(conf: dict[str, str], ui: str | None, expected: str | None) -> None:
    assert ClassicRuntime(session(conf, ui=ui, jobs=[5, 3, 4])).page("a") == expected


def test_without_a_job_the_address_is_the_page_of_all_jobs() -> None:
    assert ClassicRuntime(session({}, ui=UI, jobs=[])).page("a") == f"{UI}/jobs/"
