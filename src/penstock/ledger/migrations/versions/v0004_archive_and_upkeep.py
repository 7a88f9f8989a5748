"""Add the archive, progress of background jobs, reconciliations, and a batch's Spark UI."""

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from penstock.errors import ConfigurationError
from penstock.ledger.migrations.tools import (
    add_column,
    create_index,
    create_table,
    drop_column,
    drop_table,
    has_rows,
)

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

DIGEST = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")
PIPELINE = sa.String(512)
WORD = sa.String(64)


def upgrade() -> None:
    create_table(
        "archives",
        sa.Column("id", WORD, primary_key=True),
        sa.Column("pipeline", PIPELINE, nullable=False),
        sa.Column("uri", sa.Text),
        sa.Column("objects", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    create_index("ix_archives_pipeline", "archives", ["pipeline", "id"])
    create_table(
        "archived_objects",
        sa.Column("pipeline", PIPELINE, primary_key=True),
        sa.Column("object_id", DIGEST, primary_key=True),
        sa.Column("uri_digest", DIGEST, nullable=False),
        sa.Column("archive_id", WORD, nullable=False),
        sqlite_with_rowid=False,
    )
    create_index("ix_archived_objects_uri", "archived_objects", ["uri_digest", "pipeline"])
    create_table(
        "progress",
        sa.Column("pipeline", PIPELINE, primary_key=True),
        sa.Column("task", WORD, primary_key=True),
        sa.Column("done_seq", sa.BigInteger, nullable=False),
    )
    create_table(
        "reconciliations",
        sa.Column("pipeline", PIPELINE, primary_key=True),
        sa.Column("as_of", sa.Double, nullable=False),
        sa.Column("finished_at", sa.Double, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("listed", sa.BigInteger, nullable=False),
        sa.Column("missing", sa.BigInteger, nullable=False),
        sa.Column("sent", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
    )
    add_column("batches", sa.Column("spark_ui_url", sa.Text))


def downgrade() -> None:
    """Drop the tables. Refused while objects are archived: they would be processed a second time."""
    if has_rows("archived_objects"):
        raise ConfigurationError(
            "the ledger has archived objects, which revision 0003 knows nothing of and would process again: restore a "
            "backup from before the upgrade instead"
        )
    drop_column("batches", "spark_ui_url")
    for table in ("reconciliations", "progress", "archived_objects", "archives"):
        drop_table(table)
