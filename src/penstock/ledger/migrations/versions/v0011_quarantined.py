"""Record which attempts found bad lines in which objects, and what became of these lines."""

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from penstock.ledger.migrations.tools import create_index, create_table, drop_table

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

DIGEST = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")
KEY = sa.LargeBinary(4096).with_variant(mysql.VARBINARY(4096), "mysql", "mariadb")
WORD = sa.String(64)


def upgrade() -> None:
    create_table(
        "quarantined",
        sa.Column("pipeline", sa.String(512), primary_key=True),
        sa.Column("object_id", DIGEST, primary_key=True),
        sa.Column("attempt_id", WORD, nullable=False),
        sa.Column("bucket", sa.Text, nullable=False),
        sa.Column("key", KEY, nullable=False),
        sa.Column("uri", sa.Text, nullable=False),
        sa.Column("uri_digest", DIGEST, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("version_id", sa.Text),
        sa.Column("etag", sa.Text),
        sa.Column("place", WORD, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("lines_quarantined", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("warns", sa.Integer, nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("replay_id", DIGEST, nullable=False),
        sa.Column("recorded_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double),
    )
    create_index("ix_quarantined_state", "quarantined", ["pipeline", "state", "warns"])
    create_index("ix_quarantined_attempt", "quarantined", ["attempt_id"])
    create_index("ix_quarantined_uri", "quarantined", ["uri_digest", "pipeline"])
    create_index("ix_quarantined_replay", "quarantined", ["replay_id"])


def downgrade() -> None:
    drop_table("quarantined")
