"""The embedded queue: SQS semantics in one SQLite file, shared by threads and processes of one host.

- `broker`: the broker, and sending
- `deliveries`: lease messages and settle them, fenced by the holder
- `queues`: queue settings, pauses and group rotation; rows to messages
- `upkeep`: expiry of leases, delays and retention
- `file`: open the file, transactions, schema versions; `sql/`: the statements
"""
