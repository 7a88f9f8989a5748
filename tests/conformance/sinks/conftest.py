"""Run one suite with every table format, and with an Iceberg table in each kind of catalog."""

from pathlib import Path

import pytest
from tests.conformance.sinks.kit import KITS, SCHEMA, CatalogKit, Kit
from tests.services.iceberg_catalogs import KINDS, configure

from penstock.sinks.sink import Sink

RACES = "test_sink_races.py"  # `test_catalogs.py` has shorter ones for catalogs
QUICK = {  # tests of catalogs that run with each kind by default
    "test_processes_that_publish_one_batch_at_once_publish_it_once",
    "test_a_commit_whose_reply_is_lost_is_published_once",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave Glue and SQL to the long matrix, and races through REST, except a few quick tests."""
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and _is_slow(item):
            item.add_marker(pytest.mark.slow)


def _is_slow(item: pytest.Function) -> bool:
    params = item.callspec.params
    kind = params.get("kit", params.get("catalog"))
    if kind == "rest":
        return item.path.name == RACES
    return kind in KINDS and item.originalname not in QUICK


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
