"""The tables.

No foreign keys: rows are only ever written by the transactions of this room, which keep the references themselves, and
a checked key would lock parent rows that many workers share. Identity is bytes, so that no collation can merge two
objects. Attempts are charged on the object row; what is given back stands beside it in ``refunds``, never subtracted.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects import mysql


class Bytes(LargeBinary):
    """Bytes that pass to and from the driver as they are; wrapping each one took a tenth of a claim (measured)."""

    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> None:  # noqa: ARG002 - SQLAlchemy's signature
        return None

    def result_processor(self, dialect: Dialect, coltype: object) -> None:  # noqa: ARG002 - SQLAlchemy's signature
        return None


class _MysqlBytes(mysql.BINARY, Bytes):
    """As `Bytes`: of a fixed number, and indexable."""


class _MysqlVarBytes(mysql.VARBINARY, Bytes):
    """As `Bytes`: of a bounded number, and indexable."""


# MySQL cannot index a BLOB; SQLite and PostgreSQL take the plain types.
DIGEST = Bytes(16).with_variant(_MysqlBytes(16), "mysql", "mariadb")
KEY = Bytes(4096).with_variant(_MysqlVarBytes(4096), "mysql", "mariadb")
PIPELINE = String(512)  # see `rules.PIPELINE_CHARS_MAX`
HANDLER = String(256)  # see `rules.HANDLER_CHARS_MAX`
WORD = String(64)  # states, attempt ids, outcomes: ASCII
LONG_TEXT = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")

APP = String(256)

VERSION_TABLE = "penstock_ledger_version"  # a database may hold its owner's tables and their Alembic as well

metadata = MetaData()

pipelines = Table(
    "pipelines",
    metadata,
    Column("id", PIPELINE, primary_key=True),
    Column("next_seq", BigInteger, nullable=False),
    Column("schema_id", Integer, nullable=False),  # 0: no table schema yet
    Column("source_schema", LONG_TEXT),
)

table_schemas = Table(  # every schema a pipeline's table ever had; batches name theirs by number
    "table_schemas",
    metadata,
    Column("pipeline", PIPELINE, primary_key=True),
    Column("schema_id", Integer, primary_key=True, autoincrement=False),
    Column("table_schema", LONG_TEXT, nullable=False),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", WORD, primary_key=True),
    Column("pipeline", PIPELINE, nullable=False),
    Column("state", WORD, nullable=False),
    Column("worker", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("lease_until", Double, nullable=False),
    Column("heartbeat_seq", BigInteger, nullable=False),  # grows with each extension, so that its CAS changes a row
    Column("outcome", WORD),  # how it ended, in one word; objects without a word of their own share it
    Column("reason", Text),
    Index("ix_attempts_state", "pipeline", "state", "id"),
)

objects = Table(
    "objects",
    metadata,
    Column("pipeline", PIPELINE, primary_key=True),
    Column("object_id", DIGEST, primary_key=True),
    Column("bucket", Text, nullable=False),
    Column("key", KEY, nullable=False),
    Column("uri", Text, nullable=False),
    Column("uri_digest", DIGEST, nullable=False),  # an index of bounded width over uris of any length
    Column("size_bytes", BigInteger, nullable=False),
    Column("version_id", Text),
    Column("etag", Text),
    Column("sequencer", Text),
    Column("state", WORD, nullable=False),
    Column("attempt_id", WORD),  # whose it is, or who ended it; NULL while unprocessed
    Column("charged", Integer, nullable=False),  # claims
    Column("refunds", Integer, nullable=False),  # claims that shall not count
    Column("unattributed_failures", Integer, nullable=False),
    Column("batch_seq", BigInteger),
    Column("rows", BigInteger),
    Column("lines_quarantined", BigInteger),
    Column("reason", Text),
    Column("carrier_message_id", Text),  # the message that named it at its last claim; in a later life see `revivals`
    Column("carrier_enqueued_at", Double),
    Column("carrier_replay_id", Text),
    Column("first_seen_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("dead_at", Double),  # of its last death, also while it lives again
    Column("missed_at", Double),  # when the first look was recorded that found it missing, unless one found it since
    # When the attempt began that first found it missing, or found it replaced: messages enqueued later may know better.
    # NULL otherwise, so also where it was superseded without a look.
    Column("sought_at", Double),
    # By state first: begun with the pipeline it would tempt SQLite to read all of it to find a few ids (measured).
    # PostgreSQL has it begun with the pipeline; see the first migration.
    Index("ix_objects_state", "state", "pipeline", "object_id"),
    Index("ix_objects_attempt", "attempt_id", postgresql_where=text("attempt_id IS NOT NULL")),
    Index("ix_objects_uri", "uri_digest", "pipeline"),
)

object_attempts = Table(
    "object_attempts",
    metadata,
    Column("pipeline", PIPELINE, primary_key=True),
    Column("object_id", DIGEST, primary_key=True),
    Column("attempt_id", WORD, primary_key=True),
    Column("replay_id", Text),  # of the carrier: a replay revives a dead object once
    Column("outcome", WORD),  # NULL: the object ends as its attempt does
    Column("reason", Text),
    sqlite_with_rowid=False,
)

batches = Table(
    "batches",
    metadata,
    Column("pipeline", PIPELINE, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt_id", WORD, nullable=False),
    Column("schema_id", Integer, nullable=False),
    Column("manifest", LONG_TEXT, nullable=False),
    Column("quarantine_manifest", LONG_TEXT, nullable=False),
    Column("objects", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("lines_quarantined", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("committed_at", Double, nullable=False),
    Column("stage_seconds", Text, nullable=False),  # a JSON object
    Column("spark_ui_url", Text),  # where its run could be looked at
    UniqueConstraint("attempt_id", name="uq_batches_attempt"),
)

works = Table(  # one row a key of a handler; the attempt that stands in it is the latest one
    "works",
    metadata,
    Column("work_id", DIGEST, primary_key=True),  # of app, queue, handler and key; see `penstock.ledger.rules`
    Column("handler", HANDLER, nullable=False),
    Column("key", Text, nullable=False),  # for people
    Column("state", WORD, nullable=False),
    Column("attempt_id", WORD, nullable=False),
    Column("worker", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("heartbeat_seq", BigInteger, nullable=False),  # grows with each extension, so that its CAS changes a row
    Column("ended_at", Double),  # NULL while it is open
    Column("attempts", Integer, nullable=False),
    Column("outcome", LONG_TEXT),  # JSON, of the completion
    Column("first_seen_at", Double, nullable=False),
    Column("last_attempt_id", WORD),  # the last attempt that ended without completing the work
    Column("last_worker", Text),
    Column("last_started_at", Double),
    Column("last_ended_at", Double),
    Column("last_outcome", WORD),
    Column("last_reason", Text),
    Column("app", APP),  # this and the next: NULL in rows of revision 0005 and before
    Column("queue", Text),
    Column("retention_seconds", Double),  # of its completion, as the app that began it wants it; NULL: as above
    Column("expires_at", Double),  # NULL while it is open, and where no retention is recorded
    Index("ix_works_attempt", "attempt_id", unique=True),
    Index("ix_works_state", "state", "handler", "work_id"),
    Index("ix_works_ended", "ended_at"),
    # Partial where the database can: building it over old rows is then one scan, which adds nothing to the index.
    Index(
        "ix_works_expires",
        "expires_at",
        sqlite_where=text("expires_at IS NOT NULL"),
        postgresql_where=text("expires_at IS NOT NULL"),
    ),
)

owners = Table(  # which app a name in this ledger belongs to; one row per kind, name, app and queue
    "owners",
    metadata,
    Column("owner_id", DIGEST, primary_key=True),
    Column("kind", WORD, nullable=False),  # keys, objects; ledger: the mark of tables that were upgraded
    Column("name", PIPELINE, nullable=False),  # of a handler, an object handler or a pipeline
    Column("app", APP, nullable=False),
    Column("queue", Text, nullable=False),
    Column("named", Integer, nullable=False),  # 1: the app was given its name; 0: its module's is used
    Column("plain", Integer, nullable=False),  # 1: its keys are identified by the handler's name alone, as in 0005
    Column("first_seen_at", Double, nullable=False),
    Column("last_seen_at", Double, nullable=False),
    Index("ix_owners_name", "kind", "name"),
)

tellings = Table(  # up to which batch messages were sent that it became visible
    "tellings",
    metadata,
    Column("pipeline", PIPELINE, primary_key=True),
    Column("told_seq", BigInteger, nullable=False),
)

archives = Table(  # where rows went that left `objects`; one row a file, or an import that brought identities alone
    "archives",
    metadata,
    Column("id", WORD, primary_key=True),
    Column("pipeline", PIPELINE, nullable=False),
    Column("uri", Text),  # of the Parquet file with the rows; NULL where there are none
    Column("objects", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),  # of the file
    Column("source", Text, nullable=False),  # for people: "retired", or what was imported
    Column("created_at", Double, nullable=False),
    Index("ix_archives_pipeline", "pipeline", "id"),
)

archived_objects = Table(  # identities of processed objects whose rows left `objects`: they are never processed again
    "archived_objects",
    metadata,
    Column("pipeline", PIPELINE, primary_key=True),
    Column("object_id", DIGEST, primary_key=True),
    Column("uri_digest", DIGEST, nullable=False),
    Column("archive_id", WORD, nullable=False),
    Index("ix_archived_objects_uri", "uri_digest", "pipeline"),
    sqlite_with_rowid=False,
)

progress = Table(  # up to which batch a task of upkeep has come, such as archiving or cleaning up the source
    "progress",
    metadata,
    Column("pipeline", PIPELINE, primary_key=True),
    Column("task", WORD, primary_key=True),
    Column("done_seq", BigInteger, nullable=False),
)

reconciliations = Table(  # the latest comparison of a pipeline's source with its ledger
    "reconciliations",
    metadata,
    Column("pipeline", PIPELINE, primary_key=True),
    Column("as_of", Double, nullable=False),  # objects stored up to then were looked at
    Column("finished_at", Double, nullable=False),
    Column("source", Text, nullable=False),  # what was compared: a listing's or an inventory's address
    Column("listed", BigInteger, nullable=False),
    Column("missing", BigInteger, nullable=False),
    Column("sent", BigInteger, nullable=False),  # messages
    Column("seconds", Double, nullable=False),
)

replays = Table(  # dead letters on their way back
    "replays",
    metadata,
    Column("replay_id", WORD, primary_key=True),
    Column("letter_queue", Text, nullable=False),
    Column("letter_id", Text, nullable=False),
    Column("queue", Text, nullable=False),  # where it goes
    Column("count", Integer, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("intended_at", Double, nullable=False),
    Column("sent_at", Double),
    Index("ix_replays_intended", "intended_at"),
)

audit = Table(  # who did what to a queue
    "audit",
    metadata,
    Column("id", WORD, primary_key=True),  # a ULID: sorts by time
    Column("action", WORD, nullable=False),
    Column("queue", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("details", Text, nullable=False),  # JSON
    Column("messages", BigInteger, nullable=False),
    Column("outcome", WORD),
    Column("began_at", Double, nullable=False),
    Column("ended_at", Double),
)

# Each connection has its own: a set of objects handed to the database once, so that every statement after it is one
# for thousands of objects. They live in memory and are not part of the schema that is migrated.
session_metadata = MetaData()

wanted = Table(  # what a claim or a question is about
    "wanted",
    session_metadata,
    Column("object_id", DIGEST, primary_key=True),
    Column("message_id", Text),
    Column("enqueued_at", Double),
    Column("replay_id", Text),
    prefixes=["TEMPORARY"],
    postgresql_on_commit="DELETE ROWS",  # which leaves no dead rows: nothing ever vacuums a session's tables
)

leaving = Table(  # how each object leaves its attempt at a commit
    "leaving",
    session_metadata,
    Column("object_id", DIGEST, primary_key=True),
    Column("state", WORD, nullable=False),
    Column("outcome", WORD),
    Column("reason", Text),
    Column("note", Text),  # the reason, and the traceback behind it
    Column("rows", BigInteger),
    Column("lines_quarantined", BigInteger),
    Column("refund", Integer, nullable=False),
    Column("unattributed", Integer, nullable=False),
    Column("missing", Integer, nullable=False),
    prefixes=["TEMPORARY"],
    postgresql_on_commit="DELETE ROWS",  # which leaves no dead rows: nothing ever vacuums a session's tables
)
