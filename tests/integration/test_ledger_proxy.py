"""The SQL proxy itself, on the way of the plain drivers: what it says that it does has to have happened."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from tests.services.sql_asking import ask, connected
from tests.services.sql_proxy import Fate, Plan, SqlProxy, all_pass, at_commit, at_random_commits, at_request

UNHEARD_SECONDS = 1.0
HEARD_SECONDS = 60.0

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


def say(connection: Any, word: str) -> None:
    with closing(connection.cursor()) as cursor:
        cursor.execute("INSERT INTO words VALUES (%s)", (word,))


def said(url: str) -> set[str]:
    return {word for (word,) in ask(url, "SELECT word FROM words")}


class Committing:
    """Commits in a thread of its own; ``over`` is set when it is told how that went."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.over = threading.Event()
        threading.Thread(target=self._commit, daemon=True).start()

    def _commit(self) -> None:
        try:
            self._connection.commit()
        except Exception:
            self.over.set()


def commit_fails(connection: Any) -> None:
    with pytest.raises(Exception, match=r"(?i)lost connection|closed|reset|timed out|consuming input"):
        connection.commit()


def test_it_counts_requests_and_knows_commits(url: str, open_proxy: OpenProxy) -> None:
    proxy = open_proxy(all_pass)
    with connected(proxy.url) as connection:
        before = proxy.requests
        say(connection, "one")
        assert proxy.requests > before
        assert proxy.commits == 0
        connection.commit()
        say(connection, "COMMIT")
        assert proxy.commits == 1
        connection.rollback()
    assert proxy.commits == 1
    assert proxy.faults == ()
    assert said(url) == {"one"}


@pytest.mark.parametrize(
    ("fate", "there"), [(Fate.SWALLOW, {"one", "two"}), (Fate.CUT, {"one"})], ids=["swallowed", "cut"]
)
def test_the_second_commit_is_swallowed_or_never_comes(
    url: str, open_proxy: OpenProxy, fate: Fate, there: set[str]
) -> None:
    proxy = open_proxy(at_commit(2, fate))
    with connected(proxy.url) as connection:
        say(connection, "one")
        connection.commit()
        say(connection, "two")
        commit_fails(connection)
    ((request, did),) = proxy.faults
    assert (request.sql, request.commit, did) == ("COMMIT", 2, fate)
    assert said(url) == there
    with connected(proxy.url) as connection:
        say(connection, "three")
        connection.commit()
    assert "three" in said(url)


def test_a_late_commit_takes_effect_after_others_have_asked(url: str, open_proxy: OpenProxy) -> None:
    proxy = open_proxy(at_commit(1, Fate.LATE))
    with connected(proxy.url) as connection:
        say(connection, "late")
        commit_fails(connection)
    assert said(url) == set()
    # The second one waits for the first, whose COMMIT it lets through.
    with connected(proxy.url) as connection, pytest.raises(Exception, match=r"(?i)duplicate"):
        say(connection, "late")
    assert said(url) == {"late"}


@pytest.mark.parametrize(("fate", "there"), [(Fate.CUT, set()), (Fate.SWALLOW, {"one"})], ids=["cut", "swallowed"])
def test_any_request_may_be_the_one(url: str, open_proxy: OpenProxy, fate: Fate, there: set[str]) -> None:
    proxy = open_proxy(all_pass)
    with connected(proxy.url) as connection:
        if isinstance(connection, psycopg.Connection):
            connection.autocommit = True
        else:
            connection.autocommit(True)
        proxy.follow(at_request(proxy.requests + 1, fate))
        with pytest.raises(Exception, match=r"(?i)lost connection|closed|reset"):
            say(connection, "one")
    assert said(url) == there


@pytest.mark.parametrize(("fate", "there"), [(Fate.FREEZE, set()), (Fate.MUTE, {"one"})], ids=lambda x: str(x))
def test_a_frozen_connection_stays_open_and_says_nothing(
    url: str, open_proxy: OpenProxy, fate: Fate, there: set[str]
) -> None:
    proxy = open_proxy(at_commit(1, fate))
    with connected(proxy.url) as connection:
        say(connection, "one")
        heard = Committing(connection)
        proxy.wait_for_faults(1)
        assert not heard.over.wait(UNHEARD_SECONDS)
        assert proxy.connections == 1
        assert said(url) == there
        proxy.cut()
        assert heard.over.wait(HEARD_SECONDS)


def test_it_refuses_new_connections_and_keeps_old_ones(url: str, open_proxy: OpenProxy) -> None:
    proxy = open_proxy(all_pass)
    with connected(proxy.url) as connection:
        proxy.refuse()
        with pytest.raises(Exception, match=r"(?i)refused"):
            ask(proxy.url, "SELECT 1")
        say(connection, "one")
        connection.commit()
        proxy.welcome()
        assert ask(proxy.url, "SELECT 1") == [(1,)]
    assert said(url) == {"one"}


def test_a_seed_draws_the_same_faults_again(url: str, open_proxy: OpenProxy) -> None:
    stories = []
    for story in range(2):
        proxy = open_proxy(at_random_commits(random.Random(7), [Fate.PASS, Fate.SWALLOW, Fate.CUT]))
        for number in range(10):
            with connected(proxy.url) as connection:
                say(connection, f"{story}-{number}")
                try:
                    connection.commit()
                except Exception:
                    continue
        lost = {request.commit for request, fate in proxy.faults if fate is Fate.CUT}
        there = {number + 1 for number in range(10) if f"{story}-{number}" in said(url)}
        assert there == set(range(1, 11)) - lost
        stories.append([(request.commit, fate) for request, fate in proxy.faults])
    assert stories[0] == stories[1]
    assert {fate for _, fate in stories[0]} == {Fate.SWALLOW, Fate.CUT}
