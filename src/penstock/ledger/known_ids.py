"""Read the ids of all objects that need no message, in bulk: millions, without fetching a row for each.

The server concatenates the ids of a range; each has 16 bytes. Each range is a short read of its own; the next reconcile
finds changes made between two of them. Ids are digests, so they spread evenly over the 128-bit space and ranges can be
read in parallel.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

from sqlalchemy import Connection, bindparam, func, select
from sqlalchemy.engine import make_url
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from penstock.errors import TemporaryError
from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow, dialect_for
from penstock.ledger.records import TERMINAL, UNREAD, AttemptState, ObjectState, OnChange
from penstock.ledger.rules import NEVER
from penstock.ledger.schema import archived_objects, attempts, objects
from penstock.ledger.versions import superseded_between

ID_BYTES: Final = 16
IDS_END: Final = 1 << (8 * ID_BYTES)  # one past the largest id

CHUNK_IDS = 65_536  # 1 MiB per result; MariaDB limits packets to 16 MiB by default
_CONCAT_BYTES_MAX = 8 << 20  # several chunks, because a range may hold more ids than the previous one
_FIRST_STEP = IDS_END >> 16
_GROWTH_MAX = 16
_TRIES_MAX = 5  # per range, so that a lost connection does not discard the ids already read
_WAIT_SECONDS_MAX = 5.0


class Concatenated(FunctionElement[Any]):
    """The concatenated values of a group, in any order; NULL for an empty group."""

    inherit_cache = True


@compiles(Concatenated, "sqlite")
def _in_sqlite(element: Concatenated, compiler: SQLCompiler, **options: Any) -> str:
    return f"group_concat(hex({compiler.process(element.clauses, **options)}), '')"  # group_concat accepts only text


@compiles(Concatenated, "mysql")
@compiles(Concatenated, "mariadb")
def _in_mysql(element: Concatenated, compiler: SQLCompiler, **options: Any) -> str:
    return f"GROUP_CONCAT({compiler.process(element.clauses, **options)} SEPARATOR '')"


@compiles(Concatenated, "postgresql")
def _in_postgresql(element: Concatenated, compiler: SQLCompiler, **options: Any) -> str:
    return f"string_agg({compiler.process(element.clauses, **options)}, ''::bytea)"


def _of_objects(*states: ObjectState) -> Any:  # a select, whose type depends on SQLAlchemy's version
    return select(func.count(), Concatenated(objects.c.object_id)).where(
        objects.c.state.in_([state.value for state in states]),
        objects.c.pipeline == bindparam("in_pipeline"),
        objects.c.object_id.between(bindparam("first_id"), bindparam("last_id")),
    )


# Live ones first: an object that ends between two statements is found by the later one. All but the objects that were
# never read are read from an index alone.
_ID_QUERIES = (
    _of_objects(ObjectState.PROCESSING)
    .join_from(objects, attempts, attempts.c.id == objects.c.attempt_id)
    .where(attempts.c.state == AttemptState.OPEN.value, attempts.c.lease_until >= DatabaseNow()),
    _of_objects(ObjectState.PROCESSED),
    _of_objects(*sorted(TERMINAL - UNREAD - {ObjectState.PROCESSED})),
    # An object that exists refutes an earlier record that it was deleted or replaced.
    _of_objects(*sorted(UNREAD)).where(objects.c.ended_at >= bindparam("seen_at", type_=objects.c.ended_at.type)),
    select(func.count(), Concatenated(archived_objects.c.object_id)).where(
        archived_objects.c.pipeline == bindparam("in_pipeline"),
        archived_objects.c.object_id.between(bindparam("first_id"), bindparam("last_id")),
    ),
)


class KnownIds:
    """Read known ids from one database. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._with_retries = Retrying(
            retry=retry_if_exception_type(TemporaryError),
            stop=stop_after_attempt(_TRIES_MAX),
            wait=wait_random_exponential(multiplier=0.1, max=_WAIT_SECONDS_MAX),
            reraise=True,
        )

    def between(
        self, pipeline: str, low: int, high: int, *, seen_at: float, on_change: OnChange = OnChange.ADD
    ) -> Iterator[bytes]:
        """Yield the ids from ``low`` up to but excluding ``high``, as numbers, in chunks of many ids.

        Covers processed, failed and archived objects and those under an open attempt with an unexpired lease. Objects
        found deleted or replaced are included only if that was at ``seen_at`` or later, because the ids are compared
        with the objects that existed then. With ``on_change=REPLACE`` versions that a later one superseded before
        ``seen_at`` are not included: that they existed then means that the object changed back. An id may occur twice.
        """
        at, step = low, min(_FIRST_STEP, max(high - low, 1))
        while at < high:
            until = min(at + step, high)
            found = self._with_retries.copy()(self._read_range, pipeline, at, until - 1, seen_at, on_change)
            if found is None:
                step = max(step // _GROWTH_MAX, 1)
                continue
            if found:
                yield found
            at, step = until, _next_step(step, len(found) // ID_BYTES)

    def _read_range(self, pipeline: str, first: int, last: int, seen_at: float, on_change: OnChange) -> bytes | None:
        """Return the ids of a range; None if it holds more than the server puts into one result."""
        binds: dict[str, Any] = {
            "in_pipeline": pipeline,
            "first_id": _id(first),
            "last_id": _id(last),
            "seen_at": min(seen_at, NEVER),
        }
        pieces: list[bytes] = []
        with self._database.reading() as connection:
            _widen(connection)
            for query in _ID_QUERIES:
                count, ids = connection.execute(query, binds).one()
                piece = _bytes(ids)
                if len(piece) != count * ID_BYTES:
                    return None
                pieces.append(piece)
            superseded: set[bytes] = set()
            if on_change.replaces:
                superseded = superseded_between(
                    connection, pipeline, binds["first_id"], binds["last_id"], seen_at=binds["seen_at"]
                )
        return _without(b"".join(pieces), superseded)


def known_ids_at(
    url: str, pipeline: str, low: int, high: int, *, seen_at: float, on_change: OnChange = OnChange.ADD
) -> Iterator[bytes]:
    """Run `KnownIds.between` on a connection of its own to an up-to-date ledger, for Spark's executors."""
    parsed = make_url(url)
    dialect = dialect_for(parsed)
    with closing(Database(dialect.create_engine(parsed, now=None), dialect)) as database:
        yield from KnownIds(database).between(pipeline, low, high, seen_at=seen_at, on_change=on_change)


def _without(ids: bytes, left_out: set[bytes]) -> bytes:
    if not left_out:
        return ids
    each = (ids[start : start + ID_BYTES] for start in range(0, len(ids), ID_BYTES))
    return b"".join(id for id in each if id not in left_out)


def _next_step(step: int, count: int) -> int:
    """Return the width of the next range, chosen so that it holds about one chunk."""
    if count * _GROWTH_MAX <= CHUNK_IDS:
        return step * _GROWTH_MAX
    return max(step * CHUNK_IDS // count, 1)


def _widen(connection: Connection) -> None:
    if connection.dialect.name in ("mysql", "mariadb"):  # MySQL truncates at 1,024 bytes by default
        connection.exec_driver_sql(f"SET SESSION group_concat_max_len = {_CONCAT_BYTES_MAX}")


def _bytes(ids: str | bytes | memoryview | None) -> bytes:
    if ids is None:
        return b""
    return bytes.fromhex(ids) if isinstance(ids, str) else bytes(ids)


def _id(number: int) -> bytes:
    return number.to_bytes(ID_BYTES, "big")
