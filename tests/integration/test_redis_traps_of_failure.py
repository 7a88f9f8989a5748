"""More traps of Redis Streams: lost responses, growing counts, deleted groups and entries."""

from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry
from tests.integration.fleet import wait_for
from tests.integration.redis_scene import GROUP, LEASE, NOW, STREAM, Scene, bodies, entry, outgoing, take
from tests.integration.redis_worker import working
from tests.services.fault_proxy import FaultProxy
from tests.services.redis_server import RedisServer

from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.redis.keys import QueueKeys
from penstock.brokers.redis.server import Server
from penstock.errors import TemporaryError
from penstock.events import Event, MessagesDeleted, MessagesReceived
from penstock.messaging.broker import QueueSettings
from penstock.messaging.delivery import AttemptEnd
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release

# --- the client's own retries send twice


def bare_client(url: str) -> "redis.Redis":
    """Return a client with its default options, by host and port."""
    parts = urlsplit(url)
    return redis.Redis(host=parts.hostname or "", port=parts.port or 0, protocol=2)


def test_a_client_with_automatic_retries_sends_twice(scene: Scene, proxy: FaultProxy) -> None:
    with closing(bare_client(proxy.url)) as client:
        client.ping()
        trap = proxy.swallow(b"XADD")
        client.xadd("s", {"body": "once"})
        trap.wait()
    assert scene.raw.xlen("s") == 2


def test_a_send_whose_response_is_lost_fails_and_is_sent_at_most_once(scene: Scene, proxy: FaultProxy) -> None:
    with closing(RedisStreamsBroker(proxy.url, holder="w1")) as broker:
        broker.send("q", outgoing("before"))
        trap = proxy.swallow(b"only once")
        with pytest.raises(TemporaryError):
            broker.send("q", outgoing("only once"))
        trap.wait()
        assert bodies(take(broker)) == ["before", "only once"]


def test_a_read_whose_response_is_lost_is_not_repeated_by_the_client(scene: Scene, proxy: FaultProxy) -> None:
    with closing(RedisStreamsBroker(proxy.url, holder="w1", sweep_seconds=3600.0)) as broker:
        broker.send("q", outgoing(*range(4)))
        take(broker, 1)
        trap = proxy.swallow(b"EVALSHA")
        with pytest.raises(TemporaryError):
            take(broker, 1)
        trap.wait()
        assert scene.raw.xlen(STREAM) == 2  # the first, and the one of the lost response
        (again,) = take(broker, 1)  # it is redelivered at once
        assert (again.message.body, again.attempt) == (b"1", 1)
        assert again.previous is not None
        assert again.previous.end is AttemptEnd.RELEASED


def retries(client: Any) -> int:
    found: Retry = client.connection_pool.make_connection().retry
    return found._retries


def test_no_client_of_penstock_retries_automatically(redis_server: RedisServer) -> None:
    assert retries(bare_client("redis://127.0.0.1:1")) > 0
    server = Server(redis_server.url)
    with closing(server), closing(server.blocking()) as blocking:
        assert retries(server._client) == retries(blocking) == 0
        assert server._client.get_retry()._retries == 0
        assert isinstance(server._client.get_retry()._backoff, NoBackoff)


# --- delivery counts


def test_the_servers_delivery_count_grows_by_reading(scene: Scene) -> None:
    scene.naive("m")
    scene.read("w")
    counts = []
    for _ in range(2):
        scene.read("w", since="0")  # its own history
        counts += [scene.raw.xpending_range("s", "g", "-", "+", 9)[0]["times_delivered"]]
        scene.raw.xautoclaim("s", "g", "w", 0)
        counts += [scene.raw.xpending_range("s", "g", "-", "+", 9)[0]["times_delivered"]]
    assert counts == [2, 3, 4, 5]


def test_heartbeats_and_sweeps_do_not_count_as_attempts(scene: Scene) -> None:
    broker, other = scene.broker("w1"), scene.broker("w2")
    broker.send("q", outgoing("m"))
    (delivery,) = take(broker)
    for _ in range(5):
        assert broker.extend([delivery], lease_seconds=LEASE) == []
        assert take(other) == []  # sweeps
    assert not broker.settle([(delivery, Release())])
    (second,) = take(broker, lease=NOW)
    (third,) = take(other)
    assert not other.settle([(third, Release(uncounted=True))])
    (fourth,) = take(broker)
    assert [each.attempt for each in (delivery, second, third, fourth)] == [1, 2, 3, 3]


# --- the group, the stream, or an entry is deleted


def test_a_group_created_by_hand_at_the_end_skips_existing_entries(scene: Scene) -> None:
    scene.raw.xadd("s", {"body": "first"})
    scene.raw.xgroup_create("s", "g", "$")
    assert scene.read("w") == []
    scene.raw.xgroup_destroy("s", "g")
    with pytest.raises(ResponseError, match="NOGROUP"):
        scene.read("w")


@pytest.mark.parametrize("damage", ["flushall", "destroy", "delete"])
def test_workers_continue_when_their_queue_is_deleted(scene: Scene, damage: str) -> None:
    broker = scene.broker()
    broker.send("q", [Outgoing(body=b"held", group="g", attributes={"a": "b"}), *outgoing("waits")])
    (held,) = take(broker, 1)
    if damage == "flushall":
        scene.server.clean()
    elif damage == "destroy":
        scene.raw.xgroup_destroy(STREAM, GROUP)
    else:
        scene.raw.delete(STREAM)
    assert broker.extend([held], lease_seconds=LEASE) == [held]
    (failure,) = broker.settle([(held, Ack())])
    assert failure.lost
    broker.send("q", outgoing("next"))
    deliveries = take(broker)
    expected = {"flushall": ["next"], "destroy": ["held", "waits", "next"], "delete": ["waits", "next"]}[damage]
    assert sorted(bodies(deliveries)) == sorted(expected)
    if damage == "destroy":  # it is the same message
        (redelivered,) = [each for each in deliveries if each.message.body == b"held"]
        assert (redelivered.message, redelivered.attempt) == (held.message, 2)
    assert not broker.settle([(each, Ack()) for each in deliveries])
    assert scene.raw.xlen(STREAM) == 0


def test_entries_deleted_by_hand_are_returned_in_a_separate_list(scene: Scene) -> None:
    (id,) = scene.naive("gone")
    scene.read("w")
    scene.raw.xdel("s", id)
    claimed = scene.raw.xautoclaim("s", "g", "heir", 0)
    if scene.server.version == "6.2":
        assert claimed[1] == [(None, None)]  # and it stays pending for ever
    else:
        assert claimed[1:] == [[], [id]]
        assert scene.pending() == 0


def test_the_sweep_reports_a_deleted_entry(scene: Scene) -> None:
    dead, successor = scene.broker("dead"), scene.broker("heir")
    dead.send("q", outgoing("gone", "kept"))
    deleted, kept = take(dead, lease=NOW)
    scene.raw.xdel(STREAM, entry(deleted))
    assert bodies(take(successor)) == ["kept"]
    assert scene.events == [MessagesDeleted(queue="q", entries=(entry(deleted),))]
    assert successor.stats("q").in_flight == 1
    assert kept.message.body == b"kept"


@pytest.mark.parametrize("settlement", [Release(), DeadLetter(reason="x")], ids=["release", "dead letter"])
def test_a_settlement_reports_a_deleted_entry(scene: Scene, settlement: Release | DeadLetter) -> None:
    broker = scene.broker()
    broker.send("q", outgoing("gone"))
    (deleted,) = take(broker)
    scene.raw.xdel(STREAM, entry(deleted))
    (failure,) = broker.settle([(deleted, settlement)])
    assert failure.lost
    assert "another client deleted its entry" in failure.reason
    stats = broker.stats("q")
    assert (stats.visible, stats.in_flight) == (0, 0)


def test_a_heartbeat_never_hides_a_deleted_entry(scene: Scene) -> None:
    broker = scene.broker()
    broker.send("q", outgoing("gone", "kept"))
    deleted, kept = take(broker, lease=NOW)
    scene.raw.xdel(STREAM, entry(deleted))
    broker.extend([deleted, kept], lease_seconds=NOW)
    take(broker)
    assert [event for event in scene.events if isinstance(event, MessagesDeleted)] == [
        MessagesDeleted(queue="q", entries=(entry(deleted),))
    ]


def test_purges_within_a_millisecond_never_repeat_a_receipt(scene: Scene) -> None:
    broker = scene.broker()
    receipts: set[str] = set()
    for _ in range(200):
        broker.send("q", outgoing("m"))
        receipts |= {entry(each) for each in take(broker)}
        assert broker.purge("q") == 1
    assert len(receipts) == 200


@pytest.mark.parametrize("damage", ["FLUSHALL", f"DEL {QueueKeys('penstock').settings('q')}"])
def test_deleted_settings_of_a_queue_are_restored(scene: Scene, damage: str) -> None:
    settings = QueueSettings(name="q", receives_max=2, dead_letter_queue="graves")
    broker, sender = scene.broker(queues=[settings]), scene.broker("sender")
    sender.send("q", outgoing("before"))
    assert bodies(take(broker, lease=NOW)) == ["before"]
    scene.server.cli(*damage.split())
    sender.send("q", outgoing("after"))
    while "after" not in bodies(take(broker, lease=NOW)):
        pass  # ends: the message before it is delivered twice at most
    assert "q" in broker.queue_names()
    while take(broker, lease=NOW):
        pass
    assert "after" in [dead_letter.body.decode() for dead_letter in broker.browse("graves", messages_max=9)]


def test_a_worker_restores_deleted_settings_without_a_sender(scene: Scene) -> None:
    broker = scene.broker()
    broker.send("q", outgoing("before"))
    scene.raw.delete(QueueKeys("penstock").settings("q"))
    (delivery,) = take(broker)
    assert delivery.message.body == b"before"
    assert not broker.settle([(delivery, Ack())])


@pytest.mark.parametrize("damage", ["FLUSHALL", "SCRIPT FLUSH", f"DEL {STREAM}", f"XGROUP DESTROY {STREAM} {GROUP}"])
def test_a_worker_continues_automatically(scene: Scene, damage: str) -> None:
    broker, received = scene.broker(), set[str]()

    def count_received(event: Event) -> None:
        if isinstance(event, MessagesReceived):
            received.update(event.message_ids)

    with working(broker, {"q": 1}, count_received):
        for _ in range(3):
            ids = broker.send("q", outgoing(*range(20)))
            wait_for(lambda ids=ids: received.issuperset(ids), "all are received")  # type: ignore[misc]
            wait_for(lambda: broker.stats("q").in_flight == 0, "and are acked")
            scene.server.cli(*damage.split())
    assert len(received) == 60
