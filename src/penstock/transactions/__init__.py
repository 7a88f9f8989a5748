"""The transactional outbox and inbox: messages sent and effects recorded in a user's own transaction.

The user's database has two tables, `penstock_outbox` and `penstock_inbox`. The user's sessions write rows in their
own transactions; the relay sends the rows of the outbox and deletes expired rows of the inbox.

`metadata` contains both tables for the user's migrations; `create_tables` creates them.
"""

from penstock.transactions.tables import create_tables, metadata

__all__ = ["create_tables", "metadata"]
