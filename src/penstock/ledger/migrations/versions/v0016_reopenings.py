"""Processed objects can be read again, while their rows stay in the table."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from penstock.errors import ConfigurationError
from penstock.ledger.migrations.tools import create_index, create_table, drop_table, has_rows

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

DIGEST = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")
LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT, "mysql", "mariadb")


def upgrade() -> None:
    create_table(
        "reopenings",
        sa.Column("pipeline", sa.String(512), primary_key=True),
        sa.Column("object_id", DIGEST, primary_key=True),
        sa.Column("uri", sa.Text, nullable=False),
        sa.Column("uri_digest", DIGEST, nullable=False),
        sa.Column("state", sa.String(64), nullable=False),
        sa.Column("attempt_id", sa.String(64), nullable=False),
        sa.Column("batch_seq", sa.BigInteger, nullable=False),
        sa.Column("rows", sa.BigInteger),
        sa.Column("lines_quarantined", sa.BigInteger),
        sa.Column("unknown_fields", LONG_TEXT),
        sa.Column("ended_at", sa.Double),
        sa.Column("reopened_at", sa.Double, nullable=False),
        sa.Column("read_attempt_id", sa.String(64)),
    )
    create_index("ix_reopenings_state", "reopenings", ["pipeline", "state", "object_id"])
    create_index("ix_reopenings_uri", "reopenings", ["uri_digest", "pipeline"])
    create_index("ix_reopenings_attempt", "reopenings", ["attempt_id"])
    create_index("ix_reopenings_read", "reopenings", ["read_attempt_id"])


def downgrade() -> None:
    if has_rows("reopenings") and _has_open():
        raise ConfigurationError(
            "The ledger has objects that are to be read again (penstock objects reprocess), and revision 0015 would "
            "add their new rows to the earlier ones: let a worker read them, or withdraw that (--withdraw), first."
        )
    drop_table("reopenings")


def _has_open() -> bool:
    reopenings = sa.table("reopenings", sa.column("state"))
    one = sa.select(sa.literal(1)).select_from(reopenings).where(reopenings.c.state == "open").limit(1)
    return op.get_bind().execute(one).first() is not None
