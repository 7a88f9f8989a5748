"""Every database that the ledger runs on, one suite for all. The next one joins by a line in `URLS`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))  # so that tests.conformance.ledger.desk is found

from tests.conformance.ledger.desk import PIPELINE, Desk

from penstock.ledger import Ledger

SHARED_URLS: dict[str, Callable[[Path], str]] = {  # databases that several processes can use at once
    "sqlite-file": lambda folder: f"sqlite:///{folder / 'ledger.db'}",
}
URLS: dict[str, Callable[[Path], str]] = {
    **SHARED_URLS,
    "sqlite-memory": lambda folder: "sqlite://",
}


def _desk(url: str) -> Iterator[Desk]:
    ledger = Ledger.open(url)
    ledger.ensure_pipeline(PIPELINE)
    yield Desk(ledger)
    ledger.close()


@pytest.fixture(params=URLS)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    yield from _desk(URLS[request.param](tmp_path))


@pytest.fixture(params=SHARED_URLS)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that other connections, threads and processes can open too."""
    return SHARED_URLS[request.param](tmp_path)


@pytest.fixture
def shared_desk(shared_url: str) -> Iterator[Desk]:
    yield from _desk(shared_url)
