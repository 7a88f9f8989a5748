"""Which version a queue file has, and how an older one becomes the newest: step by step, each whole or not at all."""

import sqlite3
from pathlib import Path

from penstock.brokers.sqlite_script import schema_step
from penstock.errors import ConfigurationError

SCHEMA_VERSION = 3
_APPLICATION_ID = 0x50_53_54_4B  # "PSTK", as the first step writes it


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the file, 0 while it is empty; raises where it is not ours or newer than this program."""
    version, application, tables = _at_one_moment(connection)
    if application == 0 and version == 0 and tables == 0:
        return 0
    if application != _APPLICATION_ID:
        raise ConfigurationError(f"{path} is a database of another program: name another file for the queues")
    if version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"the queue file {path} has version {version}, this Penstock knows {SCHEMA_VERSION}: upgrade Penstock, or "
            "name another file"
        )
    return version


def _at_one_moment(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """The file's version, whose it is, and how many tables and indexes it has. Asked one after the other, they would
    contradict each other while another process makes the first tables."""
    alone = not connection.in_transaction
    if alone:
        connection.execute("BEGIN")
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        application = int(connection.execute("PRAGMA application_id").fetchone()[0])
        tables = int(connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0])
    finally:
        if alone and connection.in_transaction:
            connection.execute("ROLLBACK")
    return version, application, tables


def bring_up_to_date(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables of an empty file, or mend those of an older one. Several processes may do so at once.

    Workers that opened the file in its older version go on: columns are only added. What they do not write, such as how
    an attempt ended, is then not known.
    """
    while (
        version := version_of(connection, path)
    ) < SCHEMA_VERSION:  # ends: a step is done by us or by another process
        _step(connection, path, version)


def _step(connection: sqlite3.Connection, path: Path, version: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if version_of(connection, path) == version:  # else another process was faster
            for statement in schema_step(version + 1):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version + 1}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
