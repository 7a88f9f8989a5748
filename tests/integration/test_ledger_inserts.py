"""Rows written by Penstock's multi-row INSERTs are read back unchanged, with any content."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Column, Double, Engine, Integer, LargeBinary, MetaData, Table, select
from tests.services.plugin import StartMariadb, StartPostgresql

from penstock.ledger import Ledger
from penstock.ledger.schema import LONG_TEXT

FORMS = [
    "'",
    '"',
    "\\",
    "\\'",
    "%",
    "%s",
    "%(a)s",
    "\n\r\t\x1a",
    "); DROP TABLE fuzzed; --",
    "NULL",
    "X'00'",
    "\U0001f600",
]
TABLE = Table(
    "fuzzed",
    MetaData(),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("written", LONG_TEXT),
    Column("octets", LargeBinary),
    Column("measure", Double),
    Column("count", BigInteger),
    mysql_charset="utf8mb4",
    mariadb_charset="utf8mb4",
)
# PostgreSQL has no text with U+0000 (another test covers its escaped form); no server has surrogates.
TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")) | st.sampled_from(FORMS), max_size=4
).map("".join)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "written": st.none() | TEXTS,
            "octets": st.none() | st.binary(max_size=40) | TEXTS.map(str.encode),
            "measure": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53),
            "count": st.none() | st.integers(-(2**63), 2**63 - 1),
        }
    ),
    min_size=2,  # a single row is inserted by the driver
    max_size=40,
)


@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_rows_are_read_as_they_were_written(kind: str, request: pytest.FixtureRequest) -> None:
    start: StartMariadb | StartPostgresql = request.getfixturevalue(f"start_{kind}")
    ledger = Ledger.open(start().fresh())
    try:
        compare(ledger.database.engine)
    finally:
        ledger.close()


def compare(engine: Engine) -> None:
    """Write random rows through the engine, and compare them with those on the server."""
    with engine.begin() as connection:
        TABLE.create(connection)

    @settings(max_examples=150, deadline=None)
    @given(rows=ROWS)
    def written_and_read(rows: list[dict[str, object]]) -> None:
        numbered = [{"number": number, **row} for number, row in enumerate(rows)]
        with engine.begin() as connection:
            connection.execute(TABLE.delete())
            connection.execute(TABLE.insert(), numbered)
            found = connection.execute(select(TABLE).order_by(TABLE.c.number)).mappings().all()
        assert [dict(row) for row in found] == numbered

    written_and_read()
