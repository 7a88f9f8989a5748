"""Record when an object was first found missing or replaced; messages enqueued later may override that."""

import sqlalchemy as sa

from penstock.ledger.migrations.tools import add_column, drop_column

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("missed_at", "sought_at"):
        add_column("objects", sa.Column(name, sa.Double))


def downgrade() -> None:
    for name in ("missed_at", "sought_at"):
        drop_column("objects", name)
