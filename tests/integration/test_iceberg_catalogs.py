"""Both tables of a pipeline in a catalog of PyIceberg's configuration, as apps and commands open them."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.conformance.publishing.batch_maker import BatchMaker
from tests.services.iceberg_catalogs import client, configure

from penstock import App, IcebergSink, ObjectSource
from penstock.app.jobs.compact import sinks_of
from penstock.app.paths import table_paths, tables_here
from penstock.app.pipelines.plan import plan_of
from penstock.app.service_context import service_context
from penstock.app.tables import Tables
from penstock.config import Settings
from penstock.errors import ConfigurationError, TableError
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.messaging.clock import SystemClock
from penstock.messaging.tracing import NO_TRACING
from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.sinks.catalogs.name import configured_name
from penstock.sinks.registry import CATALOG_FILE
from penstock.worker.shutdown import StopSignal

CATALOG = "lake:web.clicks"


@pytest.fixture
def tables(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Tables]:
    """Return the tables of a pipeline with one published batch, which has a row and a quarantined line."""
    configure("sql", request)
    ledger = Ledger.open("sqlite://")
    paths = table_paths(f"iceberg:{tmp_path / 'clicks'}")
    tables = Tables(paths, ledger, catalog=configured_name(CATALOG), bus=Bus())
    maker = BatchMaker(root=tmp_path / "clicks", ledger=ledger, pipeline=paths.pipeline, scheme="iceberg")
    attempt_id = maker.claim()
    bad = maker.write(attempt_id, [1], root=tmp_path / "clicks_quarantine")
    maker.commit(attempt_id, maker.write(attempt_id, [1]), quarantine=bad)
    tables.publish()
    yield tables
    ledger.close()


@pytest.mark.usefixtures("tables")
def test_rows_and_quarantine_are_two_tables_of_the_catalog(tmp_path: Path) -> None:
    found = client()
    assert sorted(found.list_tables("web")) == [("web", "clicks"), ("web", "clicks_quarantine")]
    for name in ("clicks", "clicks_quarantine"):
        assert found.load_table(("web", name)).metadata.location == str(tmp_path / name)
        assert json.loads((tmp_path / name / CATALOG_FILE).read_text())["table"] == name


@pytest.mark.usefixtures("tables")
def test_commands_find_both_tables_by_the_address_alone(tmp_path: Path) -> None:
    loaded = [sink.load() for sink in sinks_of(table_paths(f"iceberg:{tmp_path / 'clicks'}"))]
    assert [None if table is None else table.position.seq for table in loaded] == [1, 1]


@pytest.mark.usefixtures("tables")
def test_the_quarantine_is_not_found_as_a_table(tmp_path: Path) -> None:
    (tmp_path / "clicks" / "_penstock" / "ledger.db").touch()
    assert tables_here(tmp_path) == [tmp_path / "clicks"]


@pytest.mark.usefixtures("tables")
def test_a_declared_pipeline_opens_its_tables_in_its_catalog(tmp_path: Path) -> None:
    """Here in another one than the tables remember, which the error names."""
    (tmp_path / "in").mkdir()
    app = App(settings=Settings(broker="memory://", ledger="sqlite://", data_dir=str(tmp_path / "state")))
    source = ObjectSource(tmp_path / "in", queue="q", schema="id long")
    declared = app.pipeline("clicks", source=source, sink=IcebergSink(tmp_path / "clicks", catalog="lake:web.other"))
    context = service_context(
        app,
        sessions=cast(Any, SimpleNamespace(session=None, check=None)),
        bus=Bus(),
        clock=SystemClock(),
        stop=StopSignal(),
        tracing=NO_TRACING,
    )
    with closing(Ledger.open("sqlite://")) as ledger:
        plan = plan_of(declared.declaration, replace(context, ledger=lambda: ledger), faults_max=None)
        tables = plan.blueprint.tables
        with pytest.raises(TableError, match=r"lake:web\.clicks, and lake:web\.other is declared"):
            tables.rows.load()
        with pytest.raises(TableError, match=r"web\.clicks_quarantine, and lake:web\.other_quarantine is declared"):
            tables.quarantine.load()


def test_an_ingest_with_an_unknown_catalog_creates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    (tmp_path / ".pyiceberg.yaml").write_text("catalog:\n  other:\n    uri: http://127.0.0.1:1\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"id": 1}\n')
    request = IngestRequest(
        source=str(tmp_path / "in"),
        table=f"iceberg:{tmp_path / 'clicks'}",
        schema="id long",
        catalog="nowhere:web.clicks",
    )
    with pytest.raises(ConfigurationError, match=r"no catalog nowhere \(it has: other\)"):
        ingest(request, stop=StopSignal())
    assert not (tmp_path / "clicks").exists()
