"""Ledgers on a database server that tests use one after another.

Creating the ledger's tables takes most of the time of a short test. If a test left the tables unchanged, the database
is emptied for the next test; if it changed them (a downgrade), the database is dropped.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, text

from penstock.ledger import Ledger
from penstock.ledger.database import parsed_url
from penstock.ledger.dialects import dialect_for
from penstock.ledger.schema import VERSION_TABLE, metadata

# Queries for everything that a revision of the schema consists of.
SHAPE = {
    "mysql": (
        """
        SELECT table_name, column_name, ordinal_position, column_type, is_nullable, column_default
        FROM information_schema.columns WHERE table_schema = database() ORDER BY 1, 2
        """,
        """
        SELECT table_name, index_name, seq_in_index, column_name, non_unique
        FROM information_schema.statistics WHERE table_schema = database() ORDER BY 1, 2, 3
        """,
        f"SELECT version_num FROM {VERSION_TABLE}",
    ),
    "postgresql": (
        """
        SELECT table_name, column_name, ordinal_position, udt_name, is_nullable, column_default
        FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2
        """,
        "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2",
        f"SELECT version_num FROM {VERSION_TABLE}",
    ),
}

Rows = Sequence[tuple[Any, ...]]


@dataclass
class EmptiedLedgers:
    """Empty ledgers on one server, for one thread. `fresh`, `disconnect` and `drop` are the server's methods."""

    fresh: Callable[[], str]
    disconnect: Callable[[str], None]
    drop: Callable[[str], None]
    free: list[str] = field(default_factory=list)
    shape: list[Rows] = field(default_factory=list)
    first_rows: dict[str, Rows] = field(default_factory=dict)

    @contextmanager
    def lend(self) -> Iterator[str]:
        """Lend a database with an empty ledger, as a URL."""
        url = self.free.pop() if self.free else self._make()
        yield url
        self.disconnect(url)
        if self._emptied(url):
            self.free.append(url)
        else:
            self.drop(url)

    def close(self) -> None:
        while self.free:
            self.drop(self.free.pop())

    def _make(self) -> str:
        url = self.fresh()
        with closing(Ledger.open(url)) as ledger, ledger.database.reading() as connection:
            self.shape = shape(connection)
            self.first_rows = {
                table.name: [tuple(row) for row in connection.execute(table.select())]
                for table in metadata.sorted_tables
            }
        return url

    def _emptied(self, url: str) -> bool:
        """Delete everything that tests stored. Return False if the tables have changed."""
        parsed = parsed_url(url)
        engine = dialect_for(parsed).create_engine(parsed, now=None)
        with engine.begin() as connection:
            if shape(connection) != self.shape:
                return False
            for table in reversed(metadata.sorted_tables):
                connection.execute(table.delete())
            for table in metadata.sorted_tables:
                if rows := self.first_rows[table.name]:
                    connection.execute(table.insert(), [dict(zip(table.c.keys(), row, strict=True)) for row in rows])
        engine.dispose()
        return True


def shape(connection: Connection) -> list[Rows]:
    """Return the columns, the indexes and the revision of the tables."""
    return [[tuple(row) for row in connection.execute(text(query))] for query in SHAPE[connection.dialect.name]]
