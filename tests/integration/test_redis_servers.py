"""Servers in every state that a broker meets: read-only, without scripts, loading, unable to save, full."""

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest
from tests.integration.fleet import wait_for
from tests.integration.redis_scene import LEASE, NOW, bodies, cycle, outgoing, take
from tests.services.plugin import StartRedis, both_versions
from tests.services.redis_server import RedisServer

from penstock.brokers.redis import RedisStreamsBroker
from penstock.errors import TemporaryError
from penstock.messaging.broker import ReceiveRequest
from penstock.messaging.message import Outgoing
from penstock.messaging.settlement import Ack, DeadLetter, Release

# --- the server changes


def connections(server: RedisServer) -> set[str]:
    return {client["id"] for client in server.client.client_list()}


def test_a_primary_that_becomes_a_replica_is_disconnected_and_found_again(
    redis_server: RedisServer, broker: RedisStreamsBroker
) -> None:
    cycle(broker)
    broker.send("q", outgoing("before"))
    (before,) = take(broker)
    try:
        redis_server.cli("REPLICAOF", "127.0.0.1", "1")
        attempts: list[Callable[[], Any]] = [
            lambda: broker.send("q", outgoing("refused")),
            lambda: take(broker),
            lambda: broker.settle([(before, Ack())]),
            lambda: broker.extend([before], lease_seconds=LEASE),
            lambda: broker.pause("q"),
        ]
        for attempt in attempts:
            known = connections(redis_server)
            with pytest.raises(TemporaryError, match="read only replica"):
                attempt()
            wait_for(lambda known=known: known - connections(redis_server), "its connection is closed")  # type: ignore[misc]
            with suppress(TemporaryError):
                broker.paused("q")  # reconnects before the next attempt
    finally:
        redis_server.cli("REPLICAOF", "NO", "ONE")
    assert not broker.settle([(before, Ack())])
    cycle(broker)


@pytest.mark.parametrize("how", ["flush", "restart"])
@both_versions
def test_scripts_lost_by_a_server_are_loaded_again(start_redis: StartRedis, version: str, how: str) -> None:
    server = start_redis(version, persistence=True)
    with closing(RedisStreamsBroker(server.url, holder="w1", sweep_seconds=0.0)) as broker:
        broker.send("q", outgoing("before", "wait"))
        (before, _) = take(broker)

        def lose_scripts() -> None:
            if how == "flush":
                server.cli("SCRIPT FLUSH")
            else:
                server.stop()
                server.start()
                with suppress(TemporaryError):  # the old connections
                    broker.queue_names()

        lose_scripts()
        broker.send("q", outgoing(*range(2_001)))  # three scripts in one transaction
        lose_scripts()
        turn = broker.turn([(before, Ack())], [ReceiveRequest(queue="q", messages_max=1)], lease_seconds=LEASE)
        assert (turn.failures, turn.settle_error, turn.receive_error) == ([], None, None)
        assert bodies(list(turn.deliveries)) == ["0"]
        lose_scripts()
        assert broker.extend(turn.deliveries, lease_seconds=LEASE) == []
        assert broker.stats("q").in_flight == 2
        assert broker.stats("q").visible == 2_000


@both_versions
def test_a_server_that_loads_is_a_temporary_error(start_redis: StartRedis, version: str) -> None:
    server = start_redis(version, persistence=True, configuration=("--key-load-delay", "500"))  # microseconds
    with closing(RedisStreamsBroker(server.url, holder="w1", sweep_seconds=0.0)) as broker:
        broker.send("q", outgoing("kept"))
        server.client.eval("for n = 1, 5000 do redis.call('SET', n, n) end", 0)
        server.stop()
        starting = threading.Thread(target=server.start)
        starting.start()
        errors: list[str] = []

        def is_loaded() -> bool:
            try:
                broker.stats("q")
            except TemporaryError as error:
                errors.append(str(error).lower())
                return "loading" in errors[-1]
            return True

        wait_for(is_loaded, "the server is loaded")
        starting.join(60)
        assert "loading" in errors[-1]
        assert bodies(take(broker)) == ["kept"]


@both_versions
def test_a_server_that_cannot_save_is_a_temporary_error(start_redis: StartRedis, version: str) -> None:
    server = start_redis(version)
    blocking_path = server.folder / "dump.rdb" / "something"
    with closing(RedisStreamsBroker(server.url, holder="w1", sweep_seconds=0.0)) as broker:
        cycle(broker)
        blocking_path.mkdir(parents=True)
        server.cli("CONFIG SET", "save", "3600 1")
        server.cli("BGSAVE")
        wait_for(lambda: server.client.info("persistence")["rdb_last_bgsave_status"] == "err", "the save fails")
        for attempt in (lambda: broker.send("q", outgoing("x")), lambda: take(broker)):
            with pytest.raises(TemporaryError, match="RDB snapshots"):
                attempt()
        blocking_path.rmdir()
        blocking_path.parent.rmdir()
        server.cli("BGSAVE")
        wait_for(lambda: server.client.info("persistence")["rdb_last_bgsave_status"] == "ok", "it saves again")
        cycle(broker)


# --- the server is full


@both_versions
def test_a_full_server_refuses_sends_and_can_be_emptied(start_redis: StartRedis, version: str) -> None:
    server = start_redis(version, configuration=("--maxmemory", "12mb", "--maxmemory-policy", "noeviction"))
    with closing(RedisStreamsBroker(server.url, holder="w1", sweep_seconds=0.0)) as broker:
        broker.send("few", outgoing(*range(3)))
        sent = fill(broker, [Outgoing(body=b"x" * 2_000, group=str(n % 7)) for n in range(100)])
        assert sent > 500
        many = [Outgoing(body=b"y" * 100, deduplication_id=str(n)) for n in range(2_500)]  # three scripts
        with pytest.raises(TemporaryError, match="maxmemory"):
            broker.send("few", many)
        assert broker.stats("few").visible == 3
        assert server.cli("KEYS", "*:once:*") == []
        empty(broker, expected=sent)
        assert len(broker.send("few", many)) == 2_500  # none of them counts as sent before
        assert broker.stats("few").visible == 2_503


def fill(broker: RedisStreamsBroker, messages: list[Outgoing]) -> int:
    sent = 0
    with suppress(TemporaryError):
        while True:  # ends when the server's memory is full
            sent += len(broker.send("q", messages))
    with pytest.raises(TemporaryError, match="maxmemory"):
        broker.send("q", messages)
    return sent


def empty(broker: RedisStreamsBroker, *, expected: int) -> None:
    """Receive, release, delay, dead-letter and ack on a full server; none of these is refused."""
    assert len(take(broker, 50, lease=NOW)) == 50
    page = take(broker, 50)  # sweeps first
    assert sum(each.attempt == 2 for each in page) > 25
    assert not broker.settle([(each, Release()) for each in page[:25]])
    assert not broker.settle([(each, Release(delay_seconds=0.001)) for each in page[25:]])
    done = 0
    while deliveries := take(broker, 50):
        assert broker.extend(deliveries, lease_seconds=LEASE) == []
        dead, *others = deliveries
        assert not broker.settle([(dead, DeadLetter(reason="full")), *((each, Ack()) for each in others)])
        done += len(deliveries)
    wait_for(lambda: not broker.stats("q").delayed, "the delays end")
    rest = take(broker, 50)
    assert not broker.settle([(each, Ack()) for each in rest])
    assert done + len(rest) == expected
    assert broker.purge("q-dlq") > 5
    assert broker.purge("few") == 3
    broker.send("few", outgoing(*range(3)))
