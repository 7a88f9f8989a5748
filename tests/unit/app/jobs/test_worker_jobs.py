"""The setting `worker.jobs`: the background jobs that a worker runs."""

import threading
from pathlib import Path
from typing import Any

import pytest

from penstock import App, DeltaSink, ObjectSource, cleanup
from penstock.app.jobs import elected
from penstock.app.serving import serve
from penstock.config import Settings, load_settings
from penstock.errors import ConfigurationError
from penstock.events import Event, ThreadLeftBehind, WorkerStarted
from penstock.monitoring.metrics.meters import Meters
from penstock.pipeline import extra
from penstock.pipeline.maintenance.cleanup import CleanupPass, CleanupPassResult, SourceCleanup
from penstock.worker.shutdown import StopSignal


def started(tmp_path: Path, jobs: str, **settings: Any) -> WorkerStarted:
    """Serve until the first poll; return the start event."""
    app = App(
        settings=load_settings(
            broker=f"sqlite:///{tmp_path / 'queue.db'}",
            ledger=f"sqlite:///{tmp_path / 'ledger.db'}",
            data_dir=str(tmp_path / "state"),
            worker_jobs=jobs,
            **settings,
        )
    )
    app.object_handler("files", source=str(tmp_path), name="read", source_cleanup=cleanup.Delete(after=0))(print)
    app.handler("mails", name="mail")(print)
    heard: list[Event] = []
    try:
        serve(app, stop=StopSignal(), listeners=(heard.append,), until=lambda: True)
    finally:
        app.close()
    (event,) = (event for event in heard if isinstance(event, WorkerStarted))
    return event


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        ("all", ("replay", "cleanup", "reconcile", "archive")),
        ("none", ()),
        ("archive,gc", ("archive",)),
        ("replay", ("replay",)),
    ],
)
def test_a_worker_runs_its_selected_jobs_that_have_work(tmp_path: Path, jobs: str, expected: tuple[str, ...]) -> None:
    wanted = {"objects_archive_after": "15d", "objects_reconcile_every": "1h", "dead_letters_replay": True}
    event = started(tmp_path, jobs, **wanted)
    assert event.jobs == expected
    assert event.queues[:2] == ("files", "mails")
    assert ("files-dlq" in event.queues) == ("replay" in expected)


def test_a_job_that_no_setting_enables_does_not_run(tmp_path: Path) -> None:
    assert started(tmp_path, "all").jobs == ("cleanup",)


def test_a_worker_for_jobs_only_consumes_no_queue_of_a_handler(tmp_path: Path) -> None:
    event = started(tmp_path, "only", dead_letters_replay=True)
    assert event.jobs == ("replay", "cleanup")
    assert event.queues == ("files-dlq", "mails-dlq")
    assert started(tmp_path, "only").queues == ()


def test_a_worker_for_jobs_only_without_any_job_is_an_error() -> None:
    app = App(settings=load_settings(broker="memory://", worker_jobs="only"))
    app.handler("mails")(print)
    with pytest.raises(ConfigurationError, match=r"no background job has work in this app; .* and metrics\.address\.$"):
        serve(app, stop=StopSignal(), until=lambda: True)
    app.close()


@pytest.mark.parametrize("jobs", ["all", "monitor"])
def test_a_monitor_uses_the_ledger_of_replays_even_if_its_worker_does_not_replay(tmp_path: Path, jobs: str) -> None:
    settings = {"broker": f"sqlite:///{tmp_path / 'queue.db'}", "ledger": f"sqlite:///{tmp_path / 'ledger.db'}"}
    app = App(
        settings=load_settings(**settings, data_dir=str(tmp_path / "state"), worker_jobs=jobs, dead_letters_replay=True)
    )
    app.handler("mails", name="mail")(print)
    stop, started_jobs = StopSignal(), list[str]()

    def hear(event: Event) -> None:
        if isinstance(event, WorkerStarted):
            started_jobs.extend(event.jobs)
            stop.request()

    try:
        serve(app, stop=stop, listeners=(hear,), meters=Meters())
    finally:
        app.close()
    assert "monitor" in started_jobs


@pytest.mark.parametrize(
    ("missing", "settings", "sentence"),
    [
        ("deltalake", {}, r"work on tables, and deltalake cannot be found here: .*'penstock\[pipeline\]'"),
        ("pyarrow", {}, r"work on tables, and pyarrow cannot be found here: .*'penstock\[pipeline\]'"),
        ("deltalake", {"worker_jobs": "cleanup"}, "work on tables, and deltalake cannot be found"),
        ("deltalake", {"worker_jobs": "archive", "objects_archive_after": "15d"}, "tables, and deltalake cannot be"),
        ("deltalake", {"worker_jobs": "compact", "tables_compact_every": "1h"}, "tables, and deltalake cannot be"),
        ("pyspark", {"worker_jobs": "reconcile", "objects_reconcile_every": "1h"}, "on Spark, and pyspark cannot be"),
    ],
)
def test_a_missing_package_of_a_pipeline_job_is_reported_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, settings: dict[str, Any], sentence: str
) -> None:
    given = {"broker": "memory://", "worker_jobs": "only", **settings}
    # Otherwise the worker would also serve the pipeline's queue, and the pipeline's own check might fail first.
    monkeypatch.setattr(Settings, "serves_handlers", False)
    app = App(settings=load_settings(ledger=f"sqlite:///{tmp_path / 'ledger.db'}", **given))
    source = ObjectSource(tmp_path / "in", queue="files", schema="id long", cleanup=cleanup.Delete(after="1d"))
    app.pipeline("clicks", source=source, sink=DeltaSink(tmp_path / "clicks"))
    monkeypatch.setattr(extra, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        serve(app, stop=StopSignal(), until=lambda: True)
    assert caught.value.exit_code == 78
    app.close()


def test_a_task_that_ignores_the_stop_makes_the_process_leave_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, resume, heard = StopSignal(), threading.Event(), list[Event]()

    def hang(_work: SourceCleanup, _bounds: CleanupPass) -> CleanupPassResult:
        stop.request()
        resume.wait(60.0)
        return CleanupPassResult()

    monkeypatch.setattr(SourceCleanup, "run", hang)
    monkeypatch.setattr(elected, "FIRST_CHECK_SECONDS_MAX", 0.0)
    monkeypatch.setattr(elected, "END_SECONDS", 0.1)
    app = App(
        settings=load_settings(
            broker=f"sqlite:///{tmp_path / 'queue.db'}",
            ledger=f"sqlite:///{tmp_path / 'ledger.db'}",
            data_dir=str(tmp_path / "state"),
        )
    )
    app.object_handler("files", source=str(tmp_path), name="read", source_cleanup=cleanup.Delete(after=0))(print)
    try:
        outcome = serve(app, stop=stop, listeners=(heard.append,))
    finally:
        resume.set()
        app.close()
    assert outcome.outcome == "drained"
    assert outcome.threads_left == ("penstock-cleanup-task",)
    assert [event.thread for event in heard if isinstance(event, ThreadLeftBehind)] == ["penstock-cleanup-task"]
