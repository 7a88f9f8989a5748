"""Remember how the objects of a pipeline are read, such as their format and CSV dialect, beside their schema."""

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from penstock.ledger.migrations.tools import add_column, drop_column

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    add_column("pipelines", sa.Column("source_options", LONG_TEXT))


def downgrade() -> None:
    drop_column("pipelines", "source_options")
