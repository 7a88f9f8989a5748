"""Order the versions of an object by their batches, also once they are archived."""

import sqlalchemy as sa

from penstock.ledger.migrations.tools import add_column, drop_column

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    add_column("archived_objects", sa.Column("batch_seq", sa.BigInteger))
    add_column("archived_objects", sa.Column("rows", sa.BigInteger))
    add_column("batches", sa.Column("replaced_objects", sa.BigInteger))
    add_column("batches", sa.Column("replaced_rows", sa.BigInteger))
    add_column("quarantined", sa.Column("replaced_seq", sa.BigInteger))


def downgrade() -> None:
    drop_column("quarantined", "replaced_seq")
    drop_column("batches", "replaced_rows")
    drop_column("batches", "replaced_objects")
    drop_column("archived_objects", "rows")
    drop_column("archived_objects", "batch_seq")
