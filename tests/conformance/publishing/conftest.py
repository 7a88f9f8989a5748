"""A ledger in a file, as several processes share it, and a folder for the table."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.publishing.mill import Mill

from penstock.ledger import Ledger


@pytest.fixture
def mill(tmp_path: Path) -> Iterator[Mill]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield Mill(root=tmp_path / "clicks", ledger=ledger)
    ledger.close()
