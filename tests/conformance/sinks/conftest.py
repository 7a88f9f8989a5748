"""Run one suite with every table format."""

from pathlib import Path

import pytest
from tests.conformance.sinks.kit import KITS, SCHEMA, Kit

from penstock.sinks.sink import Sink


@pytest.fixture(params=KITS)
def kit(request: pytest.FixtureRequest) -> Kit:
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
