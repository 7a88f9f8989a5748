"""`run_pipeline` runs a declared pipeline over the files of a test."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession, functions
from tests.services.unity_stub import UnityStub, served

from penstock import App, DeltaSink, ObjectSource
from penstock.config import Settings
from penstock.errors import FaultPersists, TemporaryError, UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectClaims
from penstock.testing import TestWorker, run_pipeline


def clean(df: DataFrame) -> DataFrame:
    return df.where("v is not null").withColumn("double", functions.col("v") * 2)


def test_run_pipeline_returns_rows_quarantine_and_report_and_leaves_the_declared_folders_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    app = App()
    clicks = app.pipeline(
        "clicks",
        source=ObjectSource(tmp_path / "landing", queue="clicks", schema="id long, v double"),
        transform=clean,
        sink=DeltaSink(tmp_path / "lake" / "clicks"),
    )
    files: dict[str, bytes | str] = {
        "a.jsonl": '{"id": 1, "v": 1.5}\n{"id": 2}\nno JSON\n',
        "day/b.jsonl": b'{"id": 3, "v": 2.0}\n',
    }
    result = run_pipeline(clicks, files, spark=spark)
    assert sorted(result.rows, key=lambda row: row["id"]) == [
        {"id": 1, "v": 1.5, "double": 3.0},
        {"id": 3, "v": 2.0, "double": 4.0},
    ]
    assert [(line["raw"], line["reason"]) for line in result.quarantined] == [(bytearray(b"no JSON"), "malformed")]
    assert (result.report.objects_processed, result.report.objects_dead) == (2, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_run_registers_its_tables_in_the_declared_catalog(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where its queue is
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.jsonl").write_text('{"id": 1}\nno JSON\n')
    stub = UnityStub()
    with served(stub) as url:
        settings = Settings(data_dir=str(tmp_path / "state"), tables_unity_url=url, tables_unity_token=stub.token)
        with App(settings=settings, ledger=f"sqlite:///{tmp_path}/state/ledger.db") as app:
            clicks = app.pipeline(
                "clicks",
                source=ObjectSource(tmp_path / "landing", queue="clicks", schema="id long"),
                sink=DeltaSink(tmp_path / "clicks", register="unity:main.web.clicks"),
                max_wait=0.1,
            )
            report = clicks.run(spark, source=tmp_path / "landing")
    assert report.unregistered == ()
    assert {name: table["storage_location"] for name, table in stub.tables.items()} == {
        "main.web.clicks": (tmp_path / "clicks").as_uri(),
        "main.web.clicks_quarantine": (tmp_path / "clicks_quarantine").as_uri(),
    }


def test_a_test_registers_no_table(spark: SparkSession, tmp_path: Path) -> None:
    app = App()
    sink = DeltaSink("s3://lake/lines", register="glue:web.lines")
    lines = app.pipeline("lines", source=ObjectSource(tmp_path, queue="lines", format="text"), sink=sink)
    assert run_pipeline(lines, {"a.txt": "x"}, spark=spark).report.unregistered == ()


def test_a_file_name_outside_the_source_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    app = App()
    lines = app.pipeline(
        "lines", source=ObjectSource(tmp_path, queue="lines", format="text"), sink=DeltaSink(tmp_path / "t")
    )
    with pytest.raises(UsageError, match="no path below the source"):
        run_pipeline(lines, {"../a.txt": "x"}, spark=spark)


def test_a_test_worker_leaves_pipelines_alone(tmp_path: Path) -> None:
    app, seen = App(), []
    app.pipeline("lines", source=ObjectSource(tmp_path, queue="lines", format="text"), sink=DeltaSink(tmp_path / "t"))
    app.handler("mail")(lambda message: seen.append(message.body))
    with TestWorker(app) as worker:
        worker.send("mail", b"x")
        worker.run_until_empty()
        assert worker.queues() == ["mail"]
    assert seen == [b"x"]


def test_a_run_fails_with_the_reason_if_its_ledger_takes_no_claims(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.txt").write_text("a\n")
    monkeypatch.chdir(tmp_path)  # where its queue is
    settings = Settings(data_dir=str(tmp_path / "state"), objects_retry_base=0.01, objects_max_retry_wait=0.01)
    with App(settings=settings, ledger=f"sqlite:///{tmp_path}/state/ledger.db") as app:
        lines = app.pipeline(
            "lines",
            source=ObjectSource(tmp_path / "landing", queue="lines", format="text"),
            sink=DeltaSink(tmp_path / "t"),
            max_wait=0.1,
        )

        def full(*_: object, **__: object) -> ObjectClaims:
            raise TemporaryError("its disk is full")

        monkeypatch.setattr(Ledger, "claim", full)
        with pytest.raises(FaultPersists, match="its disk is full"):
            lines.run(spark, source=tmp_path / "landing")
