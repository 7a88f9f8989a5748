"""What Alembic runs: on the connection, and in the transaction, that `penstock.ledger.migrate` hands over.

Logging is left as the application set it up.
"""

from alembic import context

from penstock.ledger.schema import VERSION_TABLE, metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    # MySQL commits each change of a table by itself, whatever one says.
    transactional_ddl=connection.dialect.name not in ("mysql", "mariadb"),
)
with context.begin_transaction():
    context.run_migrations()
