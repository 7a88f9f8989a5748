"""A table in each format that keeps a history, with a ledger in a file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.publishing.batch_maker import BatchMaker

from penstock.ledger import Ledger


@pytest.fixture(params=["delta", "iceberg"])
def maker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BatchMaker]:
    ledger = Ledger.open(tmp_path / "ledger.db")
    yield BatchMaker(root=tmp_path / "table", ledger=ledger, scheme=request.param)
    ledger.close()
