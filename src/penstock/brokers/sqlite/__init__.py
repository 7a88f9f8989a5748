"""The embedded queue: SQS semantics in one SQLite file, shared by threads and processes of one host.

- `broker`: the broker, and sending
- `deliveries`: lease messages and settle them, fenced by the delivery's number
- `queues`: queue settings, pauses and group rotation; conversion of rows to messages
- `upkeep`: expiry of leases, delays and retention
- `file`: the connection, transactions and schema versions; `sql/`: the statements
"""
