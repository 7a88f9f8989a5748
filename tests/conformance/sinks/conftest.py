"""Every table format, one suite for all."""

from pathlib import Path

import pytest
from tests.conformance.sinks.kit import KITS, SCHEMA, Kit

from penstock.sinks.sink import Sink


@pytest.fixture(params=KITS)
def kit(request: pytest.FixtureRequest) -> Kit:
    return KITS[request.param]()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the table is: nothing is there yet."""
    return tmp_path / "50% clicks & é"


@pytest.fixture
def sink(kit: Kit, root: Path) -> Sink:
    """A table that is there, with the columns of `SCHEMA`, and empty."""
    sink = kit.sink(root)
    sink.ensure_schema(SCHEMA)
    return sink
