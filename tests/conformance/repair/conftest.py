"""Every database that hosts can share, and a table in a folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.ledger.conftest import SHARED_URLS
from tests.conformance.repair.scene import Scene
from tests.services.iceberg_catalogs import KINDS, configure

from penstock.ledger import Ledger


@pytest.fixture(params=SHARED_URLS)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    ledger = Ledger.open(SHARED_URLS[request.param](request))
    yield Scene(folder=tmp_path, ledger=ledger)
    ledger.close()


CATALOGS = [pytest.param(kind, id=f"iceberg-{kind}", marks=pytest.mark.slow) for kind in KINDS]


@pytest.fixture(params=["delta", "iceberg", *CATALOGS])
def sqlite_scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Return a scene for tests that do not depend on the database, with each table format that keeps a history."""
    ledger = Ledger.open("sqlite://")
    if request.param in KINDS:
        configure(request.param, request)
        yield Scene(folder=tmp_path, ledger=ledger, scheme="iceberg", is_in_catalog=True)
    else:
        yield Scene(folder=tmp_path, ledger=ledger, scheme=request.param)
    ledger.close()
