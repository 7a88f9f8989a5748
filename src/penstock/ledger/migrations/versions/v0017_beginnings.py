"""Remember the beginnings of objects, of which only what is appended is read."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from penstock.errors import ConfigurationError
from penstock.ledger.migrations.tools import add_column, create_table, drop_column, drop_table, has_column

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
DIGEST = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")


def upgrade() -> None:
    create_table(
        "beginnings",
        sa.Column("pipeline", sa.String(512), primary_key=True),
        sa.Column("uri_digest", DIGEST, primary_key=True),
        sa.Column("attempt_id", sa.String(64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("digest", LONG_TEXT, nullable=False),
        sa.Column("reading", sa.String(64), nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("lines_quarantined", sa.BigInteger, nullable=False),
        sa.Column("object_bytes", sa.BigInteger, nullable=False),
        sa.Column("version_id", sa.Text),
        sa.Column("etag", sa.Text),
        sqlite_with_rowid=False,
    )
    add_column("batches", sa.Column("grown_objects", sa.BigInteger))
    add_column("batches", sa.Column("appended_rows", sa.BigInteger))


def downgrade() -> None:
    if has_column("batches", "grown_objects") and _has_grown():
        raise ConfigurationError(
            "The ledger has batches with only the appended rows of files that grew (on_change), and revision 0016 "
            "would take the last of them for whole files: it cannot be downgraded below 0017."
        )
    drop_column("batches", "appended_rows")
    drop_column("batches", "grown_objects")
    drop_table("beginnings")


def _has_grown() -> bool:
    batches = sa.table("batches", sa.column("grown_objects"))
    one = sa.select(sa.literal(1)).select_from(batches).where(batches.c.grown_objects > 0).limit(1)
    return op.get_bind().execute(one).first() is not None
