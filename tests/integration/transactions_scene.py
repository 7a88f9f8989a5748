"""A user's own database of each kind, with the user's tables beside Penstock's; and queries that share no code with
Penstock.

`ask` queries the database by its plain driver, so tests see exactly what is stored.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from penstock.transactions import create_tables

KINDS = ("sqlite", "mariadb", "postgresql")
TABLES = (
    "CREATE TABLE orders (no INTEGER NOT NULL PRIMARY KEY)",
    # no key: an effect that happens twice has two rows
    "CREATE TABLE effects (no INTEGER NOT NULL, pid INTEGER NOT NULL)",
)


@dataclass(frozen=True, kw_only=True)
class UserDatabase:
    """One database with the tables of `TABLES`. The addresses are SQLAlchemy's."""

    kind: str
    url: str
    async_url: str
    ask: Callable[[str], Sequence[tuple[Any, ...]]]

    @contextmanager
    def engine(self, **options: Any) -> Iterator[Engine]:
        opened = create_engine(self.url, **options)
        yield opened
        opened.dispose()

    def async_engine(self) -> AsyncEngine:
        return create_async_engine(self.async_url)

    def outbox_rows(self) -> int:
        return self._count("penstock_outbox")

    def inbox_rows(self) -> int:
        """Return the number of rows, two for each message."""
        return self._count("penstock_inbox")

    def orders(self) -> set[int]:
        return {no for (no,) in self.ask("SELECT no FROM orders")}

    def effects(self) -> list[int]:
        return sorted(no for (no,) in self.ask("SELECT no FROM effects"))

    def _count(self, table: str) -> int:
        return int(self.ask(f"SELECT count(*) FROM {table}")[0][0])


def make_user_database(kind: str, request: pytest.FixtureRequest, folder: Path) -> UserDatabase:
    opened = _MAKERS[kind](request, folder)
    with opened.engine() as engine:
        create_tables(engine)
        with engine.begin() as connection:
            for statement in TABLES:
                connection.execute(text(statement))
    return opened


def _sqlite(_request: pytest.FixtureRequest, folder: Path) -> UserDatabase:
    path = folder / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")

    def ask(query: str) -> Sequence[tuple[Any, ...]]:
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(query).fetchall()

    return UserDatabase(
        kind="sqlite", url=f"sqlite:///{path}?timeout=20", async_url=f"sqlite+aiosqlite:///{path}", ask=ask
    )


def _mariadb(request: pytest.FixtureRequest, _folder: Path) -> UserDatabase:
    url = make_url(request.getfixturevalue("mariadb_url"))

    def ask(query: str) -> Sequence[tuple[Any, ...]]:
        access = {"user": url.username, "password": str(url.password), "database": url.database}
        with closing(pymysql.connect(unix_socket=str(url.query["unix_socket"]), **access)) as connection:
            cursor = connection.cursor()
            cursor.execute(query)
            return list(cursor.fetchall())

    return UserDatabase(kind="mariadb", ask=ask, **_addresses(url, "mysql+pymysql", "mysql+aiomysql"))


def _postgresql(request: pytest.FixtureRequest, _folder: Path) -> UserDatabase:
    url = make_url(request.getfixturevalue("postgresql_url"))

    def ask(query: str) -> Sequence[tuple[Any, ...]]:
        plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(plain) as connection:
            return connection.execute(query.encode()).fetchall()

    return UserDatabase(kind="postgresql", ask=ask, **_addresses(url, "postgresql+psycopg", "postgresql+psycopg"))


def _addresses(url: Any, plain: str, async_: str) -> dict[str, str]:
    return {
        "url": url.set(drivername=plain).render_as_string(hide_password=False),
        "async_url": url.set(drivername=async_).render_as_string(hide_password=False),
    }


_MAKERS = {"sqlite": _sqlite, "mariadb": _mariadb, "postgresql": _postgresql}
