"""Hand a set of objects to the database once, instead of naming thousands of keys in every statement.

A statement that needs only the ids says `is_in`, one that needs more joins the set and says `among` as well: SQLite's
planner, knowing no sizes, would read every object of the pipeline to find a few, and so would PostgreSQL's until its
statistics know the table (measured). MySQL leaves it out, since it cannot name a temporary table twice in a statement.
"""

from collections.abc import Collection, Iterator, Sequence
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
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.visitors import InternalTraversal

from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.records import ObjectState
from penstock.ledger.schema import archived_objects, leaving, objects, wanted

T = TypeVar("T")

SLICE = 1_000  # ids named in one statement: every database takes so many, and finds each by its index

_EMPTY = {table: delete(table) for table in (wanted, leaving)}
_FILL = {table: insert(table) for table in (wanted, leaving)}


def fill(connection: Connection, table: Table, rows: Collection[dict[str, Any]]) -> None:
    """Make these rows the table's only ones. Every row names the same columns.

    In the order of their ids: so are the objects locked that a statement finds by the set, and transactions whose sets
    overlap wait for each other instead of for the database to break a deadlock.
    """
    connection.execute(_EMPTY[table])
    if rows:
        connection.execute(_FILL[table], sorted(rows, key=itemgetter("object_id")))


def ids_wanted(connection: Connection, object_ids: Collection[bytes]) -> None:
    """Make these ids the wanted ones."""
    fill(connection, wanted, [{"object_id": object_id} for object_id in set(object_ids)])


def slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Some at a time, for statements that delete: MySQL finds what they name by an index only where it is named, and
    MariaDB reads the whole table to delete what a set of its own names."""
    for start in range(0, len(items), SLICE):
        yield items[start : start + SLICE]


class among(ColumnElement[bool]):  # noqa: N801 - reads as an operator
    """True of every row that was joined with the set by this column; tells planners to begin with the set."""

    type = Boolean()
    inherit_cache = True
    _traverse_internals = [("hint", InternalTraversal.dp_clauseelement)]  # noqa: RUF012 - what SQLAlchemy's caches go by

    def __init__(self, column: ColumnElement[bytes], *, of: Select[Any]) -> None:
        self.hint = column.in_(of)

    def self_group(self, against: object = None) -> "among":  # noqa: ARG002 - SQLAlchemy's signature
        return self  # a condition as it is: nothing to compare with 1


@compiles(among)
def _leave_out(_element: among, _compiler: SQLCompiler, **_: Any) -> str:
    return "1 = 1"


class is_in(among):  # noqa: N801 - reads as an operator
    """True of every row whose column is in the set, which is not joined."""

    inherit_cache = True


@compiles(among, "sqlite")
@compiles(is_in)
def _spell_out(element: among, compiler: SQLCompiler, **options: Any) -> str:
    return str(compiler.process(element.hint, **options))


@compiles(among, "postgresql")
@compiles(is_in, "postgresql")
def _look_up_each(element: among, compiler: SQLCompiler, **options: Any) -> str:
    # No join, which could begin at either end: an array, whose members are looked up in the index of the column.
    column, subquery = _spell_out(element, compiler, **options).split(" IN ", 1)
    return f"{column} = ANY (ARRAY{subquery})"


def by_uri(statement: Select[Any], versions: FromClause) -> Select[Any]:
    """Lead MySQL from an object to others of its uri by their index: until its statistics know the table it would read
    every object for each of them (measured: 0.8 s for 1,000 in a new ledger)."""
    return _led(statement, versions, "ix_objects_uri")


def by_state(statement: Select[Any]) -> Select[Any]:
    """Lead MySQL through the index of states, which is all that is asked for: of a pipeline with many objects it would
    read every row instead (measured: 2.6 times as long, with all of them in memory)."""
    return _led(statement, objects, "ix_objects_state")


def _led(statement: Select[Any], through: FromClause, index: str) -> Select[Any]:
    for dialect in ("mysql", "mariadb"):
        statement = statement.with_hint(through, f"FORCE INDEX ({index})", dialect)
    return statement


class unindexed(ColumnElement[str]):  # noqa: N801 - reads as an operator
    """A column that PostgreSQL shall not go by where a set names the rows.

    That few objects are of a new pipeline, or in a state, is what its statistics said a while ago. Going by that, it
    would read all of them and look for each in the set (measured), instead of the other way round.
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


def of_pipeline(table: FromClause) -> ColumnElement[bool]:
    """Of the pipeline bound as ``in_pipeline``, where a set names its rows."""
    return unindexed(table.c.pipeline) == bindparam("in_pipeline")


def in_state(state: ObjectState) -> ColumnElement[bool]:
    """An object in this state, where a set names the objects."""
    return unindexed(objects.c.state) == state.value


def is_wanted() -> ColumnElement[bool]:
    """Of the pipeline bound as ``in_pipeline``, and in ``wanted``."""
    return of_pipeline(objects) & is_in(objects.c.object_id, of=select(wanted.c.object_id))


ARCHIVED = select(archived_objects.c.object_id).where(
    of_pipeline(archived_objects),
    is_in(archived_objects.c.object_id, of=select(wanted.c.object_id)),
)
"""Those of ``wanted`` whose rows left `objects` because they were processed."""


def unprocessed(insert: Insert) -> Insert:
    """The insert of an object that nobody has worked on."""
    return insert.values(
        # Written out, since a bound constant is looked up again for each of thousands of rows.
        state=literal_column(f"'{ObjectState.UNPROCESSED}'"),
        charged=literal_column("0"),
        refunds=literal_column("0"),
        unattributed_failures=literal_column("0"),
        first_seen_at=DatabaseNow(),
    )
