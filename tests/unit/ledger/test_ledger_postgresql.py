"""Errors of PostgreSQL and its URLs, without a server."""

import sys
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.ledger import Ledger
from penstock.ledger.database import Database
from penstock.ledger.dialects import Clash, dialect_for
from penstock.ledger.dialects.postgresql import Postgresql
from penstock.ledger.dialects.postgresql_connection import BoundedConnection

ADDRESS = "postgresql://penstock:***@db/ledger"


def by_code(code: str, text: str = "from the server") -> BaseException:
    error = psycopg.errors.lookup(code)(text) if code in psycopg.errors._sqlcodes else psycopg.DatabaseError(text)
    error.sqlstate = code
    return error


def explained(error: BaseException, *, statement: str | None = "SELECT 1") -> PenstockError | None:
    wrapped = DBAPIError.instance(statement, None, error, psycopg.Error)
    assert isinstance(wrapped, DBAPIError)
    return Postgresql().explain(wrapped, ADDRESS)


@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_a_rolled_back_transaction_is_a_clash_in_a_statement_and_at_commit(code: str) -> None:
    assert isinstance(explained(by_code(code)), Clash)
    assert isinstance(explained(by_code(code), statement=None), Clash)


def test_in_a_failed_transaction_a_commit_is_a_clash_and_a_statement_is_a_defect() -> None:
    assert isinstance(explained(by_code("25P02"), statement=None), Clash)
    assert explained(by_code("25P02")) is None


@pytest.mark.parametrize(
    "code",
    [
        "55P03",
        "57014",
        "57P01",
        "57P02",
        "57P03",
        "57P05",
        "25006",
        "25P03",
        "25P04",
        "08006",
        "08003",
        "08P01",
        "53000",
        "53100",
        "53200",
        "53300",
        "58030",
    ],
)
def test_a_transient_error_is_temporary(code: str) -> None:
    error = explained(by_code(code))
    assert type(error) is TemporaryError
    assert ADDRESS in str(error)
    assert "try again" in str(error)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("28000", "pg_hba.conf"),
        ("28P01", "password"),
        ("3D000", "create it"),
        ("3F000", "search_path"),
        ("42501", "TEMPORARY"),
        ("22P05", "UTF8"),
    ],
)
def test_an_error_that_a_person_can_repair_says_how(code: str, advice: str) -> None:
    error = explained(by_code(code))
    assert isinstance(error, ConfigurationError)
    assert ADDRESS in str(error)
    assert advice in str(error)


def test_the_create_right_is_named_only_for_statements_that_change_tables() -> None:
    denied = by_code("42501")
    assert "CREATE in its schema" in str(explained(denied, statement="\nCREATE TABLE works (id INTEGER)"))
    assert "CREATE" not in str(explained(denied, statement="INSERT INTO works VALUES (1)"))
    assert "CREATE" not in str(explained(denied, statement=None))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql://", "names no database"),
        ("postgresql://penstock@db", "names no database"),
        ("postgresql://penstock@db:65536/ledger", "has the port 65536"),
    ],
)
def test_an_incomplete_or_invalid_address_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^The ledger's address .*{problem}"):
        Ledger.open(url)


def test_a_missing_driver_is_reported_with_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "penstock.ledger.dialects.postgresql_connection", None)
    with pytest.raises(ConfigurationError, match=r"^The ledger is in PostgreSQL, and .*'penstock\[postgresql\]'"):
        Ledger.open("postgresql://penstock@db/ledger")


@pytest.mark.parametrize("code", ["23505", "42601", "42703", "42P01", "22001", "XX000"])
def test_an_error_that_only_a_defect_causes_is_not_explained(code: str) -> None:
    assert explained(by_code(code, 'relation "objects" does not exist')) is None


@pytest.mark.parametrize("code", ["42P01", "42P07"])
def test_a_lost_session_table_points_to_a_transaction_pooler(code: str) -> None:
    error = explained(by_code(code, 'relation "wanted" does not exist'))
    assert isinstance(error, ConfigurationError)
    assert "PgBouncer" in str(error)


CONNECTING = 'connection failed: connection to server at "10.0.0.7", port 5432 failed: '


@pytest.mark.parametrize(
    "text",
    [
        CONNECTING + "Connection refused",
        CONNECTING + "FATAL:  the database system is starting up",
        CONNECTING + "FATAL:  sorry, too many clients already",
        "failed to resolve host 'db': [Errno -2] Name or service not known",
        "consuming input failed: server closed the connection unexpectedly",
        "the connection is closed",
        "no answer for 75 s",
    ],
)
def test_an_unavailable_server_is_a_temporary_error(text: str) -> None:
    assert type(explained(psycopg.OperationalError(text))) is TemporaryError


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (CONNECTING + 'FATAL:  password authentication failed for user "penstock"', "password"),
        (CONNECTING + "fe_sendauth: no password supplied", "password"),
        (CONNECTING + 'FATAL:  role "penstock" does not exist', "password"),
        (CONNECTING + 'FATAL:  no pg_hba.conf entry for host "10.0.0.8", user "p", database "l"', "pg_hba.conf"),
        (CONNECTING + 'FATAL:  database "ledger" does not exist', "create it"),
        (CONNECTING + "server does not support SSL, but SSL was required", "ssl"),
        ('invalid sslmode value: "always"', "options"),
    ],
)
def test_a_refused_login_or_a_wrong_address_names_the_remedy(text: str, advice: str) -> None:
    error = explained(psycopg.OperationalError(text))
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith("The ledger ")
    assert advice in str(error)


def test_an_unknown_connection_option_is_a_configuration_error() -> None:
    assert isinstance(explained(psycopg.ProgrammingError('invalid connection option "speed"')), ConfigurationError)


@pytest.mark.parametrize("kind", [psycopg.DataError, psycopg.InterfaceError, psycopg.ProgrammingError])
def test_a_wrong_use_of_psycopg_is_not_explained(kind: Any) -> None:
    assert explained(kind("PostgreSQL text fields cannot contain NUL (0x00) bytes")) is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://penstock:s3cret@db/ledger",
        "postgres://penstock:s3cret@db/ledger",
        "postgresql+psycopg://penstock:s3cret@db:5433/ledger?sslmode=require",
        "postgresql://penstock@db/ledger?password=s3cret",
        "postgresql:///ledger?host=/run/postgresql&password=s3cret&sslpassword=s3cret",
    ],
)
def test_accepted_urls_are_shown_without_their_password(url: str) -> None:
    parsed = make_url(url)
    dialect = dialect_for(parsed)
    engine = dialect.create_engine(parsed, now=None)
    assert engine.url.drivername == "postgresql+psycopg"
    assert "s3cret" not in Database(engine, dialect).address
    assert "s3cret" not in repr(engine)


@pytest.mark.parametrize(
    "url", ["postgresql://penstock:s3cret@db/ledger", "postgresql://penstock@db/ledger?password=s3cret"]
)
def test_a_password_anywhere_in_the_url_reaches_the_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def record(**named: Any) -> None:
        given.update(named)
        raise psycopg.OperationalError("no server")

    monkeypatch.setattr(BoundedConnection, "connect", record)
    with pytest.raises(TemporaryError):
        Ledger.open(url)
    assert (given["password"], given["user"], given["host"], given["dbname"]) == ("s3cret", "penstock", "db", "ledger")


def test_connection_options_of_the_url_precede_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def record(**named: Any) -> None:
        given.update(named)
        raise psycopg.OperationalError("no server")

    monkeypatch.setattr(BoundedConnection, "connect", record)
    with pytest.raises(TemporaryError):
        Ledger.open("postgresql://penstock@db/ledger?connect_timeout=3")
    assert given["connect_timeout"] == "3"
    assert given["tcp_user_timeout"] > 0


@pytest.mark.parametrize("url", ["postgresql+psycopg2://db/ledger", "postgresql+asyncpg://db/ledger"])
def test_another_driver_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="postgresql://"):
        Ledger.open(url)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "penstock.ledger.dialects.postgresql_connection", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"penstock\[postgresql\]"):
        Ledger.open("postgresql://db/ledger")
