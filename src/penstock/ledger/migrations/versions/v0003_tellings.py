"""Record the last batch of each pipeline whose publish notification was sent."""

import sqlalchemy as sa

from penstock.ledger.migrations.tools import create_table, drop_table

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

PIPELINE = sa.String(512)


def upgrade() -> None:
    create_table(
        "tellings",
        sa.Column("pipeline", PIPELINE, primary_key=True),
        sa.Column("told_seq", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    drop_table("tellings")
