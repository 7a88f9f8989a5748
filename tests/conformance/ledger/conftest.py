"""Every database that the ledger runs on, one suite for all. The next one joins by a line in `SHARED_URLS`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))  # so that tests.conformance.ledger.desk is found

from tests.conformance.ledger.desk import PIPELINE, Desk

from penstock.ledger import Ledger

Locate = Callable[[pytest.FixtureRequest], str]


def _sqlite_file(request: pytest.FixtureRequest) -> str:
    return f"sqlite:///{request.getfixturevalue('tmp_path') / 'ledger.db'}"


def _by_fixture(name: str) -> Locate:
    return lambda request: str(request.getfixturevalue(name))


SHARED_URLS: dict[str, Locate] = {  # databases that several processes can use at once
    "sqlite-file": _sqlite_file,
    "mariadb": _by_fixture("mariadb_url"),
    "postgresql": _by_fixture("postgresql_url"),
}
URLS: dict[str, Locate] = {**SHARED_URLS, "sqlite-memory": lambda _: "sqlite://"}


def _desk(url: str) -> Iterator[Desk]:
    ledger = Ledger.open(url)
    ledger.ensure_pipeline(PIPELINE)
    yield Desk(ledger)
    ledger.close()


@pytest.fixture(params=URLS)
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    yield from _desk(URLS[request.param](request))


@pytest.fixture(params=SHARED_URLS)
def shared_url(request: pytest.FixtureRequest) -> str:
    """A database that other connections, threads and processes can open too."""
    return SHARED_URLS[request.param](request)


@pytest.fixture
def shared_desk(shared_url: str) -> Iterator[Desk]:
    yield from _desk(shared_url)


@pytest.fixture(params=["mariadb_url", "postgresql_url"])
def server_desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    """A database that lets one transaction write while another is at work."""
    yield from _desk(request.getfixturevalue(request.param))
