"""Name the objects whose earlier rows leave the table with a batch."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from penstock.errors import ConfigurationError
from penstock.ledger.migrations.tools import add_column, drop_column, has_column

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    add_column("batches", sa.Column("replaces", LONG_TEXT))
    add_column("table_commits", sa.Column("replacing", sa.BigInteger))
    add_column("table_commits", sa.Column("rewritten_in", sa.Text))


def downgrade() -> None:
    if has_column("batches", "replaces") and _has_replaced():
        raise ConfigurationError(
            "The ledger has batches that replace rows (penstock objects retract), and revision 0013 would not take "
            "these rows out of their table: it cannot be downgraded below 0014."
        )
    drop_column("table_commits", "rewritten_in")
    drop_column("table_commits", "replacing")
    drop_column("batches", "replaces")


def _has_replaced() -> bool:
    batches = sa.table("batches", sa.column("replaces"))
    one = sa.select(sa.literal(1)).select_from(batches).where(batches.c.replaces.is_not(None)).limit(1)
    return op.get_bind().execute(one).first() is not None
