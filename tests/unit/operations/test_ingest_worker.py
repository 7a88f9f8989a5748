"""An ingest has one worker id: in its reports and traces, and in what it registers and claims."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.app import telemetry
from penstock.app.pipelines.plan import PipelineBlueprint
from penstock.app.spark import Spark
from penstock.app.state import StateFolder, open_state
from penstock.errors import ConfigurationError, RestartNeeded
from penstock.operations.ingest import ingest as module
from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.worker.shutdown import StopSignal


def test_an_ingest_reports_under_the_worker_id_that_it_registers_and_claims_under(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, list[str]] = {"reported": [], "claimed": [], "registered": []}

    def open_reports(*arguments: Any, worker: str, **options: Any) -> Any:
        found["reported"].append(worker)
        return opened_before(*arguments, worker=worker, **options)

    @contextmanager
    def opened_state(*arguments: Any, **options: Any) -> Iterator[StateFolder]:
        with open_state(*arguments, **options) as state:
            found["claimed"].append(state.worker)
            found["registered"] += [path.stem for path in (state.directory / "processes").glob("*.lock")]
            yield state

    opened_before = telemetry.open_reports
    monkeypatch.setattr(module, "open_reports", open_reports)
    monkeypatch.setattr(module, "open_state", opened_state)
    (tmp_path / "in").mkdir()

    ingest(IngestRequest(source=str(tmp_path / "in"), table=str(tmp_path / "t")), stop=StopSignal())

    assert len(found["claimed"]) == 1
    assert found["reported"] == found["registered"] == found["claimed"]


@pytest.mark.parametrize("error", [ConfigurationError("Spark did not start."), RestartNeeded("Spark's JVM ended.")])
def test_an_ingest_whose_stop_ends_spark_too_reports_a_stop(tmp_path: Path, error: Exception) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text('{"id": 1}\n')
    stop = StopSignal()

    def ended_by_the_signal() -> Any:
        stop.request()
        raise error

    request = IngestRequest(source=str(tmp_path / "in"), table=str(tmp_path / "t"), schema="id long")
    report = ingest(request, stop=stop, spark=ended_by_the_signal)
    assert report.stopped
    assert report.objects_unfinished == 1


def test_an_ingest_stopped_while_its_folders_are_checked_reports_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text('{"id": 1}\n')
    stop = StopSignal()

    def ended_by_the_signal(*_: object, **__: object) -> Any:
        stop.request()
        raise RestartNeeded("Spark's JVM ended.")

    monkeypatch.setattr(Spark, "session", lambda _: "a session")
    monkeypatch.setattr(PipelineBlueprint, "consumer", ended_by_the_signal)
    request = IngestRequest(source=str(tmp_path / "in"), table=str(tmp_path / "t"), schema="id long")
    assert ingest(request, stop=stop).stopped
