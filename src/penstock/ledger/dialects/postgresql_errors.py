"""What PostgreSQL's errors mean: by their code, and by their words where connecting failed, which brings no code."""

import re
from collections.abc import Sequence

from sqlalchemy.engine.interfaces import ExceptionContext
from sqlalchemy.exc import DBAPIError

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.ledger.dialects import Clash, changes_tables
from penstock.ledger.schema import session_metadata

READ_ONLY_SERVER = "25006"  # a standby, or what was the primary before a failover
CLASHES = ("40001", "40P01")  # serialization failure, deadlock
FAILED_BEFORE = "25P02"  # the transaction had failed already

# By code, or by the class that its first two characters are.
_TEMPORARY = {
    "55P03": "kept a lock too long in another transaction: try again",
    "57014": "took too long over a statement: try again, and look at what else keeps the server busy",
    "57P01": "is being shut down: try again",
    "57P02": "crashed: try again",
    "57P03": "does not take connections now: try again",
    "57P05": "closed a connection that was idle too long: try again",
    READ_ONLY_SERVER: "takes no changes now, as after a failover: try again; if it stays so, name the primary",
    "25P03": "closed a transaction that was idle too long: try again",
    "25P04": "closed a transaction that took too long: try again",
    "53100": "has a full disk: make room and try again",
    "53300": "has too many connections: try again, and raise max_connections or run fewer workers",
    "53": "is out of resources: try again",
    "08": "lost the connection: try again",
    "58": "could not read or write a file: try again",
}
_WRONG = {
    "28": "refuses the login: put the right user and password into the URL, and see pg_hba.conf",
    "3D000": "has no such database: create it, or name another in the URL",
    "3F000": "has no schema that tables could be made in: give the role one in its search_path",
    "0A000": "cannot do what the ledger needs: use a PostgreSQL that is supported",
    "22P05": "does not keep text in UTF8: create the database with ENCODING 'UTF8'",
}
_NO_RIGHT = "42501"
_RIGHTS_TO_WORK = (
    "refuses a right: the role needs CONNECT and TEMPORARY on the database, USAGE of its schema, and SELECT, INSERT, "
    "UPDATE and DELETE on the ledger's tables"
)
_RIGHTS_TO_UPGRADE = "refuses a right: who makes or upgrades the tables needs CREATE in its schema, and to own them"
# What libpq and the server say, in English, when no connection came about.
_WRONG_WORDS: Sequence[tuple[str, str]] = (
    (r"password authentication failed|no password supplied|authentication failed|role .* does not exist", _WRONG["28"]),
    (r"no pg_hba\.conf entry|pg_hba\.conf rejects|is not permitted to log in", _WRONG["28"]),
    (r"permission denied for database|permission denied to create temporary tables", _RIGHTS_TO_WORK),
    (r"database .* does not exist", _WRONG["3D000"]),
    (
        "invalid connection option|invalid .* value|invalid port|invalid integer value|bad value for",
        "cannot be connected to as the URL says: mend its options",
    ),
    (
        "SSL was required|certificate verify failed|root certificate file|sslmode",
        "cannot be connected to by TLS as the URL says: mend its ssl options",
    ),
)
_MISSING_TABLE, _TABLE_IS_THERE = "42P01", "42P07"
_SESSION_TABLE = re.compile(rf'relation "({"|".join(session_metadata.tables)})"')


def leaves_the_connection_useless(context: ExceptionContext) -> None:
    """A hook of SQLAlchemy's: no connection to a server that turned read-only comes back from the pool."""
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY_SERVER:
        context.is_disconnect = True


def explained(error: DBAPIError, place: str) -> PenstockError | None:
    """See `penstock.ledger.dialects.Dialect.explain`."""
    code = getattr(error.orig, "sqlstate", None)
    said = str(error.orig).strip()
    if code is None:
        return _explained_words(error, said, place)
    if code in CLASHES:
        return Clash(f"the ledger {place} chose a transaction to give way to another ({said}): try again")
    if code == FAILED_BEFORE and error.statement is None:  # said of COMMIT alone
        return Clash(f"the ledger {place} had thrown the transaction away before it was committed: try again")
    if code in (_MISSING_TABLE, _TABLE_IS_THERE) and _SESSION_TABLE.search(said):
        return ConfigurationError(
            f"the ledger {place} is behind a pooler that changes servers between transactions: let PgBouncer pool "
            "sessions for it (pool_mode = session), or name the server itself"
        )
    if code == _NO_RIGHT:
        right = _RIGHTS_TO_UPGRADE if changes_tables(error.statement) else _RIGHTS_TO_WORK
        return ConfigurationError(f"the ledger {place} {right} ({said})")
    if (what := _TEMPORARY.get(code) or _TEMPORARY.get(code[:2])) is not None:
        return TemporaryError(f"the ledger {place} {what} ({said})")
    if (what := _WRONG.get(code) or _WRONG.get(code[:2])) is not None:
        return ConfigurationError(f"the ledger {place} {what} ({said})")
    return None


def _explained_words(error: DBAPIError, said: str, place: str) -> PenstockError | None:
    """An error without a code: of connecting, of a connection that broke, or of what was asked of psycopg itself."""
    kind = type(error.orig).__name__
    if kind in ("DataError", "NotSupportedError", "InterfaceError"):
        return None
    for words, what in _WRONG_WORDS:
        if re.search(words, said):
            return ConfigurationError(f"the ledger {place} {what} ({said})")
    if kind == "ProgrammingError":
        return None
    return TemporaryError(f"the ledger {place} cannot be reached ({said}): try again")
