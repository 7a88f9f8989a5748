"""The whole chain in spans: an object announced, received, run on Spark, committed, published."""

import json
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode
from pyspark.sql import DataFrame, SparkSession
from tests.traced import Traces, linked, process_provider, traceparent

from penstock import App, DeltaSink, ObjectSource
from penstock.config import Settings
from penstock.errors import TransformError


def test_a_batch_is_traced_from_its_notifications_to_the_table(tmp_path: Path, spark: SparkSession) -> None:
    traces = Traces(process_provider())
    landing = tmp_path / "landing"
    landing.mkdir()
    for number in range(3):
        (landing / f"{number}.jsonl").write_text(json.dumps({"id": number}) + "\n")
    state = tmp_path / "state"
    settings = Settings(
        broker=f"sqlite:///{state}/queue.db",
        ledger=f"sqlite:///{state}/ledger.db",
        data_dir=str(state),
        tracing_enabled=True,
    )

    def transform(frame: DataFrame) -> DataFrame:
        with trace.get_tracer("users").start_as_current_span("mine"):
            return frame

    with App(settings=settings) as app:
        clicks = app.pipeline(
            "clicks",
            source=ObjectSource(landing, queue="clicks-events", schema="id long"),
            sink=DeltaSink(tmp_path / "lake" / "clicks"),
            transform=transform,
        )
        assert app.announce("clicks-events", str(landing)) == 3
        assert clicks.run(spark).rows_written == 3
    sent, received, process, run, commit, publish, mine = (
        traces.only(name)
        for name in (
            "send clicks-events",
            "receive clicks-events",
            "process clicks-events",
            "spark run",
            "commit",
            "publish",
            "mine",
        )
    )
    assert linked(received) == linked(process) == [traceparent(sent)]
    assert process.parent is None
    process_context = process.get_span_context()
    assert (run.parent, commit.parent, publish.parent) == (process_context, process_context, process_context)
    assert mine.parent == run.get_span_context(), "spans of a transform are process_context the run"
    names = ("messaging.system", "messaging.batch.message_count", "penstock.handler", "penstock.outcome")
    found = dict(process.attributes or {})
    assert [found[name] for name in names] == ["sqlite", 3, "clicks", "ack"]
    about = dict(run.attributes or {})
    assert (about["penstock.pipeline"], about["penstock.objects"]) == ("clicks", 3)
    assert about == dict(commit.attributes or {})
    assert dict(publish.attributes or {})["penstock.seq"] == 1
    order = [one.start_time or 0 for one in (sent, received, process, run, commit, publish)]
    assert order == sorted(order)
    assert (publish.end_time or 0) <= (process.end_time or 0)
    assert {one.status.status_code for one in (run, commit, publish, process)} == {StatusCode.UNSET}


def test_a_failed_run_is_an_error_on_its_span(tmp_path: Path, spark: SparkSession) -> None:
    traces = Traces(process_provider())
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "a.jsonl").write_text('{"id": 1}\n')
    state = tmp_path / "state"
    settings = Settings(
        broker=f"sqlite:///{state}/queue.db",
        ledger=f"sqlite:///{state}/ledger.db",
        data_dir=str(state),
        tracing_enabled=True,
    )

    def transform(frame: DataFrame) -> DataFrame:
        raise ValueError("no such column")

    with App(settings=settings) as app:
        clicks = app.pipeline(
            "clicks",
            source=ObjectSource(landing, queue="clicks-events", schema="id long"),
            sink=DeltaSink(tmp_path / "lake" / "clicks"),
            transform=transform,
        )
        app.announce("clicks-events", str(landing))
        with pytest.raises(TransformError, match="no such column"):
            clicks.run(spark)
    run = traces.named("spark run")[0]
    assert run.status.status_code is StatusCode.ERROR
    assert dict(run.attributes or {})["error.type"] == "TransformError"
    assert "no such column" in (run.status.description or "")
    assert not traces.named("commit")
    assert not traces.named("publish")
