"""Merge rows by key: the declaration of a pipeline and of each batch, and the deletes of a batch."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from penstock.errors import ConfigurationError
from penstock.ledger.migrations.tools import add_column, drop_column, has_column

revision = "0018"
down_revision = "0015"
branch_labels = None
depends_on = None

LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    add_column("pipelines", sa.Column("merge", sa.Text))
    add_column("batches", sa.Column("merge", sa.Text))
    add_column("batches", sa.Column("tombstones", LONG_TEXT))


def downgrade() -> None:
    if has_column("batches", "merge") and _has_merged():
        raise ConfigurationError(
            "The ledger has batches whose rows are merged by key, and earlier revisions would add them as they are: it "
            "cannot be downgraded below 0018."
        )
    drop_column("batches", "tombstones")
    drop_column("batches", "merge")
    drop_column("pipelines", "merge")


def _has_merged() -> bool:
    batches = sa.table("batches", sa.column("merge"))
    one = sa.select(sa.literal(1)).select_from(batches).where(batches.c.merge.is_not(None)).limit(1)
    return op.get_bind().execute(one).first() is not None
