"""A cluster with a failing part: queues in other parts are served as usual."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError as AwayError
from tests.integration.redis_scene import LEASE, outgoing
from tests.services.redis_server import VERSIONS, RedisServer

from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.redis.server import Server
from penstock.errors import TemporaryError
from penstock.messaging.broker import ReceiveRequest, TurnResult

StartRedis = Callable[..., RedisServer]


def turn(broker: RedisStreamsBroker, *queues: str) -> TurnResult:
    return broker.turn((), [ReceiveRequest(queue=queue, messages_max=1) for queue in queues], lease_seconds=LEASE)


def failed(turn: TurnResult) -> str | None:
    return turn.receive_error and turn.receive_error[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_queue_on_a_failing_node_delays_no_other(start_redis: StartRedis, version: str) -> None:
    cluster = start_redis(version, cluster=True)
    with closing(RedisStreamsBroker(cluster.cluster_url, holder="w1")) as broker:
        for queue in ("well", "ill"):
            broker.send(queue, outgoing(1, 2))
        assert turn(broker, "ill").deliveries
        cluster.cli("ACL SETUSER", "default", "resetkeys", "~penstock:{well}*")  # one node cannot fail in part
        try:
            assert failed(turn(broker, "ill", "well")) == "ill"
            for _ in range(2):  # regardless of messages in doubt in the other queue
                assert turn(broker, "well").deliveries
            assert failed(turn(broker, "well", "ill")) == "ill"
        finally:
            cluster.cli("ACL SETUSER", "default", "resetkeys", "~*")
        assert turn(broker, "well", "ill").deliveries


class HalfCluster:
    """A client of two nodes, of which one is unavailable."""

    def info(self, section: str) -> dict[str, Any]:
        return {"redis_version": "7.0.0"}

    def script_load(self, text: str) -> None:
        pass

    def execute_command(self, *command: Any) -> bytes:
        if "away" in command:
            raise AwayError("unreachable")
        return b"here"


def test_an_unavailable_node_fails_only_its_own_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RedisCluster, "from_url", lambda url, **options: HalfCluster())
    server = Server("redis+cluster://localhost")
    first, second, third = server.run(("GET", "a"), ("GET", "away"), ("GET", "b"))
    assert (first, third) == (b"here", b"here")
    assert isinstance(second, TemporaryError)
    with pytest.raises(TemporaryError, match="unreachable"):
        server.call("GET", "away")
