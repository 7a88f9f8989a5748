"""Listeners on a real server: one leaves a server that became a replica, a paused queue hides no other delays."""

import threading
from contextlib import closing

from tests.integration.fleet import wait_for
from tests.integration.redis_scene import LEASE, outgoing
from tests.services.redis_server import RedisServer

from penstock.brokers.redis import RedisStreamsBroker
from penstock.messaging.broker import ReceiveRequest
from penstock.messaging.message import Outgoing

SECONDS = 60.0  # far more than it takes


def listening_connections(server: RedisServer) -> set[str]:
    """Return the connections whose last command waited for a wake-up token."""
    return {client["id"] for client in server.client.client_list() if client["cmd"] == "blpop"}


def test_a_listener_leaves_a_server_that_became_a_replica_and_works_again_later(redis_server: RedisServer) -> None:
    notified = threading.Event()
    others = listening_connections(redis_server)  # those of earlier tests end with their last poll
    with closing(RedisStreamsBroker(redis_server.url, holder="w1")) as broker:
        listening = broker.listen(["q"], notified.set)
        try:
            listening.want({"q"})
            broker.send("q", outgoing("before"))
            assert notified.wait(SECONDS)
            notified.clear()
            known = listening_connections(redis_server) - others
            assert len(known) == 1
            redis_server.cli("REPLICAOF", "127.0.0.1", "1")
            # not blocked at that moment: otherwise the server itself would have closed the connection
            listening.want({"q"})
            wait_for(
                lambda: not known & listening_connections(redis_server), "its connection is closed", within=SECONDS
            )
        finally:
            redis_server.cli("REPLICAOF", "NO", "ONE")
        broker.send("q", outgoing("after"))
        assert notified.wait(SECONDS)
        listening.close()


def test_a_delay_that_ended_in_a_paused_queue_hides_no_other(redis_server: RedisServer) -> None:
    with closing(RedisStreamsBroker(redis_server.url, holder="w1")) as broker:
        broker.pause("paused")
        broker.send("paused", [Outgoing(body=b"soon", delay_seconds=0.001)])
        broker.send("q", [Outgoing(body=b"later", delay_seconds=60.0)])
        requests = [ReceiveRequest(queue=queue, messages_max=1) for queue in ("paused", "q")]
        turn = broker.turn((), requests, lease_seconds=LEASE)
        assert not turn.deliveries
        assert turn.next_in_seconds is not None
        assert 50.0 < turn.next_in_seconds <= 60.0


def test_a_receive_reports_that_it_drained_its_queue_and_when_a_delay_ends(redis_server: RedisServer) -> None:
    with closing(RedisStreamsBroker(redis_server.url, holder="w1")) as broker:
        broker.send("q", [*outgoing("a", "b", "c"), Outgoing(body=b"later", delay_seconds=60.0)])
        first, second = (
            broker.turn((), [ReceiveRequest(queue="q", messages_max=2)], lease_seconds=LEASE) for _ in range(2)
        )
        assert (len(first.deliveries), first.drained, first.next_in_seconds) == (2, False, None)
        assert (len(second.deliveries), second.drained) == (1, True)
        assert second.next_in_seconds is not None
        assert 50.0 < second.next_in_seconds <= 60.0
