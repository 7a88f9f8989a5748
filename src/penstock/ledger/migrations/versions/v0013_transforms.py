"""Remember which transform made the rows of each batch, and of a pipeline."""

import sqlalchemy as sa

from penstock.ledger.migrations.tools import add_column, drop_column

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    add_column("batches", sa.Column("transform", sa.Text))
    add_column("pipelines", sa.Column("transform", sa.Text))


def downgrade() -> None:
    drop_column("pipelines", "transform")
    drop_column("batches", "transform")
