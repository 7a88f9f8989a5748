"""Add works: claims on a key of a handler."""

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from penstock.ledger.migrations.tools import create_index, create_table, drop_table, make_room

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

DIGEST = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")
HANDLER = sa.String(256)
WORD = sa.String(64)
LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    create_table(
        "works",
        sa.Column("work_id", DIGEST, primary_key=True),
        sa.Column("handler", HANDLER, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("attempt_id", WORD, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        sa.Column("heartbeat_seq", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.Double),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("outcome", LONG_TEXT),
        sa.Column("first_seen_at", sa.Double, nullable=False),
        sa.Column("last_attempt_id", WORD),
        sa.Column("last_worker", sa.Text),
        sa.Column("last_started_at", sa.Double),
        sa.Column("last_ended_at", sa.Double),
        sa.Column("last_outcome", WORD),
        sa.Column("last_reason", sa.Text),
    )
    create_index("ix_works_attempt", "works", ["attempt_id"], unique=True)
    create_index("ix_works_state", "works", ["state", "handler", "work_id"])
    create_index("ix_works_ended", "works", ["ended_at"])
    make_room("works", 20)  # for leases, which are extended all the time


def downgrade() -> None:
    drop_table("works")
