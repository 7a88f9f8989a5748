"""Queues: the cost of calls by the number of waiting messages, and by the number of groups that these belong to.

A round receives 100 messages, acks them and sends 100 new ones of the same groups, so the number of waiting messages
stays the same. CPU time is that of the client, and on Redis also that of the server.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.services.redis_server import RedisServer

from benchmarks.broker import BODY
from benchmarks.growth.curves import Curve, Series
from penstock.brokers.redis.broker import RedisBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.broker import Broker
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack

_AT_ONCE = 100
_FILL_AT_ONCE = 5_000
_ROUNDS = 50
_STATS = 50
_QUEUE = "growth"
_GROUPED = 100_000  # waiting messages of the curves by groups, at least as many as groups
_UNITS = {"send": "message", "receive": "message", "ack": "message", "stats": "call"}
