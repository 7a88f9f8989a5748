"""Both tables of a pipeline in a catalog of PyIceberg's configuration, as apps and commands open them."""

import json
from pathlib import Path

import pytest
from tests.conformance.publishing.batch_maker import BatchMaker
from tests.services.iceberg_catalogs import client, configure

from penstock import App, IcebergSink, ObjectSource
from penstock.app.jobs.compact import sinks_of
from penstock.app.paths import declared_table_paths, table_paths, tables_here
from penstock.app.tables import Tables
from penstock.config import Settings
from penstock.errors import ConfigurationError, TableError
from penstock.events import Bus
from penstock.ledger import Ledger
from penstock.operations.ingest.ingest import ingest
from penstock.operations.ingest.pipeline import IngestRequest
from penstock.sinks.catalogs.name import configured_name
from penstock.sinks.registry import CATALOG_FILE
from penstock.worker.shutdown import StopSignal

CATALOG = "lake:web.clicks"


@pytest.fixture
def tables(tmp_path: Path, request: pytest.FixtureRequest) -> Tables:
    """Return the tables of a pipeline with one published batch, which has a row and a quarantined line."""
    configure("sql", request)
    ledger = Ledger.open("sqlite://")
    request.addfinalizer(ledger.close)
    paths = table_paths(f"iceberg:{tmp_path / 'clicks'}")
    tables = Tables(paths, ledger, catalog=configured_name(CATALOG), bus=Bus())
    maker = BatchMaker(root=tmp_path / "clicks", ledger=ledger, pipeline=paths.pipeline, scheme="iceberg")
    attempt_id = maker.claim()
    bad = maker.write(attempt_id, [1], root=tmp_path / "clicks_quarantine")
    maker.commit(attempt_id, maker.write(attempt_id, [1]), quarantine=bad)
    tables.publish()
    return tables


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
def test_a_pipeline_with_another_catalog_is_refused_with_both_names(tmp_path: Path) -> None:
    app = App()
    source = ObjectSource(tmp_path, queue="q", schema="id long")
    declared = app.pipeline("clicks", source=source, sink=IcebergSink(tmp_path / "clicks", catalog="lake:web.other"))
    paths = declared_table_paths("clicks", declared.sink.address, Settings())
    tables = Tables(paths, Ledger.open("sqlite://"), catalog=declared.sink.metadata_catalog, bus=Bus())
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
