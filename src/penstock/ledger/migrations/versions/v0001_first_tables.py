"""Create the tables of pipelines: schemas, attempts, objects and batches."""

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from penstock.ledger.migrations.tools import (
    by_database,
    create_index,
    create_table,
    drop_table,
    make_room,
    vacuum_early,
)

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

DIGEST = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")
KEY = sa.LargeBinary(4096).with_variant(mysql.VARBINARY(4096), "mysql", "mariadb")
PIPELINE = sa.String(512)
WORD = sa.String(64)
LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    _create_pipelines()
    _create_attempts()
    _create_objects()
    _create_object_attempts()
    _create_batches()


def downgrade() -> None:
    for table in ("batches", "object_attempts", "objects", "attempts", "table_schemas", "pipelines"):
        drop_table(table)


def _create_pipelines() -> None:
    create_table(
        "pipelines",
        sa.Column("id", PIPELINE, primary_key=True),
        sa.Column("next_seq", sa.BigInteger, nullable=False),
        sa.Column("schema_id", sa.Integer, nullable=False),
        sa.Column("source_schema", LONG_TEXT),
    )
    create_table(
        "table_schemas",
        sa.Column("pipeline", PIPELINE, primary_key=True),
        sa.Column("schema_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("table_schema", LONG_TEXT, nullable=False),
    )


def _create_attempts() -> None:
    create_table(
        "attempts",
        sa.Column("id", WORD, primary_key=True),
        sa.Column("pipeline", PIPELINE, nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("heartbeat_seq", sa.BigInteger, nullable=False),
        sa.Column("outcome", WORD),
        sa.Column("reason", sa.Text),
    )
    create_index("ix_attempts_state", "attempts", ["pipeline", "state", "id"])
    make_room("attempts", 20)  # for leases, which are extended all the time


def _create_objects() -> None:
    create_table(
        "objects",
        sa.Column("pipeline", PIPELINE, primary_key=True),
        sa.Column("object_id", DIGEST, primary_key=True),
        sa.Column("bucket", sa.Text, nullable=False),
        sa.Column("key", KEY, nullable=False),
        sa.Column("uri", sa.Text, nullable=False),
        sa.Column("uri_digest", DIGEST, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("version_id", sa.Text),
        sa.Column("etag", sa.Text),
        sa.Column("sequencer", sa.Text),
        sa.Column("state", WORD, nullable=False),
        sa.Column("attempt_id", WORD),
        sa.Column("charged", sa.Integer, nullable=False),
        sa.Column("refunds", sa.Integer, nullable=False),
        sa.Column("unattributed_failures", sa.Integer, nullable=False),
        sa.Column("batch_seq", sa.BigInteger),
        sa.Column("rows", sa.BigInteger),
        sa.Column("lines_quarantined", sa.BigInteger),
        sa.Column("reason", sa.Text),
        sa.Column("carrier_message_id", sa.Text),
        sa.Column("carrier_enqueued_at", sa.Double),
        sa.Column("carrier_replay_id", sa.Text),
        sa.Column("first_seen_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double),
        sa.Column("dead_at", sa.Double),
    )
    # Begun with the state, it would tempt PostgreSQL to find an attempt's objects among all that are processed now.
    by_state = by_database(["state", "pipeline", "object_id"], postgresql=["pipeline", "state", "object_id"])
    create_index("ix_objects_state", "objects", by_state)
    create_index("ix_objects_attempt", "objects", ["attempt_id"], postgresql_where=sa.text("attempt_id IS NOT NULL"))
    create_index("ix_objects_uri", "objects", ["uri_digest", "pipeline"])
    vacuum_early("objects")


def _create_object_attempts() -> None:
    create_table(
        "object_attempts",
        sa.Column("pipeline", PIPELINE, primary_key=True),
        sa.Column("object_id", DIGEST, primary_key=True),
        sa.Column("attempt_id", WORD, primary_key=True),
        sa.Column("replay_id", sa.Text),
        sa.Column("outcome", WORD),
        sa.Column("reason", sa.Text),
        sqlite_with_rowid=False,
    )


def _create_batches() -> None:
    create_table(
        "batches",
        sa.Column("pipeline", PIPELINE, primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("attempt_id", WORD, nullable=False),
        sa.Column("schema_id", sa.Integer, nullable=False),
        sa.Column("manifest", LONG_TEXT, nullable=False),
        sa.Column("quarantine_manifest", LONG_TEXT, nullable=False),
        sa.Column("objects", sa.BigInteger, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("lines_quarantined", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("committed_at", sa.Double, nullable=False),
        sa.Column("stage_seconds", sa.Text, nullable=False),
        sa.UniqueConstraint("attempt_id", name="uq_batches_attempt"),
    )
