"""Order the versions of an object by their batches, also once they are archived."""

import sqlalchemy as sa
from alembic import op

from penstock.errors import ConfigurationError
from penstock.ledger.migrations.tools import add_column, drop_column, has_column

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
    if has_column("batches", "replaced_rows") and _has_replaced():
        raise ConfigurationError(
            "The ledger has batches that replace the rows of changed objects (on_change), and revision 0014 would add "
            "the rows of versions that they replaced: it cannot be downgraded below 0015."
        )
    drop_column("quarantined", "replaced_seq")
    drop_column("batches", "replaced_rows")
    drop_column("batches", "replaced_objects")
    drop_column("archived_objects", "rows")
    drop_column("archived_objects", "batch_seq")


def _has_replaced() -> bool:
    batches = sa.table("batches", sa.column("replaces"), sa.column("replaced_rows"))
    replacing = batches.c.replaces.is_not(None) & batches.c.replaced_rows.is_not(None)
    one = sa.select(sa.literal(1)).select_from(batches).where(replacing).limit(1)
    return op.get_bind().execute(one).first() is not None
