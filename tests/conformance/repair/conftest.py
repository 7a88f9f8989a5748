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


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Scene]:
    """Where the database does not matter."""
    ledger = Ledger.open("sqlite://")
    yield Scene(folder=tmp_path, ledger=ledger)
    ledger.close()
