"""Run one suite on every database that the ledger supports. Add a database by a line in `SHARED_URLS`."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))  # so that tests.conformance.ledger.ledger_harness is found

from tests.conformance.ledger.ledger_harness import PIPELINE, LedgerHarness

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
SHARED_LEDGERS: dict[str, Locate] = {  # the same, with an empty ledger already created
    "sqlite-file": _copied_sqlite_file,
    "mariadb": _by_fixture("mariadb_ledger_url"),
    "postgresql": _by_fixture("postgresql_ledger_url"),
}
LEDGERS: dict[str, Locate] = {**SHARED_LEDGERS, "sqlite-memory": lambda _: "sqlite://"}

# The last three run every test. SQLite in memory, which is for tests, has the file's dialect on one connection: it runs
# these, and its other tests have the marker `slow` (make test-slow).
IN_MEMORY = {
    "test_free_objects_are_claimed_and_the_attempt_is_counted",
    "test_an_object_to_be_retried_is_free_and_its_next_attempt_is_counted",
    "test_a_commit_closes_its_attempt_as_committed",
    "test_a_stale_attempt_changes_nothing",
    "test_while_a_key_is_open_others_are_busy_for_the_rest_of_its_lease",
    "test_an_ended_attempt_frees_the_key_and_is_reported",
    "test_an_intent_that_is_not_due_yet_is_never_forgotten",
    "test_a_late_duplicate_of_an_archived_object_ends_as_processed_and_leaves_no_trace",
    "test_counts_include_every_state",
    "test_an_abandoned_attempt_frees_its_objects_and_records_the_reason",
    "test_two_notifications_of_one_life_are_read_once",
    "test_five_thousand_objects_are_claimed_and_committed_in_one_call",
}
SERVERS = {"mariadb", "postgresql", "mariadb_url", "postgresql_url"}  # values of parameters of fixtures
FIXTURES = {"harness", "shared_harness", "server_harness", "shared_url", "scene", "url"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        params = item.callspec.params
        if any(params[name] in SERVERS for name in FIXTURES & params.keys() if isinstance(params[name], str)):
            item.add_marker(pytest.mark.server)
        if params.get("harness") == "sqlite-memory" and item.originalname not in IN_MEMORY:
            item.add_marker(pytest.mark.slow)


def _open_harness(url: str) -> Iterator[LedgerHarness]:
    ledger = Ledger.open(url)
    ledger.ensure_pipeline(PIPELINE)
    yield LedgerHarness(ledger, url=url)
    ledger.close()


@pytest.fixture(scope="session")
def empty_sqlite_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty-ledger") / "ledger.db"
    Ledger.open(path).close()
    return path


@pytest.fixture(params=LEDGERS)
def harness(request: pytest.FixtureRequest) -> Iterator[LedgerHarness]:
    yield from _open_harness(LEDGERS[request.param](request))


@pytest.fixture(params=SHARED_URLS)
def shared_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a new database that other connections, threads and processes can open too."""
    return SHARED_URLS[request.param](request)


@pytest.fixture(params=SHARED_LEDGERS)
def shared_harness(request: pytest.FixtureRequest) -> Iterator[LedgerHarness]:
    """Open a ledger that other connections, threads and processes can open too, at `LedgerHarness.url`."""
    yield from _open_harness(SHARED_LEDGERS[request.param](request))


@pytest.fixture(params=["mariadb", "postgresql"])
def server_harness(request: pytest.FixtureRequest) -> Iterator[LedgerHarness]:
    """Open a database that lets one transaction write while another runs."""
    yield from _open_harness(SHARED_LEDGERS[request.param](request))
