"""A ledger in a file, as several processes share it, and a folder for the table.

Tests run with every table format that keeps a history, and those with ``delta_maker`` with Delta only.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.publishing.batch_maker import BatchMaker

from penstock.ledger import Ledger

FORMATS = ("delta", "iceberg")


@pytest.fixture(params=FORMATS)
def maker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BatchMaker]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield BatchMaker(root=tmp_path / "clicks", ledger=ledger, scheme=request.param)
    ledger.close()


@pytest.fixture
def delta_maker(tmp_path: Path) -> Iterator[BatchMaker]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield BatchMaker(root=tmp_path / "clicks", ledger=ledger)
    ledger.close()
