"""Query a ledger's database with the bare driver, for oracles, which share no code with the product."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy.engine import make_url

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60


def ask(url: str, sql: str, *parameters: object) -> Sequence[tuple[Any, ...]]:
    """Return the rows of one statement, over a separate connection. Parameters are written as %s for every database."""
    with connected(url) as connection:
        rows = ask_by(connection, sql, *parameters)
        connection.commit()
    return rows


def ask_by(connection: Any, sql: str, *parameters: object) -> Sequence[tuple[Any, ...]]:
    """Return the rows of one statement, over a given connection and in its transaction."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql.replace("%s", "?") if isinstance(connection, sqlite3.Connection) else sql, parameters)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


@contextmanager
def connected(url: str) -> Iterator[Any]:
    """Open a connection of the driver, and close it afterwards."""
    connection = _connect(url)
    try:
        yield connection
    finally:
        connection.close()


def _connect(url: str) -> Any:
    parsed = make_url(url)
    kind = parsed.get_backend_name()
    if kind == "sqlite":
        return sqlite3.connect(f"file:{parsed.database}?mode=ro", uri=True, timeout=ANSWER_SECONDS)
    query = {name: value for name, value in parsed.query.items() if isinstance(value, str)}
    if kind == "postgresql":
        import psycopg

        return psycopg.connect(
            host=query.get("host", parsed.host),
            port=query.get("port", parsed.port),
            user=parsed.username,
            password=parsed.password,
            dbname=parsed.database,
            connect_timeout=CONNECT_SECONDS,
        )
    import pymysql

    return pymysql.connect(
        host=parsed.host or "localhost",
        port=parsed.port or 0,
        unix_socket=query.get("unix_socket"),
        user=parsed.username,
        password=str(parsed.password or ""),
        database=parsed.database,
        charset="utf8mb4",
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
    )
