"""A cluster of which a part fails: the queues that lie elsewhere are served as ever."""

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
def test_a_queue_that_cannot_be_asked_holds_up_no_other(start_redis: StartRedis, version: str) -> None:
    cluster = start_redis(version, cluster=True)
    with closing(RedisStreamsBroker(cluster.cluster_url, holder="w1")) as broker:
        for queue in ("well", "ill"):
            broker.send(queue, outgoing(1, 2))
        assert turn(broker, "ill").deliveries
        cluster.cli("ACL SETUSER", "default", "resetkeys", "~penstock:{well}*")  # one node has but one fate
        try:
            assert failed(turn(broker, "ill", "well")) == "ill"
            for _ in range(2):  # whatever is in doubt over there
                assert turn(broker, "well").deliveries
            assert failed(turn(broker, "well", "ill")) == "ill"
        finally:
            cluster.cli("ACL SETUSER", "default", "resetkeys", "~*")
        assert turn(broker, "well", "ill").deliveries


class HalfACluster:
    """A client of two nodes, of which one is away."""

    def info(self, section: str) -> dict[str, Any]:
        return {"redis_version": "7.0.0"}

    def script_load(self, text: str) -> None:
        pass

    def execute_command(self, *command: Any) -> bytes:
        if "away" in command:
            raise AwayError("nobody there")
        return b"here"


def test_a_node_that_is_away_fails_its_own_commands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RedisCluster, "from_url", lambda url, **options: HalfACluster())
    speaking = Server("redis+cluster://localhost")
    first, second, third = speaking.run(("GET", "a"), ("GET", "away"), ("GET", "b"))
    assert (first, third) == (b"here", b"here")
    assert isinstance(second, TemporaryError)
    with pytest.raises(TemporaryError, match="nobody there"):
        speaking.call("GET", "away")
