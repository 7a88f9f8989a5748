"""Define the tables.

There are no foreign keys: only the transactions of this package write rows, and they keep the references consistent; a
checked key would lock parent rows that many workers share. Identities are bytes, so that no collation can treat two
objects as one. Attempts are counted in ``charged`` on the object's row. Attempts that do not count are added to
``refunds`` instead of being subtracted.
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
    """Bytes passed to and from the driver unchanged; wrapping each value took a tenth of a claim (measured)."""

    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> None:  # noqa: ARG002 - SQLAlchemy's signature
        return None

    def result_processor(self, dialect: Dialect, coltype: object) -> None:  # noqa: ARG002 - SQLAlchemy's signature
        return None


class _MysqlBytes(mysql.BINARY, Bytes):
    """`Bytes` of a fixed length, which MySQL can index."""


class _MysqlVarBytes(mysql.VARBINARY, Bytes):
    """`Bytes` of a bounded length, which MySQL can index."""


# MySQL cannot index a BLOB; SQLite and PostgreSQL use the plain types.
DIGEST = Bytes(16).with_variant(_MysqlBytes(16), "mysql", "mariadb")
KEY = Bytes(4096).with_variant(_MysqlVarBytes(4096), "mysql", "mariadb")
PIPELINE = String(512)  # see `rules.PIPELINE_CHARS_MAX`
HANDLER = String(256)  # see `rules.HANDLER_CHARS_MAX`
WORD = String(64)  # states, attempt ids, outcomes: ASCII
LONG_TEXT = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")

APP = String(256)

VERSION_TABLE = "penstock_ledger_version"  # A database may also hold other tables with their own Alembic version table.

metadata = MetaData()

pipelines = Table(
    "pipelines",
    metadata,
    Column("id", PIPELINE, primary_key=True),
    Column("next_seq", BigInteger, nullable=False),
    Column("schema_id", Integer, nullable=False),  # 0: no table schema yet
    Column("source_schema", LONG_TEXT),
    Column("source_options", LONG_TEXT),  # JSON: how the objects are read
    Column("added_columns", LONG_TEXT),  # JSON: types by name, of columns that batches added for new fields
    Column("transform", Text),  # as in `batches`, of the next ones
    Column("merge", Text),  # as in `batches`, of the first one; NULL: rows are added as they are
)

table_schemas = Table(  # every schema a pipeline's table has had; a batch refers to its schema by number
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
    # incremented by each extension, so that its compare-and-swap changes a row
    Column("heartbeat_seq", BigInteger, nullable=False),
    Column("outcome", WORD),  # one word for how it ended; objects without an outcome of their own share it
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
    Column("uri_digest", DIGEST, nullable=False),  # an index of bounded width for uris of any length
    Column("size_bytes", BigInteger, nullable=False),
    Column("version_id", Text),
    Column("etag", Text),
    Column("sequencer", Text),
    Column("state", WORD, nullable=False),
    Column("attempt_id", WORD),  # the attempt that holds it or ended it; NULL while unprocessed
    Column("charged", Integer, nullable=False),  # claims
    Column("refunds", Integer, nullable=False),  # claims that do not count as attempts
    Column("unattributed_failures", Integer, nullable=False),
    Column("batch_seq", BigInteger),
    Column("rows", BigInteger),
    Column("lines_quarantined", BigInteger),
    Column("reason", Text),
    # the message that named it at its last claim; for a revived object see `revivals`
    Column("carrier_message_id", Text),
    Column("carrier_enqueued_at", Double),
    Column("carrier_replay_id", Text),
    Column("first_seen_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("dead_at", Double),  # time of its last failure; kept when it is revived
    Column("missed_at", Double),  # when an attempt first recorded it as missing; NULL once it is found again
    # Start of the attempt that first found the object missing, or found it replaced: messages enqueued later may be
    # more up to date. NULL otherwise, including objects superseded without a check of the store.
    Column("sought_at", Double),
    Column("unknown_fields", LONG_TEXT),  # JSON: fields without a column, and wrong types, see `rows.unknown_text`
    # State first: an index that begins with the pipeline leads SQLite to read the whole pipeline to find a few ids
    # (measured). On PostgreSQL it begins with the pipeline; see the first migration.
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
    Column("replay_id", Text),  # of the original message: a replay revives a failed object only once
    Column("outcome", WORD),  # NULL: the object has its attempt's outcome
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
    Column("spark_ui_url", Text),  # Spark UI of its run
    Column("transform", Text),  # name of the transform that made its rows; empty: none, NULL: unknown
    Column("replaces", LONG_TEXT),  # JSON: addresses of objects whose earlier rows leave the table; NULL: none
    # See `records.Committed`; NULL: the batch adds versions to earlier ones.
    Column("replaced_objects", BigInteger),
    Column("replaced_rows", BigInteger),
    Column("grown_objects", BigInteger),  # see `records.Committed`; NULL: none
    Column("appended_rows", BigInteger),
    Column("merge", Text),  # JSON: how its rows are merged by key; NULL: they are not
    Column("tombstones", LONG_TEXT),  # JSON: the manifest of its deletes; NULL: none
    UniqueConstraint("attempt_id", name="uq_batches_attempt"),
)

beginnings = Table(  # the beginning that the table has of an object, as its last version was read; see `ledger.tails`
    "beginnings",
    metadata,
    Column("pipeline", PIPELINE, primary_key=True),
    Column("uri_digest", DIGEST, primary_key=True),
    Column("attempt_id", WORD, nullable=False),  # the one that committed this version; of no use if another was later
    Column("size_bytes", BigInteger, nullable=False),
    Column("digest", LONG_TEXT, nullable=False),  # this and the next: see `records.Beginning`
    Column("reading", WORD, nullable=False),
    Column("rows", BigInteger, nullable=False),  # that the table had of the object then
    Column("lines_quarantined", BigInteger, nullable=False),  # bad lines in these bytes
    # of this version: bad lines of the ones before are read again from it
    Column("object_bytes", BigInteger, nullable=False),
    Column("version_id", Text),
    Column("etag", Text),
    sqlite_with_rowid=False,
)

quarantined = Table(  # the bad lines that attempts found in objects; one row per object with any
    "quarantined",
    metadata,
    Column("pipeline", PIPELINE, primary_key=True),
    Column("object_id", DIGEST, primary_key=True),
    Column("attempt_id", WORD, nullable=False),  # the one that committed the object
    # as in `objects`, whose rows leave for the archive
    Column("bucket", Text, nullable=False),
    Column("key", KEY, nullable=False),
    Column("uri", Text, nullable=False),
    Column("uri_digest", DIGEST, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("version_id", Text),
    Column("etag", Text),
    Column("place", WORD, nullable=False),  # the column with a row's place in its object: _offset or _row
    Column("rows", BigInteger, nullable=False),  # good lines of the object; of a replay, including its source's
    Column("lines_quarantined", BigInteger, nullable=False),
    Column("reason", Text),  # of the first of these lines; NULL if a repair added the row
    Column("warns", Integer, nullable=False),  # 1: so many lines are bad that a person should know
    Column("state", WORD, nullable=False),
    Column("replay_id", DIGEST, nullable=False),  # the id of the object that replays these lines
    Column("recorded_at", Double, nullable=False),
    Column("ended_at", Double),  # when its lines were replayed or dismissed
    Column("replaced_seq", BigInteger),  # the batch that took this version's rows out of the table
    Index("ix_quarantined_state", "pipeline", "state", "warns"),
    Index("ix_quarantined_attempt", "attempt_id"),
    Index("ix_quarantined_uri", "uri_digest", "pipeline"),
    Index("ix_quarantined_replay", "replay_id"),
)

works = Table(  # one row per key of a handler; it holds the latest attempt
    "works",
    metadata,
    Column("work_id", DIGEST, primary_key=True),  # hash of app, queue, handler and key; see `penstock.ledger.rules`
    Column("handler", HANDLER, nullable=False),
    Column("key", Text, nullable=False),  # for display
    Column("state", WORD, nullable=False),
    Column("attempt_id", WORD, nullable=False),
    Column("worker", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("lease_until", Double, nullable=False),
    # incremented by each extension, so that its compare-and-swap changes a row
    Column("heartbeat_seq", BigInteger, nullable=False),
    Column("ended_at", Double),  # NULL while open
    Column("attempts", Integer, nullable=False),
    Column("outcome", LONG_TEXT),  # JSON, stored at completion
    Column("first_seen_at", Double, nullable=False),
    Column("last_attempt_id", WORD),  # the last attempt that ended without completing the work
    Column("last_worker", Text),
    Column("last_started_at", Double),
    Column("last_ended_at", Double),
    Column("last_outcome", WORD),
    Column("last_reason", Text),
    Column("app", APP),  # app and queue are NULL in rows of revision 0005 and before
    Column("queue", Text),
    # after completion, as set by the app that began it; NULL in rows of revision 0005 and before
    Column("retention_seconds", Double),
    Column("expires_at", Double),  # NULL while open, and if no retention is recorded
    Index("ix_works_attempt", "attempt_id", unique=True),
    Index("ix_works_state", "state", "handler", "work_id"),
    Index("ix_works_ended", "ended_at"),
    # Partial if the database supports it: creating it over old rows is then one scan that adds nothing to the index.
    Index(
        "ix_works_expires",
        "expires_at",
        sqlite_where=text("expires_at IS NOT NULL"),
        postgresql_where=text("expires_at IS NOT NULL"),
    ),
)

owners = Table(  # which app uses a name in this ledger; one row per kind, name, app and queue
    "owners",
    metadata,
    Column("owner_id", DIGEST, primary_key=True),
    Column("kind", WORD, nullable=False),  # keys, objects; ledger: marks tables that were upgraded
    Column("name", PIPELINE, nullable=False),  # a handler, an object handler or a pipeline
    Column("app", APP, nullable=False),
    Column("queue", Text, nullable=False),
    Column("named", Integer, nullable=False),  # 1: the app was given its name; 0: it has its module's name
    # 1: its keys are identified by the handler's name alone, as in revision 0005
    Column("plain", Integer, nullable=False),
    Column("first_seen_at", Double, nullable=False),
    Column("last_seen_at", Double, nullable=False),
    Index("ix_owners_name", "kind", "name"),
)

tellings = Table(  # the last batch whose publish notifications were sent
    "tellings",
    metadata,
    Column("pipeline", PIPELINE, primary_key=True),
    Column("told_seq", BigInteger, nullable=False),
)

archives = Table(  # where rows removed from `objects` went; one row per file, or per import of identities only
    "archives",
    metadata,
    Column("id", WORD, primary_key=True),
    Column("pipeline", PIPELINE, nullable=False),
    Column("uri", Text),  # of the Parquet file with the rows; NULL if there are no rows
    Column("objects", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),  # of the file
    Column("source", Text, nullable=False),  # for display: "retired", or the name of the import
    Column("created_at", Double, nullable=False),
    Index("ix_archives_pipeline", "pipeline", "id"),
)

# identities of processed objects whose rows were removed from `objects`; they are never processed again
archived_objects = Table(
    "archived_objects",
    metadata,
    Column("pipeline", PIPELINE, primary_key=True),
    Column("object_id", DIGEST, primary_key=True),
    Column("uri_digest", DIGEST, nullable=False),
    Column("archive_id", WORD, nullable=False),
    # as in `objects`; NULL in rows of revision 0014 and before, and of imports
    Column("batch_seq", BigInteger),
    Column("rows", BigInteger),
    Index("ix_archived_objects_uri", "uri_digest", "pipeline"),
    sqlite_with_rowid=False,
)

reopenings = Table(  # processed objects that are, or were, to be read again; the last time of each
    "reopenings",
    metadata,
    Column("pipeline", PIPELINE, primary_key=True),
    Column("object_id", DIGEST, primary_key=True),
    Column("uri", Text, nullable=False),
    Column("uri_digest", DIGEST, nullable=False),
    Column("state", WORD, nullable=False),  # see `records.ReopeningState`
    # The earlier reading, as it was in `objects`: its rows are in the table until another batch replaces them.
    Column("attempt_id", WORD, nullable=False),
    Column("batch_seq", BigInteger, nullable=False),
    Column("rows", BigInteger),
    Column("lines_quarantined", BigInteger),
    Column("unknown_fields", LONG_TEXT),
    Column("ended_at", Double),
    Column("reopened_at", Double, nullable=False),
    Column("read_attempt_id", WORD),  # the attempt that read it again; NULL until then
    Index("ix_reopenings_state", "pipeline", "state", "object_id"),
    Index("ix_reopenings_uri", "uri_digest", "pipeline"),
    Index("ix_reopenings_attempt", "attempt_id"),
    Index("ix_reopenings_read", "read_attempt_id"),
)

table_commits = Table(  # the last versions of a table's log, as publishes of a pipeline saw them
    "table_commits",
    metadata,
    Column("pipeline", PIPELINE, primary_key=True),
    Column("table_digest", DIGEST, primary_key=True),  # of the table's address
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("tag", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("after_seq", BigInteger, nullable=False),  # the commit shows the batches after this one up to `seq`
    Column("seq", BigInteger, nullable=False),
    Column("engine", Text),  # of another writer; NULL: Penstock wrote it
    Column("operation", Text),
    Column("committed_at", Double),
    Column("lost_from", BigInteger),  # the batches whose commit this one took the place of
    Column("lost_to", BigInteger),
    Column("replacing", BigInteger),  # the batch that replaces rows with it, or with the commit whose place it took
    Column("rewritten_in", Text),  # the folder with what is left of the replaced files
)

progress = Table(  # the last batch that a background job, such as archiving or source cleanup, has finished
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
    Column("as_of", Double, nullable=False),  # the comparison covers objects stored until then
    Column("finished_at", Double, nullable=False),
    Column("source", Text, nullable=False),  # address of the listing or inventory that was compared
    Column("listed", BigInteger, nullable=False),
    Column("missing", BigInteger, nullable=False),
    Column("sent", BigInteger, nullable=False),  # messages
    Column("seconds", Double, nullable=False),
)

replays = Table(  # replays of dead-lettered messages
    "replays",
    metadata,
    Column("replay_id", WORD, primary_key=True),
    Column("letter_queue", Text, nullable=False),
    Column("letter_id", Text, nullable=False),
    Column("queue", Text, nullable=False),  # the target queue
    Column("count", Integer, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("intended_at", Double, nullable=False),
    Column("sent_at", Double),
    Index("ix_replays_intended", "intended_at"),
)

audit = Table(  # operators' actions on queues
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

# Temporary tables, one set per connection: they hand a set of objects to the database once, so that each statement
# after it handles thousands of objects. They live in memory and are not part of the migrated schema.
session_metadata = MetaData()

wanted = Table(  # the objects of a claim or query
    "wanted",
    session_metadata,
    Column("object_id", DIGEST, primary_key=True),
    Column("message_id", Text),
    Column("enqueued_at", Double),
    Column("replay_id", Text),
    prefixes=["TEMPORARY"],
    sqlite_with_rowid=False,
    # leaves no dead rows, which nothing would vacuum: autovacuum cannot see a session's tables
    postgresql_on_commit="DELETE ROWS",
)

leaving = Table(  # how each object leaves its attempt at a commit
    "leaving",
    session_metadata,
    Column("object_id", DIGEST, primary_key=True),
    Column("state", WORD, nullable=False),
    Column("outcome", WORD),
    Column("reason", Text),
    Column("note", Text),  # the reason, followed by the traceback
    Column("rows", BigInteger),
    Column("lines_quarantined", BigInteger),
    Column("refund", Integer, nullable=False),
    Column("unattributed", Integer, nullable=False),
    Column("missing", Integer, nullable=False),
    Column("unknown_fields", LONG_TEXT),
    prefixes=["TEMPORARY"],
    sqlite_with_rowid=False,
    postgresql_on_commit="DELETE ROWS",  # leaves no dead rows; see `wanted`
)
