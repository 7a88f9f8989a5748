"""Run one suite with every table format, and with an Iceberg table in each kind of catalog."""

from pathlib import Path

import pytest
from tests.conformance.sinks.kit import KITS, SCHEMA, CatalogKit, Kit
from tests.services.iceberg_catalogs import KINDS, configure

from penstock.sinks.sink import Sink

RACES = "test_sink_races.py"  # `test_catalogs.py` has shorter ones for catalogs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave catalogs to the long matrix, except one that keeps all rules within seconds."""
    for item in items:
        kind = (
            item.callspec.params.get("kit") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ""
        )
        if kind in KINDS and (kind != "rest" or item.path.name == RACES):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(params=[*KITS, *KINDS], ids=[*KITS, *(f"iceberg-{kind}" for kind in KINDS)])
def kit(request: pytest.FixtureRequest) -> Kit:
    if request.param in KINDS:
        configure(request.param, request)
        return CatalogKit()
    return KITS[request.param]()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the path of a table that does not exist yet."""
    return tmp_path / "50% clicks & é"


@pytest.fixture
def sink(kit: Kit, root: Path) -> Sink:
    """Return an existing empty table with the columns of `SCHEMA`."""
    sink = kit.sink(root)
    sink.ensure_schema(SCHEMA)
    return sink
