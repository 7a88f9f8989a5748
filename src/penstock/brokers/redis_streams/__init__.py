"""Queues on Redis. docs/run/redis.md says how they work and what the server has to be told; where to find what:

- `broker`: the broker itself, and what it promises
- `turns`: one turn at the server, made of `doubts` (answers that never came), `sweeping` (leases that are over),
  `settling`, `taking` and `deaths` (what a dead letter says)
- `queues`, `looking`: what is known of a queue, and what can be seen of it
- `listening`: hearing of arrivals
- `server`: connections and what errors mean; `scripts` and `lua`: what runs there; `keys`, `records`: how all is named
  and written
- `facts`: what `penstock doctor` asks
"""

from penstock.brokers.redis_streams.broker import RedisStreamsBroker

__all__ = ["RedisStreamsBroker"]
