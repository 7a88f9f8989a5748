"""What Alembic runs: on the connection, and in the transaction, that `penstock.ledger.migrate` hands over.

Logging is left as the application set it up.
"""

from alembic import context

from penstock.ledger.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
