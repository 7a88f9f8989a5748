"""Remember the last commits of each table, to notice that another writer overwrote one."""

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from penstock.ledger.migrations.tools import create_table, drop_table

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

DIGEST = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")


def upgrade() -> None:
    create_table(
        "table_commits",
        sa.Column("pipeline", sa.String(512), primary_key=True),
        sa.Column("table_digest", DIGEST, primary_key=True),
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("tag", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("after_seq", sa.BigInteger, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("engine", sa.Text),
        sa.Column("operation", sa.Text),
        sa.Column("committed_at", sa.Double),
        sa.Column("lost_from", sa.BigInteger),
        sa.Column("lost_to", sa.BigInteger),
    )


def downgrade() -> None:
    drop_table("table_commits")
