"""What a user's own transaction says to a queue, and what a message left there: outbox, inbox, relay.

Two tables in the user's database, `penstock_outbox` and `penstock_inbox`. Rows are written by the user's sessions, in
their transactions; the relay sends what the outbox holds, and forgets what the inbox held long enough.

`metadata` holds both tables for the user's migrations, `create_tables` makes them.
"""

from penstock.transactions.tables import create_tables, metadata

__all__ = ["create_tables", "metadata"]
