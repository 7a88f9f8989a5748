"""Pass a set of objects to the database once, instead of naming thousands of keys in every statement.

A statement that needs only the ids uses `is_in`. One that needs more columns joins the set and adds `among`: without
it, SQLite's planner, which knows no sizes, would read every object of the pipeline to find a few, and so would
PostgreSQL's until its statistics cover the table (measured). On MySQL `among` compiles to nothing, because MySQL cannot
name a temporary table twice in a statement.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    FromClause,
    Insert,
    Select,
    String,
    Table,
    bindparam,
    delete,
    insert,
    literal_column,
    select,
)
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.visitors import InternalTraversal

from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.records import ObjectState
from penstock.ledger.schema import archived_objects, leaving, objects, wanted

T = TypeVar("T")

_ROWS = 10_000  # inserted at once
SLICE = 1_000  # ids per statement: every database accepts that many and finds each by its index

_ID_BYTES = 16
# SQLite cuts the ids out of one value: an insert for each of them takes three times as long (measured).
_FILL_WITH_IDS = f"""
    INSERT INTO wanted (object_id)
    WITH RECURSIVE ids (number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM ids WHERE number + 1 < ?)
    SELECT substr(?, number * {_ID_BYTES} + 1, {_ID_BYTES}) FROM ids
"""

_EMPTY = {table: delete(table) for table in (wanted, leaving)}
_FILL = {table: insert(table) for table in (wanted, leaving)}


def fill(connection: Connection, table: Table, rows: Collection[dict[str, Any]]) -> None:
    """Replace the rows of a temporary table. Every row has the same columns.

    The rows are sorted by id, so statements that find objects by the set also lock them in that order: overlapping
    transactions then wait for each other instead of running into a deadlock.
    """
    fill_from(connection, table, sorted(rows, key=itemgetter("object_id")), lambda row: row)


def fill_from(
    connection: Connection, table: Table, ordered: Sequence[T], row_of: Callable[[T], dict[str, Any]]
) -> None:
    """Replace the rows of a temporary table by those of items, which are sorted by id; see `fill`."""
    connection.execute(_EMPTY[table])
    insert_from(connection, _FILL[table], ordered, row_of)


def insert_from(
    connection: Connection, statement: Insert, items: Sequence[T], row_of: Callable[[T], dict[str, Any]]
) -> None:
    """Insert the rows of items. Only some of the rows exist at a time: one takes more memory than its item."""
    for start in range(0, len(items), _ROWS):
        insert_rows(connection, statement, [row_of(item) for item in items[start : start + _ROWS]])


def insert_rows(connection: Connection, statement: Insert, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows that all have the same columns, at least one.

    SQLite's driver gets them as they are: SQLAlchemy would process each value first, which takes as long as the insert
    itself (measured). The dialects of the servers have hooks of their own for many rows.
    """
    if connection.dialect.name != _SQLITE.name:
        connection.execute(statement, rows)
        return
    text, names = _driver_text(statement, tuple(rows[0]))
    values = itemgetter(*names) if len(names) > 1 else lambda row: (row[names[0]],)
    connection.exec_driver_sql(text, list(map(values, rows)))


_SQLITE = sqlite_dialect()


@lru_cache(maxsize=64)
def _driver_text(statement: Insert, columns: tuple[str, ...]) -> tuple[str, Sequence[str]]:
    """Return a statement as SQLite's driver takes it, and the order of its parameters."""
    compiled: Any = statement.compile(dialect=_SQLITE, column_keys=list(columns))
    return str(compiled), compiled.positiontup


def ids_wanted(connection: Connection, object_ids: Collection[bytes]) -> None:
    """Replace the rows of ``wanted`` with these ids."""
    ordered = sorted(set(object_ids))
    if connection.dialect.name != _SQLITE.name or set(map(len, ordered)) != {_ID_BYTES}:
        fill_from(connection, wanted, ordered, lambda object_id: {"object_id": object_id})
        return
    connection.execute(_EMPTY[wanted])
    connection.exec_driver_sql(_FILL_WITH_IDS, (len(ordered), b"".join(ordered)))


def parts(object_ids: Collection[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield parts of a set of up to a million objects, to bound the memory of a query and of its rows."""
    left = iter(object_ids)
    while some := list(islice(left, _ROWS)):
        yield some


def slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield slices for statements that delete by ids.

    MySQL uses the index only for ids named in the statement, and MariaDB reads the whole table to delete by a subquery.
    """
    for start in range(0, len(items), SLICE):
        yield items[start : start + SLICE]


class among(ColumnElement[bool]):  # noqa: N801 - reads as an operator
    """A condition that is true for every row joined with the set by this column; makes planners begin with the set."""

    type = Boolean()
    inherit_cache = True
    _traverse_internals = [("hint", InternalTraversal.dp_clauseelement)]  # noqa: RUF012 - what SQLAlchemy's caches go by

    def __init__(self, column: ColumnElement[bytes], *, of: Select[Any]) -> None:
        self.hint = column.in_(of)

    def self_group(self, against: object = None) -> "among":  # noqa: ARG002 - SQLAlchemy's signature
        return self  # already a boolean: SQLAlchemy must not append "= 1"


@compiles(among)
def _leave_out(_element: among, _compiler: SQLCompiler, **_: Any) -> str:
    return "1 = 1"


class is_in(among):  # noqa: N801 - reads as an operator
    """A condition that is true if the column is in the set, for statements that do not join it."""

    inherit_cache = True


@compiles(among, "sqlite")
@compiles(is_in)
def _spell_out(element: among, compiler: SQLCompiler, **options: Any) -> str:
    return str(compiler.process(element.hint, **options))


@compiles(among, "postgresql")
@compiles(is_in, "postgresql")
def _as_array_lookup(element: among, compiler: SQLCompiler, **options: Any) -> str:
    # Not a join, whose order the planner may choose: the members of an array are looked up in the column's index.
    column, subquery = _spell_out(element, compiler, **options).split(" IN ", 1)
    return f"{column} = ANY (ARRAY{subquery})"


def by_uri(statement: Select[Any], versions: FromClause, *, index: str = "ix_objects_uri") -> Select[Any]:
    """Make MySQL find the other versions of a uri by their index.

    Until its statistics cover the table it would read every object for each of them (measured: 0.8 s for 1,000 in a new
    ledger).
    """
    return _with_index(statement, versions, index)


def by_attempt_and_uri(statement: Select[Any], versions: FromClause, *, index: str = "ix_objects_uri") -> Select[Any]:
    """Make MySQL begin with the objects of an attempt, and find the other versions of each uri by their index.

    With outdated statistics it would read the whole table of versions first, and all objects for each of them
    (measured: more than 60 s for 10,000 objects in a new ledger).
    """
    for dialect in ("mysql", "mariadb"):
        statement = statement.prefix_with("STRAIGHT_JOIN", dialect=dialect)
    return _with_index(_with_index(statement, objects, "ix_objects_attempt"), versions, index)


def by_state(statement: Select[Any]) -> Select[Any]:
    """Make MySQL use the index of states, which holds every column needed.

    For a pipeline with many objects it would read every row instead (measured: 2.6 times as long, with all rows in
    memory).
    """
    return _with_index(statement, objects, "ix_objects_state")


def by_attempt(statement: Select[Any]) -> Select[Any]:
    """Make MySQL read objects in the order of their attempts, by the index."""
    return _with_index(statement, objects, "ix_objects_attempt")


def _with_index(statement: Select[Any], through: FromClause, index: str) -> Select[Any]:
    for dialect in ("mysql", "mariadb"):
        statement = statement.with_hint(through, f"FORCE INDEX ({index})", dialect)
    return statement


class unindexed(ColumnElement[str]):  # noqa: N801 - reads as an operator
    """A column that PostgreSQL must not use as an index condition if a set names the rows.

    Outdated statistics may claim that a new pipeline, or a state, has few objects. PostgreSQL would then read all of
    them and look each up in the set (measured), instead of looking up the members of the set.
    """

    inherit_cache = True
    type = String()
    _traverse_internals = [("column", InternalTraversal.dp_clauseelement)]  # noqa: RUF012 - what SQLAlchemy's caches go by

    def __init__(self, column: ColumnElement[str]) -> None:
        self.column = column

    def self_group(self, against: object = None) -> "unindexed":  # noqa: ARG002 - SQLAlchemy's signature
        return self


@compiles(unindexed)
def _as_it_is(element: unindexed, compiler: SQLCompiler, **options: Any) -> str:
    return str(compiler.process(element.column, **options))


@compiles(unindexed, "postgresql")
def _as_an_expression(element: unindexed, compiler: SQLCompiler, **options: Any) -> str:
    return f"({_as_it_is(element, compiler, **options)} || '')"


class filtered(unindexed):  # noqa: N801 - reads as an operator
    """A column that SQLite must not use as an index condition either, because another column names few rows.

    A primary key begins with the pipeline, and SQLite would read the pipeline's rows in it (measured).
    """

    inherit_cache = True


@compiles(filtered, "sqlite")
def _with_plus(element: unindexed, compiler: SQLCompiler, **options: Any) -> str:
    return f"+{_as_it_is(element, compiler, **options)}"


class grouped(ColumnElement[bytes]):  # noqa: N801 - reads as an operator
    """A column to group by that SQLite must not read in the order of its index: it would read every row."""

    inherit_cache = True
    _traverse_internals = [("column", InternalTraversal.dp_clauseelement)]  # noqa: RUF012 - what SQLAlchemy's caches go by

    def __init__(self, column: ColumnElement[bytes]) -> None:
        self.column = column
        self.type = column.type

    def self_group(self, against: object = None) -> "grouped":  # noqa: ARG002 - SQLAlchemy's signature
        return self


@compiles(grouped)
def _group(element: grouped, compiler: SQLCompiler, **options: Any) -> str:
    return str(compiler.process(element.column, **options))


@compiles(grouped, "sqlite")
def _group_with_plus(element: grouped, compiler: SQLCompiler, **options: Any) -> str:
    return f"+{_group(element, compiler, **options)}"


def of_pipeline(table: FromClause) -> ColumnElement[bool]:
    """Match rows of the pipeline bound as ``in_pipeline``, in statements whose rows a set names."""
    return unindexed(table.c.pipeline) == bindparam("in_pipeline")


def in_state(state: ObjectState) -> ColumnElement[bool]:
    """Match objects in this state, in statements whose objects a set names."""
    return unindexed(objects.c.state) == state.value


def is_wanted() -> ColumnElement[bool]:
    """Match objects of the pipeline bound as ``in_pipeline`` that are in ``wanted``."""
    return of_pipeline(objects) & is_in(objects.c.object_id, of=select(wanted.c.object_id))


ARCHIVED = select(archived_objects.c.object_id).where(
    of_pipeline(archived_objects),
    is_in(archived_objects.c.object_id, of=select(wanted.c.object_id)),
)
"""Those of ``wanted`` whose rows left `objects` because they were processed."""


def unprocessed(insert: Insert) -> Insert:
    """Complete the insert of an object that was never claimed."""
    return insert.values(
        # Literals, because a bound constant is processed again for each of thousands of rows.
        state=literal_column(f"'{ObjectState.UNPROCESSED}'"),
        charged=literal_column("0"),
        refunds=literal_column("0"),
        unattributed_failures=literal_column("0"),
        first_seen_at=DatabaseNow(),
    )
