"""Errors of MySQL and MariaDB, their URLs, and values in SQL, without a server."""

import importlib.util
import traceback
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from sqlalchemy.exc import DBAPIError

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.ledger import Ledger
from penstock.ledger.database import Database, parsed_url
from penstock.ledger.dialects import Clash, mysql
from penstock.ledger.dialects.mysql import STATEMENT_CHARS_MAX, Mysql, insert_in_chunks, literal

ADDRESS = "mysql+pymysql://penstock:***@db/ledger"


def explained(error: BaseException, *, statement: str = "SELECT 1") -> PenstockError | None:
    wrapped = DBAPIError.instance(statement, None, error, pymysql.Error)
    assert isinstance(wrapped, DBAPIError)
    return Mysql().explain(wrapped, ADDRESS)


@pytest.mark.parametrize("code", [1213, 1020])
def test_a_rolled_back_transaction_is_a_clash(code: int) -> None:
    assert isinstance(explained(pymysql.OperationalError(code, "from the server")), Clash)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (1205, "kept locked"),
        *((code, "cannot be reached") for code in (1053, 1927, 2003, 2006, 2013, 2014)),
        *((code, "takes no writes") for code in (1290, 1836)),
        *((code, "no more connections") for code in (1040, 1203, 1226)),
        *((code, "interrupted") for code in (1317, 1969, 3024)),
        *((code, "full") for code in (1021, 1114)),
        (1041, "out of memory"),
    ],
)
def test_a_transient_error_is_temporary_and_not_a_clash(code: int, expected: str) -> None:
    error = explained(pymysql.OperationalError(code, "from the server"))
    assert isinstance(error, TemporaryError)
    assert not isinstance(error, Clash), "the transaction was not rolled back, or that is not known"
    assert expected in str(error)


def test_mysql_ends_sessions_that_are_idle_for_a_minute() -> None:
    """MySQL has no other limit for a client that was frozen inside a transaction."""
    settings = " ".join(mysql.session_settings(is_mariadb=False))
    assert "wait_timeout = 60" in settings.replace("lock_wait_timeout", "")
    assert "idle_transaction_timeout" not in settings, "MySQL has no such variable"


def test_mariadb_ends_transactions_that_are_idle_for_a_minute_and_lets_pooled_connections_wait() -> None:
    settings = " ".join(mysql.session_settings(is_mariadb=True))
    assert "idle_transaction_timeout = 60" in settings
    assert "wait_timeout = 600" in settings.replace("lock_wait_timeout", "")


def test_rights_to_change_tables_are_named_only_for_statements_that_change_tables() -> None:
    denied = pymysql.OperationalError(1142, "from the server")
    assert "CREATE, ALTER" in str(explained(denied, statement="\nCREATE TABLE x (id INTEGER)"))
    assert "CREATE, ALTER" not in str(explained(denied, statement="INSERT INTO pipelines VALUES (1)"))


def test_a_closed_connection_is_a_temporary_error() -> None:
    assert isinstance(explained(pymysql.InterfaceError(0, "")), TemporaryError)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        *((code, "grant SELECT, INSERT") for code in (1044, 1045, 1142)),
        (1049, "create it"),
        (1130, "does not accept this host"),
        (1665, "binlog_format"),
        (1153, "max_allowed_packet"),
    ],
)
def test_an_error_that_a_person_can_repair_says_how(code: int, expected: str) -> None:
    error = explained(pymysql.OperationalError(code, "from the server"))
    assert isinstance(error, ConfigurationError)
    assert expected in str(error)


@pytest.mark.parametrize("code", [1062, 1064, 1146, 1406, 1048])
def test_an_error_that_only_a_defect_causes_is_not_explained(code: int) -> None:
    assert explained(pymysql.ProgrammingError(code, "from the server")) is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mysql+mysqldb://u:secret@h/d", "write mysql:// instead of mysql\\+mysqldb://"),
        ("mariadb+mariadbconnector://u:secret@h/d", "through PyMySQL, not mariadbconnector"),
        ("mysql://u:secret@h", "names no database"),
        ("mysql://u:secret@h:65536/x", "has the port 65536"),
        ("mysql://u:p@secret@h/d", "percent-encode the password"),
        ("mysql://u:p@s/secret@h/d", "percent-encode the password"),
        ("mysql://u:secret/d", "not a database URL"),
    ],
)
def test_an_unusable_url_is_refused_without_showing_its_password(url: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^The ledger.*{expected}") as refused:
        Ledger.open(url)
    assert "secret" not in "".join(traceback.format_exception(refused.value)).replace(repr(url), "")


@pytest.mark.parametrize(
    "url", ["mysql://u:other@h/d?password=s%2Fecret", "mariadb://u@h/d?passwd=s%2Fecret", "mysql://u:s%2Fecret@h/d"]
)
def test_a_password_anywhere_in_the_url_is_used_and_hidden(url: str) -> None:
    engine = Mysql().create_engine(parsed_url(url), now=None)
    assert "ecret" not in f"{engine!r} {Database(engine, Mysql()).address}"
    (_, given) = engine.dialect.create_connect_args(engine.url)
    assert given["password"] == "s/ecret"
    assert engine.url.render_as_string(hide_password=False) == "mysql+pymysql://u:s%2Fecret@h/d"


def test_without_the_driver_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"^The ledger is in MySQL.*penstock\[mysql\]"):
        Ledger.open("mysql://u:secret@h/d")
    assert importlib.util.find_spec("pymysql") is not None


def test_an_unreachable_server_is_a_temporary_error_that_hides_the_password() -> None:
    with pytest.raises(TemporaryError, match="cannot be reached") as raised:
        Ledger.open("mysql://u:secret@localhost/d?unix_socket=/nowhere/mysql.sock&passwd=secret")
    assert "secret" not in str(raised.value)


# Many rows at once


@pytest.mark.parametrize(
    "url", ["mysql://u@h/d", "mariadb://u@h/d", "mysql+pymysql://u@h/d", "mariadb+pymysql://u@h/d"]
)
def test_every_scheme_uses_the_same_driver(url: str) -> None:
    from sqlalchemy import make_url

    assert Mysql().create_engine(make_url(url), now=None).url.drivername == "mysql+pymysql"


class Cursor:
    """A cursor that records the statements it gets."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.rowcount = -1

    def execute(self, statement: str) -> int:
        self.statements.append(statement)
        return 1


def test_rows_are_joined_into_one_statement() -> None:
    cursor = Cursor()
    statement = "INSERT INTO t (a, b, c) VALUES (%s, 'free', %s) ON DUPLICATE KEY UPDATE a = t.a"
    assert insert_in_chunks(cursor, statement, [(1, "x"), (2, None)], None)
    assert cursor.statements == [
        "INSERT INTO t (a, b, c) VALUES (1, 'free', 'x'),(2, 'free', NULL) ON DUPLICATE KEY UPDATE a = t.a"
    ]


def test_no_statement_is_larger_than_a_server_accepts() -> None:
    cursor = Cursor()
    rows = [(f"{number}", "x" * 1000) for number in range(2_000)]
    assert insert_in_chunks(cursor, "INSERT INTO t (a, b) VALUES (%s, %s)", rows, None)
    assert len(cursor.statements) > 3
    assert max(map(len, cursor.statements)) < STATEMENT_CHARS_MAX + 2_000
    assert cursor.rowcount == len(cursor.statements)


def test_other_statements_are_left_to_the_driver() -> None:
    cursor = Cursor()
    assert not insert_in_chunks(cursor, "UPDATE t SET a = %s", [(1,)], SimpleNamespace())
    assert not cursor.statements


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (b"\x00'\xff", "X'0027ff'"),
        ('it\'s \\ a "test"\n', "'it\\'s \\\\ a \\\"test\\\"\\n'"),
        ("100% %s", "'100% %s'"),
        (7, "7"),
        (True, "1"),
        (0.1, "0.1e0"),
        (1e300, "1e+300"),
        (None, "NULL"),
    ],
)
def test_values_are_written_as_sql(value: Any, written: str) -> None:
    assert literal(value) == written


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not a number"):
        literal(value)
