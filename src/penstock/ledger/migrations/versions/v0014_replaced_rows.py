"""Remember which commits of a table replaced rows."""

import sqlalchemy as sa

from penstock.ledger.migrations.tools import add_column, drop_column

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    add_column("table_commits", sa.Column("replacing", sa.BigInteger))
    add_column("table_commits", sa.Column("rewritten_in", sa.Text))


def downgrade() -> None:
    drop_column("table_commits", "rewritten_in")
    drop_column("table_commits", "replacing")
