"""Create, upgrade and inspect a ledger's tables, using Alembic.

`migrate` brings tables up to date when a ledger is opened. The newest revision is read from the names of the
migrations, so that opening an up-to-date ledger takes one SELECT and does not import Alembic. `Revisions` inspects a
ledger of any revision and upgrades or downgrades it on request, for databases where workers may not change tables.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from pkgutil import iter_modules
from threading import Lock
from typing import TYPE_CHECKING, Self

from sqlalchemy import Connection, String, bindparam, column, func, insert, inspect, select, table, text
from sqlalchemy.exc import DBAPIError

from penstock.errors import ConfigurationError, UsageError
from penstock.ledger import migrations
from penstock.ledger.archive import TOMBSTONE
from penstock.ledger.database import SQLITE, Database, parsed_url
from penstock.ledger.dialects import DatabaseNow, dialect_for
from penstock.ledger.migrations import versions
from penstock.ledger.schema import VERSION_TABLE, archives, metadata, pipelines

if TYPE_CHECKING:
    from alembic.config import Config


BASE = "base"  # Alembic's name for a database without tables
HEAD = "head"  # Alembic's name for the newest revision
TABLES_FILE = "sqlite.sql"  # written by scripts/ledger_tables.py, and compared with the migrations by a test
SEPARATOR = ";\n"  # between its statements
SCRIPTS = "penstock.ledger:migrations"

_ALEMBIC = Lock()
"""Alembic keeps the migration that runs in globals of its module, so a process runs one at a time."""

_VERSIONS = table(VERSION_TABLE, column("version_num", String))
_VERSION = select(_VERSIONS.c.version_num)
_RECORD_VERSION = insert(_VERSIONS)


@lru_cache
def newest_revision() -> str:
    """Return the newest revision that this Penstock knows.

    Raises `ConfigurationError` if the installation has no migrations.
    """
    # Not by the files' names: the package may be in a zip file, or have only compiled modules.
    found = [module.name[1:5] for module in iter_modules(versions.__path__) if module.name[1:5].isdecimal()]
    if not found:
        raise ConfigurationError(
            f"This installation of Penstock has no migrations for the ledger's tables ({versions.__name__}): install "
            "it again"
        )
    return max(found)


def migrate(database: Database) -> None:
    """Create or upgrade the tables; one process does so, others wait.

    Raises `ConfigurationError` for the ledger of a newer Penstock, and for a database with foreign tables of the same
    name.
    """
    with database.reading() as connection:
        if revision_of(connection) == newest_revision():
            return
    with revised(), database.writing() as connection, database.dialect.migrating(connection):
        check_tables(connection, database.address)
        if revision_of(connection) != newest_revision():
            upgrade(connection)


@contextmanager
def revised() -> Iterator[None]:
    """Add advice to an error: the upgrade must be run by a user who may change tables.

    Wrap only the change itself: an error on reading the tables does not show that the right to change them is missing.
    """
    try:
        yield
    except ConfigurationError as error:
        if not isinstance(error.__cause__, DBAPIError):
            raise
        raise ConfigurationError(
            f"{error}; the tables of this ledger are not those of revision {newest_revision()}, which this Penstock "
            "works with: run `penstock admin ledger upgrade` as a user who may change tables"
        ) from error


def check_tables(connection: Connection, address: str) -> None:
    """Raise `ConfigurationError` if the tables are not a ledger's, or a newer Penstock's."""
    revision = revision_of(connection)
    if revision is None:
        _refuse_foreign_tables(connection, address)
    elif revision != newest_revision() and revision not in known_revisions():
        raise ConfigurationError(
            f"The ledger {address} was written by a newer Penstock (revision {revision}): upgrade Penstock"
        )


def upgrade(connection: Connection, revision: str = HEAD) -> None:
    """Run the migrations up to a revision in the transaction of this connection.

    An empty SQLite database gets the tables of the newest revision at once: the migrations, and the import of Alembic,
    take longer than all else that a first start does with a ledger.
    """
    if revision == HEAD and connection.dialect.name == SQLITE and not inspect(connection).get_table_names():
        create(connection)
        return
    from alembic import command

    with _ALEMBIC:
        command.upgrade(_configuration(connection), revision)


def create(connection: Connection) -> None:
    """Create the tables of the newest revision in an empty SQLite database, as the migrations would."""
    for statement in resources.files(migrations).joinpath(TABLES_FILE).read_text(encoding="utf-8").split(SEPARATOR):
        connection.exec_driver_sql(statement)
    connection.execute(_RECORD_VERSION, {"version_num": newest_revision()})


def downgrade(connection: Connection, revision: str) -> None:
    """Run the migrations back to a revision; ``base`` removes every table."""
    from alembic import command

    with _ALEMBIC:
        command.downgrade(_configuration(connection), revision)


def _configuration(connection: Connection | None = None) -> "Config":
    from alembic.config import Config

    configuration = Config()  # without a file, so that nothing in the working directory is read
    configuration.set_main_option("script_location", SCRIPTS)
    configuration.attributes["connection"] = connection
    configuration.attributes["revision_before"] = None if connection is None else revision_of(connection)
    return configuration


def revision_of(connection: Connection) -> str | None:
    """Return the revision of the tables; None if there are none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    row = connection.execute(_VERSION).one_or_none()
    return None if row is None else str(row.version_num)


def _refuse_foreign_tables(connection: Connection, address: str) -> None:
    names = set(inspect(connection).get_table_names())
    foreign = metadata.tables.keys() & names
    if foreign and VERSION_TABLE not in names:  # with a version table, a first migration was interrupted
        raise ConfigurationError(
            f"{address} has a table {min(foreign)} that is foreign: name another database, or move that table away"
        )


def known_revisions() -> frozenset[str]:
    """Return all revisions that this Penstock knows."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(_configuration())
    return frozenset(script.revision for script in scripts.walk_revisions())


COUNTED_ROWS_MAX = 100_000  # a table that the server estimates to be larger is not counted

_SERVER = {
    "sqlite": ("SQLite", text("SELECT sqlite_version()")),
    "mysql": ("MySQL", text("SELECT VERSION()")),
    "mariadb": ("MariaDB", text("SELECT VERSION()")),
    "postgresql": ("PostgreSQL", text("SHOW server_version")),
}
_IN_MYSQL = text(
    "SELECT table_rows FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :named"
)
_GUESSES = {
    "mysql": _IN_MYSQL,
    "mariadb": _IN_MYSQL,
    "postgresql": text(
        "SELECT n_live_tup FROM pg_stat_user_tables WHERE schemaname = current_schema() AND relname = :named"
    ),
}
_ARCHIVES = select(
    func.count(archives.c.uri),
    func.coalesce(func.sum(archives.c.objects), 0),
    func.coalesce(func.sum(archives.c.bytes), 0),
).where(archives.c.source != bindparam("tombstone"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """Row count of a table."""

    rows: int
    estimated: bool  # the server's estimate, which may be far off


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """Facts about a ledger's database, for people."""

    address: str  # address, without a password
    server: str
    revision: str | None  # None: no tables yet
    newest: str  # the revision that this Penstock needs
    tables: Mapping[str, TableRows]
    archive_files: int
    archived_objects: int
    archive_bytes: int


class Revisions:
    """The tables of one ledger, of any revision."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, url: str | Path) -> Self:
        """Open a ledger without reading or changing anything."""
        parsed = parsed_url(url)
        dialect = dialect_for(parsed)
        return cls(Database(dialect.create_engine(parsed, now=None), dialect))

    def close(self) -> None:
        self._database.close()

    def facts(self) -> LedgerFacts:
        """Return the current facts in one consistent read."""
        with self._database.reading() as connection:
            there = set(inspect(connection).get_table_names())
            files, objects, size = (0, 0, 0)
            if archives.name in there:
                files, objects, size = connection.execute(_ARCHIVES, {"tombstone": TOMBSTONE}).one()
            return LedgerFacts(
                address=self._database.address,
                server=_server(connection),
                revision=revision_of(connection),
                newest=newest_revision(),
                tables={name: _rows(connection, name) for name in metadata.tables if name in there},
                archive_files=int(files),
                archived_objects=int(objects),
                archive_bytes=int(size),
            )

    def pipelines(self) -> Sequence[str]:
        """Return the ledger's pipelines, whatever its revision."""
        with self._database.reading() as connection:
            if not inspect(connection).has_table(pipelines.name):
                return []
            return list(connection.execute(select(pipelines.c.id).order_by(pipelines.c.id)).scalars())

    def server(self) -> tuple[str, float]:
        """Return the server with its version, and its time in epoch seconds."""
        with self._database.reading() as connection:
            return _server(connection), float(connection.execute(select(DatabaseNow())).scalar_one())

    def upgrade(self, revision: str = HEAD) -> tuple[str | None, str | None]:
        """Create the tables or upgrade them to a revision; return the revision before and after.

        Raises `UsageError` for an unknown or earlier revision.
        """
        return self._move(revision, up=True)

    def downgrade(self, revision: str) -> tuple[str | None, str | None]:
        """Downgrade the tables to an earlier revision; ``base`` removes all. Return the revision before and after.

        Raises `UsageError` for an unknown or later revision, and `ConfigurationError` if the earlier one cannot hold
        data that must not be lost.
        """
        return self._move(revision, up=False)

    def _move(self, wanted: str, *, up: bool) -> tuple[str | None, str | None]:
        target = _known(wanted)
        dialect, address = self._database.dialect, self._database.address
        # a refused login fails here, outside `revised`, which would blame the right to change tables
        with self._database.reading() as connection:
            check_tables(connection, address)
        with (
            revised() if up else nullcontext(),
            self._database.writing() as connection,
            dialect.migrating(connection),
        ):
            before = revision_of(connection)
            check_tables(connection, address)
            _check_way(before, target, up=up)
            if target != before:
                (upgrade if up else downgrade)(connection, target or BASE)
            return before, revision_of(connection)


def revision_names() -> str:
    """Return the names of all revisions, for messages."""
    return ", ".join([BASE, *sorted(known_revisions())])


def _known(revision: str) -> str | None:
    """Return the revision of a name; None for the state before the first. Raises `UsageError` for an unknown one."""
    if revision == BASE:
        return None
    if revision == HEAD:
        return newest_revision()
    if revision not in known_revisions():
        raise UsageError(f"There is no revision {revision} of the ledger's tables; there are {revision_names()}.")
    return revision


def _check_way(before: str | None, target: str | None, *, up: bool) -> None:
    now = "has no tables" if before is None else f"is at {before}"
    if up and (target or "") < (before or ""):
        raise UsageError(
            f"The ledger {now}, which is later than {target or BASE}: `penstock admin ledger downgrade "
            f"{target or BASE}` goes back."
        )
    if not up and (target or "") > (before or ""):
        raise UsageError(
            f"The ledger {now}, which is earlier than {target}: `penstock admin ledger upgrade {target}` goes there."
        )


def _server(connection: Connection) -> str:
    name, question = _SERVER[connection.dialect.name]
    version = str(connection.execute(question).scalar_one())
    return f"{'MariaDB' if 'MariaDB' in version else name} {version}"


def _rows(connection: Connection, name: str) -> TableRows:
    guess = _GUESSES.get(connection.dialect.name)
    if guess is not None:
        about = connection.execute(guess, {"named": name}).scalar_one_or_none() or 0
        if about > COUNTED_ROWS_MAX:
            return TableRows(rows=int(about), estimated=True)
    counted = connection.execute(select(func.count()).select_from(metadata.tables[name])).scalar_one()
    return TableRows(rows=int(counted), estimated=False)
