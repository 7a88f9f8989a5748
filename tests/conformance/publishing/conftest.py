"""A ledger in a file, as several processes share it, and a folder for the table.

Tests run with every table format that keeps a history, those with ``delta_maker`` with Delta only, and those with
``iceberg_maker`` with Iceberg in a folder. The long matrix runs the others with an Iceberg table in each kind of
catalog, too.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.publishing.batch_maker import BatchMaker
from tests.services.iceberg_catalogs import KINDS, configure, name_of

from penstock.ledger import Ledger

FORMATS = ("delta", "iceberg")
CATALOGS = [pytest.param(kind, id=f"iceberg-{kind}", marks=pytest.mark.slow) for kind in KINDS]


@pytest.fixture(params=[*FORMATS, *CATALOGS])
def maker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BatchMaker]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    root = tmp_path / "clicks"
    if request.param in KINDS:
        configure(request.param, request)
        yield BatchMaker(root=root, ledger=ledger, scheme="iceberg", catalog=name_of(root))
    else:
        yield BatchMaker(root=root, ledger=ledger, scheme=request.param)
    ledger.close()


@pytest.fixture
def delta_maker(tmp_path: Path) -> Iterator[BatchMaker]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield BatchMaker(root=tmp_path / "clicks", ledger=ledger)
    ledger.close()


@pytest.fixture
def iceberg_maker(tmp_path: Path) -> Iterator[BatchMaker]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield BatchMaker(root=tmp_path / "clicks", ledger=ledger, scheme="iceberg")
    ledger.close()
