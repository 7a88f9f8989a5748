"""A ledger in a file, as several processes share it, and a folder for the table."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.publishing.batch_maker import BatchMaker

from penstock.ledger import Ledger


@pytest.fixture
def maker(tmp_path: Path) -> Iterator[BatchMaker]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield BatchMaker(root=tmp_path / "clicks", ledger=ledger)
    ledger.close()
