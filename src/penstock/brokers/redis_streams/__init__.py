"""Queues on Redis: `RedisStreamsBroker` is the broker; docs/redis.md says what the server has to be told."""

from penstock.brokers.redis_streams.broker import RedisStreamsBroker

__all__ = ["RedisStreamsBroker"]
