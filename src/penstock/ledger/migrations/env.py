"""Run Alembic on the connection, and in the transaction, that `penstock.ledger.migrate` passes.

Leaves logging as the application configured it.
"""

from alembic import context

from penstock.ledger.schema import VERSION_TABLE, metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    # MySQL commits each change of a table implicitly.
    transactional_ddl=connection.dialect.name not in ("mysql", "mariadb"),
)
with context.begin_transaction():
    context.run_migrations()
