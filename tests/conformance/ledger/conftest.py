"""Every database that the ledger runs on, one suite for all. The next one joins by a line in `SHARED_URLS`."""

import shutil
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


def _copied_sqlite_file(request: pytest.FixtureRequest) -> str:
    shutil.copy(request.getfixturevalue("empty_sqlite_ledger"), request.getfixturevalue("tmp_path") / "ledger.db")
    return _sqlite_file(request)


def _by_fixture(name: str) -> Locate:
    return lambda request: str(request.getfixturevalue(name))


SHARED_URLS: dict[str, Locate] = {  # new databases that several processes can use at once
    "sqlite-file": _sqlite_file,
    "mariadb": _by_fixture("mariadb_url"),
    "postgresql": _by_fixture("postgresql_url"),
}
SHARED_LEDGERS: dict[str, Locate] = {  # the same, where an empty ledger is made already
    "sqlite-file": _copied_sqlite_file,
    "mariadb": _by_fixture("mariadb_ledger_url"),
    "postgresql": _by_fixture("postgresql_ledger_url"),
}
LEDGERS: dict[str, Locate] = {**SHARED_LEDGERS, "sqlite-memory": lambda _: "sqlite://"}

# The three that last run every test. SQLite in memory, which is for tests, has the file's dialect on one connection: it
# runs these, and its other tests carry the marker `slow` (make test-slow).
IN_MEMORY = {
    "test_free_objects_are_taken_and_charged",
    "test_an_object_to_be_retried_is_free_and_charged_again",
    "test_the_attempt_is_committed",
    "test_a_stale_attempt_changes_nothing",
    "test_while_it_is_open_others_are_busy_for_the_rest_of_the_lease",
    "test_an_ended_attempt_frees_the_key_and_is_reported",
    "test_what_is_not_due_yet_is_not_forgotten_however_long_ago_it_was_intended",
    "test_a_late_duplicate_of_an_archived_object_ends_as_processed_and_leaves_no_trace",
    "test_counts_name_every_state",
    "test_an_abandoned_attempt_frees_its_objects_and_says_why",
    "test_two_announcements_of_one_life_are_read_once",
    "test_five_thousand_objects_at_once",
}
SERVERS = {"mariadb", "postgresql", "mariadb_url", "postgresql_url"}  # values of parameters of fixtures
FIXTURES = {"desk", "shared_desk", "server_desk", "shared_url", "scene", "url"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        params = item.callspec.params
        if any(params[name] in SERVERS for name in FIXTURES & params.keys() if isinstance(params[name], str)):
            item.add_marker(pytest.mark.server)
        if params.get("desk") == "sqlite-memory" and item.originalname not in IN_MEMORY:
            item.add_marker(pytest.mark.slow)


def _desk(url: str) -> Iterator[Desk]:
    ledger = Ledger.open(url)
    ledger.ensure_pipeline(PIPELINE)
    yield Desk(ledger, url=url)
    ledger.close()


@pytest.fixture(scope="session")
def empty_sqlite_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty-ledger") / "ledger.db"
    Ledger.open(path).close()
    return path


@pytest.fixture(params=LEDGERS)
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    yield from _desk(LEDGERS[request.param](request))


@pytest.fixture(params=SHARED_URLS)
def shared_url(request: pytest.FixtureRequest) -> str:
    """A new database that other connections, threads and processes can open too."""
    return SHARED_URLS[request.param](request)


@pytest.fixture(params=SHARED_LEDGERS)
def shared_desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    """A ledger that other connections, threads and processes can open too, at `Desk.url`."""
    yield from _desk(SHARED_LEDGERS[request.param](request))


@pytest.fixture(params=["mariadb", "postgresql"])
def server_desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    """A database that lets one transaction write while another is at work."""
    yield from _desk(SHARED_LEDGERS[request.param](request))
