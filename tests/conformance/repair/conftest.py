"""Every database that hosts can share, and a table in a folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.ledger.conftest import SHARED_URLS
from tests.conformance.repair.scene import Scene

from penstock.ledger import Ledger


@pytest.fixture(params=SHARED_URLS)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    ledger = Ledger.open(SHARED_URLS[request.param](request))
    yield Scene(folder=tmp_path, ledger=ledger)
    ledger.close()


@pytest.fixture(params=["delta", "iceberg"])
def sqlite_scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Return a scene for tests that do not depend on the database, with each table format that keeps a history."""
    ledger = Ledger.open("sqlite://")
    yield Scene(folder=tmp_path, ledger=ledger, scheme=request.param)
    ledger.close()
