"""Queues on Redis Streams. docs/run/redis.md describes the data model and the server settings it needs.

- `broker`: the broker and its guarantees
- `turn`: one round trip that settles, recovers and receives
- `settle`: end deliveries, dead-letter messages; `recovery`: expired leases and responses that were lost
- `queues`: settings and statistics of queues; `listener`: wait for arrivals
- `server`: connections, scripts, errors; `lua/`: the scripts; `keys`, `records`: names and encodings
- `facts`: checks for `penstock doctor`
"""

from penstock.brokers.redis.broker import RedisStreamsBroker

__all__ = ["RedisStreamsBroker"]
