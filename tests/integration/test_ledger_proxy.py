"""The SQL proxy itself, with plain drivers: the faults that it reports must have happened."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from tests.services.sql_asking import ask, connected
from tests.services.sql_proxy import Fate, Plan, SqlProxy, all_pass, at_commit, at_random_commits, at_request

NO_RESPONSE_SECONDS = 1.0
RESPONSE_SECONDS = 60.0

OpenProxy = Callable[[Plan], SqlProxy]


@pytest.fixture(params=["mariadb_url", "postgresql_url"], ids=["mariadb", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    ask(found, "CREATE TABLE words (word VARCHAR(20) PRIMARY KEY)")
    return found


@pytest.fixture
def open_proxy(url: str) -> Iterator[OpenProxy]:
    opened: list[SqlProxy] = []

    def open_one(plan: Plan) -> SqlProxy:
        opened.append(SqlProxy(url, plan))
        return opened[-1]

    yield open_one
    for proxy in opened:
        proxy.close()


def insert_word(connection: Any, word: str) -> None:
    with closing(connection.cursor()) as cursor:
        cursor.execute("INSERT INTO words VALUES (%s)", (word,))


def words_stored(url: str) -> set[str]:
    return {word for (word,) in ask(url, "SELECT word FROM words")}


class Committing:
    """Commits in a separate thread; ``over`` is set when the commit returned or failed."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.over = threading.Event()
        threading.Thread(target=self._commit, daemon=True).start()

    def _commit(self) -> None:
        try:
            self._connection.commit()
        except Exception:
            self.over.set()


def assert_commit_fails(connection: Any) -> None:
    with pytest.raises(Exception, match=r"(?i)lost connection|closed|reset|timed out|consuming input"):
        connection.commit()


def test_the_proxy_counts_requests_and_recognizes_commits(url: str, open_proxy: OpenProxy) -> None:
    proxy = open_proxy(all_pass)
    with connected(proxy.url) as connection:
        before = proxy.requests
        insert_word(connection, "one")
        assert proxy.requests > before
        assert proxy.commits == 0
        connection.commit()
        insert_word(connection, "COMMIT")
        assert proxy.commits == 1
        connection.rollback()
    assert proxy.commits == 1
    assert proxy.faults == ()
    assert words_stored(url) == {"one"}


@pytest.mark.parametrize(
    ("fate", "stored"), [(Fate.SWALLOW, {"one", "two"}), (Fate.CUT, {"one"})], ids=["swallowed", "cut"]
)
def test_the_second_commit_is_swallowed_or_cut(url: str, open_proxy: OpenProxy, fate: Fate, stored: set[str]) -> None:
    proxy = open_proxy(at_commit(2, fate))
    with connected(proxy.url) as connection:
        insert_word(connection, "one")
        connection.commit()
        insert_word(connection, "two")
        assert_commit_fails(connection)
    ((request, did),) = proxy.faults
    assert (request.sql, request.commit, did) == ("COMMIT", 2, fate)
    assert words_stored(url) == stored
    with connected(proxy.url) as connection:
        insert_word(connection, "three")
        connection.commit()
    assert "three" in words_stored(url)


def test_a_late_commit_takes_effect_after_later_reads(url: str, open_proxy: OpenProxy) -> None:
    proxy = open_proxy(at_commit(1, Fate.LATE))
    with connected(proxy.url) as connection:
        insert_word(connection, "late")
        assert_commit_fails(connection)
    assert words_stored(url) == set()
    # The second INSERT waits for the first, whose COMMIT the proxy then forwards.
    with connected(proxy.url) as connection, pytest.raises(Exception, match=r"(?i)duplicate"):
        insert_word(connection, "late")
    assert words_stored(url) == {"late"}


@pytest.mark.parametrize(("fate", "stored"), [(Fate.CUT, set()), (Fate.SWALLOW, {"one"})], ids=["cut", "swallowed"])
def test_a_fault_can_hit_any_request(url: str, open_proxy: OpenProxy, fate: Fate, stored: set[str]) -> None:
    proxy = open_proxy(all_pass)
    with connected(proxy.url) as connection:
        if isinstance(connection, psycopg.Connection):
            connection.autocommit = True
        else:
            connection.autocommit(True)
        proxy.follow(at_request(proxy.requests + 1, fate))
        with pytest.raises(Exception, match=r"(?i)lost connection|closed|reset"):
            insert_word(connection, "one")
    assert words_stored(url) == stored


@pytest.mark.parametrize(("fate", "stored"), [(Fate.FREEZE, set()), (Fate.MUTE, {"one"})], ids=lambda x: str(x))
def test_a_frozen_connection_stays_open_without_a_response(
    url: str, open_proxy: OpenProxy, fate: Fate, stored: set[str]
) -> None:
    proxy = open_proxy(at_commit(1, fate))
    with connected(proxy.url) as connection:
        insert_word(connection, "one")
        committing = Committing(connection)
        proxy.wait_for_faults(1)
        assert not committing.over.wait(NO_RESPONSE_SECONDS)
        assert proxy.connections == 1
        assert words_stored(url) == stored
        proxy.cut()
        assert committing.over.wait(RESPONSE_SECONDS)


def test_the_proxy_refuses_new_connections_and_keeps_old_ones(url: str, open_proxy: OpenProxy) -> None:
    proxy = open_proxy(all_pass)
    with connected(proxy.url) as connection:
        proxy.refuse()
        with pytest.raises(Exception, match=r"(?i)refused"):
            ask(proxy.url, "SELECT 1")
        insert_word(connection, "one")
        connection.commit()
        proxy.welcome()
        assert ask(proxy.url, "SELECT 1") == [(1,)]
    assert words_stored(url) == {"one"}


def test_a_seed_reproduces_the_same_faults(url: str, open_proxy: OpenProxy) -> None:
    runs = []
    for run in range(2):
        proxy = open_proxy(at_random_commits(random.Random(7), [Fate.PASS, Fate.SWALLOW, Fate.CUT]))
        for number in range(10):
            with connected(proxy.url) as connection:
                insert_word(connection, f"{run}-{number}")
                try:
                    connection.commit()
                except Exception:
                    continue
        lost = {request.commit for request, fate in proxy.faults if fate is Fate.CUT}
        stored = {number + 1 for number in range(10) if f"{run}-{number}" in words_stored(url)}
        assert stored == set(range(1, 11)) - lost
        runs.append([(request.commit, fate) for request, fate in proxy.faults])
    assert runs[0] == runs[1]
    assert {fate for _, fate in runs[0]} == {Fate.SWALLOW, Fate.CUT}
