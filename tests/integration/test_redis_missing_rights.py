"""A user who loses a permission during the work: a script that stops half way loses nothing."""

import re
from collections.abc import Callable
from contextlib import closing

import pytest
from tests.integration.redis_scene import LEASE, take
from tests.services.redis_server import VERSIONS, RedisServer

from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.redis.server import scripts
from penstock.messaging.broker import ReceiveRequest
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import DeadLetter, Release

StartRedis = Callable[..., RedisServer]
CALLS = re.compile(r"redis\.p?call\(\s*'([A-Z]+)'")
COMMANDS = sorted({command for each in scripts().values() for command in CALLS.findall(each.text)})
OVER = 0.0  # a lease that has expired by the next poll


@pytest.mark.parametrize("version", VERSIONS)
def test_without_any_single_permission_nothing_is_lost_or_doubled(start_redis: StartRedis, version: str) -> None:
    server = start_redis(version)
    for command in COMMANDS:
        for groups in (1, 2):
            server.clean()
            server.cli("ACL SETUSER", "shop", "reset", "on", ">secret", "~*", "&*", "+@all")
            sent = send(server, groups)
            work_without(server, command)
            assert sorted(everything(server)) == sorted(sent), f"without {command}, with {groups} groups"


def send(server: RedisServer, groups: int) -> list[bytes]:
    ready = [Outgoing(body=b"%d" % n, group=str(n % groups)) for n in range(9)]
    late = [Outgoing(body=b"late %d" % n, delay_seconds=0.001) for n in range(3)]
    with closing(RedisStreamsBroker(server.url, holder="sender")) as broker:
        broker.send("q", [*ready, *late])
    return [message.body for message in (*ready, *late)]


def work_without(server: RedisServer, command: str) -> None:
    """Receive, settle in every way and sweep, each more than once; each call may fail."""
    with closing(RedisStreamsBroker(f"unix://shop:secret@{server.socket}", holder="w1", sweep_seconds=0.0)) as broker:
        first, second, third, *_ = take(broker, 6)
        server.cli("ACL SETUSER", "shop", f"-{command}")
        for settlement in (
            (first, Release()),
            (second, Release(delay_seconds=0.001)),
            (third, DeadLetter(reason="enough")),
        ) * 2:
            broker.turn([settlement], (), lease_seconds=OVER)
        for _ in range(4):
            broker.turn((), [ReceiveRequest(queue="q", messages_max=4)], lease_seconds=OVER)


def everything(server: RedisServer) -> list[bytes]:
    """Return messages in any state, also of the dead worker. Delayed ones were due after a millisecond."""
    found: list[bytes] = []
    with closing(RedisStreamsBroker(server.url, holder="w2", sweep_seconds=3600.0)) as broker:
        broker.release_holder("w1")
        for queue in ("q", "q-dlq"):
            while deliveries := broker.receive(queue, messages_max=100, lease_seconds=LEASE):
                found += [each.message.body for each in deliveries]
            assert broker.stats(queue).visible == 0
    return found
