"""Remember the last commits of each pipeline's tables, as its publishes saw them.

They are a memory, not a record: a publish that finds none, or outdated ones, reads the table's log again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, select

from penstock.ledger.database import Database
from penstock.ledger.rows import Values, uri_digest
from penstock.ledger.rules import storable
from penstock.ledger.schema import table_commits

_of_pipeline = table_commits.c.pipeline == bindparam("in_pipeline")
_of_table = _of_pipeline & (table_commits.c.table_digest == bindparam("of_table"))
_SEEN = select(table_commits).where(_of_table).order_by(table_commits.c.version)
_DROP_ONE = delete(table_commits).where(_of_table, table_commits.c.version == bindparam("of_version"))
_DROP_OTHERS = delete(table_commits).where(
    _of_table, (table_commits.c.version < bindparam("first")) | (table_commits.c.version > bindparam("last"))
)
_FOLDERS = select(table_commits.c.rewritten_in).where(
    table_commits.c.table_digest == bindparam("of_table"), table_commits.c.rewritten_in != ""
)
_FORGET = delete(table_commits).where(_of_pipeline)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCommit:
    """One version of a table's log. It shows the batches after ``after_seq`` up to ``seq``, if these differ."""

    version: int
    tag: str  # of the file: see `penstock.storage.files.FileInfo`
    size_bytes: int
    after_seq: int
    seq: int  # the table's position from this version on
    engine: str | None  # of another writer; None: Penstock wrote it
    operation: str = ""
    committed_at: float | None = None  # epoch seconds by the committer's clock
    lost_from: int | None = None  # the first and last batch whose commit this one took the place of
    lost_to: int | None = None
    # The batch that replaces rows with this commit, or with the one whose place it took, and the folder with what is
    # left of the replaced files.
    replacing: int | None = None
    rewritten_in: str = ""


class TableCommits:
    """The remembered commits of all tables. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add = database.dialect.insert_or_ignore(table_commits)

    def seen(self, pipeline: str, table: str) -> Sequence[SeenCommit]:
        """Return the remembered commits of a table, oldest first. ``table`` is its address."""
        with self._database.reading() as connection:
            found = connection.execute(_SEEN, _binds(pipeline, table)).all()
        return [
            SeenCommit(
                version=row.version,
                tag=row.tag,
                size_bytes=row.size_bytes,
                after_seq=row.after_seq,
                seq=row.seq,
                engine=row.engine,
                operation=row.operation or "",
                committed_at=row.committed_at,
                lost_from=row.lost_from,
                lost_to=row.lost_to,
                replacing=row.replacing,
                rewritten_in=row.rewritten_in or "",
            )
            for row in found
        ]

    def folders(self, table: str) -> frozenset[str]:
        """Return the folders that remembered commits of any pipeline to a table name as `SeenCommit.rewritten_in`."""
        with self._database.reading() as connection:
            return frozenset(connection.execute(_FOLDERS, {"of_table": uri_digest(table)}).scalars())

    def remember(self, pipeline: str, table: str, commits: Sequence[SeenCommit], *, first: int, last: int) -> None:
        """Add or replace these commits, and forget the versions before ``first`` and after ``last``."""
        binds = _binds(pipeline, table)

        def put(connection: Connection) -> None:
            connection.execute(_DROP_OTHERS, {**binds, "first": first, "last": last})
            if commits:
                connection.execute(_DROP_ONE, [{**binds, "of_version": commit.version} for commit in commits])
                connection.execute(self._add, [_values(pipeline, table, commit) for commit in commits])

        self._database.transact(put)


def forget_table_commits(connection: Connection, pipeline: str) -> None:
    """Forget the commits of a pipeline, whose batches have other numbers from now on."""
    connection.execute(_FORGET, {"in_pipeline": pipeline})


def _binds(pipeline: str, table: str) -> Values:
    return {"in_pipeline": pipeline, "of_table": uri_digest(table)}


def _values(pipeline: str, table: str, commit: SeenCommit) -> Values:
    return {
        "pipeline": pipeline,
        "table_digest": uri_digest(table),
        "version": commit.version,
        "tag": commit.tag,
        "size_bytes": commit.size_bytes,
        "after_seq": commit.after_seq,
        "seq": commit.seq,
        "engine": None if commit.engine is None else storable(commit.engine),
        "operation": storable(commit.operation),
        "committed_at": commit.committed_at,
        "lost_from": commit.lost_from,
        "lost_to": commit.lost_to,
        "replacing": commit.replacing,
        "rewritten_in": commit.rewritten_in,
    }
