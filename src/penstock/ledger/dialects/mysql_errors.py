"""What the errors of MySQL and MariaDB mean to us, by their numbers, which are part of both servers' documentation."""

from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, InterfaceError

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.ledger.dialects import Clash, changes_tables

# Rolled back as a whole by the server: a deadlock, a row that changed since the snapshot, a conflict in a cluster.
CLASHES = frozenset({1213, 1020, 3101})
LOCK_WAITS = frozenset({1205})
AWAY = frozenset({1053, 1080, 1158, 1159, 1160, 1161, 1927, 2002, 2003, 2005, 2006, 2013, 2014, 2027, 2055, 4031})
READ_ONLY_SERVER = frozenset({1290, 1836})  # what a failover leaves of the old primary
TOO_MANY = frozenset({1040, 1135, 1203, 1226})
INTERRUPTED = frozenset({1028, 1317, 1969, 3024, 3169})
FULL = frozenset({1021, 1026, 1114, 3675})
STRAITENED = frozenset({1037, 1041, 1038, 1206})  # memory, and room for locks
DENIED = frozenset({1044, 1045, 1142, 1143, 1227, 1370, 1410, 1698, 4151})
NO_SUCH_DATABASE = frozenset({1049})
STRANGER = frozenset({1129, 1130, 1251, 2059, 2061})
OLD_BINLOG = frozenset({1665, 1598})
PACKET_TOO_LARGE = frozenset({1153, 2020})

GRANTS_TO_WORK = "SELECT, INSERT, UPDATE, DELETE and CREATE TEMPORARY TABLES"
GRANTS_TO_UPGRADE = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP and CREATE TEMPORARY TABLES"


def code_of(error: BaseException | None) -> int:
    """The number of a driver's exception; 0 where it has none."""
    arguments = getattr(error, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else 0


def explained(error: DBAPIError, place: str) -> PenstockError | None:
    """One of our exceptions; None for what only a defect of ours can cause."""
    code = code_of(error.orig)
    if code in CLASHES:
        return Clash(f"the ledger {place} threw a transaction away for another one ({error.orig}): try again")
    return _temporary(error, code, place) or _for_a_person(error, code, place)


def leaves_the_connection_useless(context: ExceptionContext) -> None:
    """A hook of SQLAlchemy's: no connection to a server that ends, or turned read-only, comes back from the pool."""
    if code_of(context.original_exception) in READ_ONLY_SERVER | {1053}:
        context.is_disconnect = True


def _temporary(error: DBAPIError, code: int, place: str) -> TemporaryError | None:
    told = f"({error.orig})"
    if code in LOCK_WAITS:
        return TemporaryError(f"rows of the ledger {place} were kept locked by another process {told}: try again")
    if code in READ_ONLY_SERVER:
        return TemporaryError(f"the server of the ledger {place} takes no writes now {told}: try again")
    if code in AWAY or (code == 0 and isinstance(error, InterfaceError)) or error.connection_invalidated:
        return TemporaryError(f"the ledger {place} cannot be reached, or was lost {told}: try again")
    if code in TOO_MANY:
        return TemporaryError(f"the server of the ledger {place} takes no more connections {told}: try again")
    if code in INTERRUPTED:
        return TemporaryError(f"a statement on the ledger {place} was interrupted {told}: try again")
    if code in FULL:
        return TemporaryError(f"the disk that holds the ledger {place} is full {told}: make room and try again")
    if code in STRAITENED:
        return TemporaryError(f"the server of the ledger {place} is out of memory {told}: try again")
    return None


def _for_a_person(error: DBAPIError, code: int, place: str) -> ConfigurationError | None:
    told = f"({error.orig})"
    if code in DENIED:
        grants = GRANTS_TO_UPGRADE if changes_tables(error.statement) else GRANTS_TO_WORK
        return ConfigurationError(
            f"the server refuses the user of the ledger {place} {told}: check name and password, and grant {grants} on "
            "that database"
        )
    if code in NO_SUCH_DATABASE:
        return ConfigurationError(f"there is no database for the ledger {place} {told}: create it, or name another")
    if code in STRANGER:
        return ConfigurationError(f"the server of the ledger {place} does not let this host or client in {told}")
    if code in OLD_BINLOG:
        return ConfigurationError(
            f"the server of the ledger {place} keeps a binary log of statements {told}: set binlog_format to ROW"
        )
    if code in PACKET_TOO_LARGE:
        return ConfigurationError(
            f"the server of the ledger {place} takes no statement of that size {told}: raise max_allowed_packet to 64M"
        )
    return None
