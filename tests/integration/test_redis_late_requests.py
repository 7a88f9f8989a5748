"""Requests that arrive late do no harm."""

from contextlib import closing

import pytest
from tests.integration.fleet import wait_for
from tests.integration.redis_scene import outgoing, take
from tests.services.fault_proxy import FaultProxy
from tests.services.redis_server import RedisServer

from penstock.brokers.redis import RedisStreamsBroker, server
from penstock.brokers.redis.server import scripts
from penstock.errors import TemporaryError
from penstock.messaging.settlement import Ack

LEASE = 600.0


@pytest.mark.parametrize("late_script", ["doubts", "settle"])
def test_a_late_release_takes_nothing_from_the_current_holder(
    redis_server: RedisServer, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, late_script: str
) -> None:
    monkeypatch.setattr(server, "RESPONSE_SECONDS", 1.0)
    with closing(RedisStreamsBroker(proxy.url, holder="w1")) as broker:
        broker.send("q", outgoing("a"))
        lost = proxy.swallow(scripts()["take"].sha.encode())
        with pytest.raises(TemporaryError):
            take(broker, 1, lease=LEASE)
        lost.wait()
        late = proxy.hold(scripts()[late_script].sha.encode())
        with pytest.raises(TemporaryError):
            take(broker, 1, lease=LEASE)
        late.wait()
        (delivery,) = take(broker, 1, lease=LEASE)
        before = scripts_run(redis_server)
        proxy.heal()
        wait_for(lambda: scripts_run(redis_server) > before, "the late request has run")
        assert not broker.extend([delivery], lease_seconds=LEASE)
        assert not broker.settle([(delivery, Ack())])


def scripts_run(server: RedisServer) -> int:
    return int(server.client.info("commandstats")["cmdstat_evalsha"]["calls"])
