"""Add replays of dead-lettered messages, and the audit log of queues."""

import sqlalchemy as sa

from penstock.ledger.migrations.tools import create_index, create_table, drop_table

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

WORD = sa.String(64)


def upgrade() -> None:
    create_table(
        "replays",
        sa.Column("replay_id", WORD, primary_key=True),
        sa.Column("letter_queue", sa.Text, nullable=False),
        sa.Column("letter_id", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("due_at", sa.Double, nullable=False),
        sa.Column("intended_at", sa.Double, nullable=False),
        sa.Column("sent_at", sa.Double),
    )
    create_index("ix_replays_intended", "replays", ["intended_at"])
    create_table(
        "audit",
        sa.Column("id", WORD, primary_key=True),
        sa.Column("action", WORD, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("details", sa.Text, nullable=False),
        sa.Column("messages", sa.BigInteger, nullable=False),
        sa.Column("outcome", WORD),
        sa.Column("began_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double),
    )


def downgrade() -> None:
    for table in ("audit", "replays"):
        drop_table(table)
