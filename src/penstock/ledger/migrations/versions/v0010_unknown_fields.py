"""Count fields without a column per object, and remember the columns that batches add for them."""

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from penstock.ledger.migrations.tools import add_column, drop_column

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    add_column("objects", sa.Column("unknown_fields", LONG_TEXT))
    add_column("pipelines", sa.Column("added_columns", LONG_TEXT))


def downgrade() -> None:
    drop_column("pipelines", "added_columns")
    drop_column("objects", "unknown_fields")
