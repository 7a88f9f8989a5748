"""Restarts, flushes and failures of a Redis server under a running worker; and other ways to connect than TCP."""

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.integration.conftest import OpenFleet
from tests.integration.fleet import Fleet, let_pass, wait_for
from tests.integration.sender import PLAIN, Sender, ids, outgoing, send_until_accepted, three_plain
from tests.services.certificate import Certificate
from tests.services.plugin import StartRedis, both_versions
from tests.services.ports import free_port
from tests.services.redis_server import RedisServer

from penstock.errors import TemporaryError

Disturbance = Callable[[RedisServer], None]
PAUSE_SECONDS = 0.5


# --- disturbances of a server that lose nothing


def scripts_forgotten(server: RedisServer) -> None:
    server.cli("SCRIPT FLUSH")


def connections_killed(server: RedisServer) -> None:
    server.cli("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")


def groups_destroyed(server: RedisServer) -> None:
    """Destroy the consumer groups: deliveries are forgotten, and their messages are redelivered."""
    for stream in server.client.scan_iter(_type="stream"):
        server.cli("XGROUP DESTROY", stream, "penstock")


def without_memory(server: RedisServer) -> None:
    server.cli("CONFIG SET", "maxmemory", "1")
    let_pass(PAUSE_SECONDS)
    server.cli("CONFIG SET", "maxmemory", "0")


def read_only(server: RedisServer) -> None:
    """Make the server a replica for a moment, as during a failover."""
    server.cli("REPLICAOF", "127.0.0.1", free_port())
    let_pass(PAUSE_SECONDS)
    server.cli("REPLICAOF", "NO", "ONE")


def without_rights(server: RedisServer) -> None:
    server.cli("ACL SETUSER", "default", "-evalsha")
    let_pass(PAUSE_SECONDS)
    server.cli("ACL SETUSER", "default", "+@all")


def paused(server: RedisServer) -> None:
    server.cli("CLIENT PAUSE", int(PAUSE_SECONDS * 1000), "ALL")


DISTURBANCES: Sequence[Disturbance] = (
    scripts_forgotten,
    connections_killed,
    groups_destroyed,
    without_memory,
    read_only,
    without_rights,
    paused,
)


@both_versions
def test_a_worker_continues_after_each_disturbance_and_loses_nothing(
    tmp_path: Path, start_redis: StartRedis, open_fleet: OpenFleet, version: str
) -> None:
    server = start_redis(version)
    fleet = open_fleet(tmp_path, server.url)
    worker = fleet.start().ready()
    sender = Sender(server.url, three_plain)
    try:
        for disturb in DISTURBANCES:
            wait_until_working(fleet, f"before {disturb.__name__}")
            disturb(server)
            wait_until_working(fleet, f"after {disturb.__name__}")
    finally:
        accepted = sender.stop()
    wait_for(lambda: fleet.ended() >= ids(accepted), "everything accepted is done")
    wait_for(fleet.empty, "and acked")
    assert fleet.ended() == ids(accepted)
    assert fleet.dead() == 0
    worker.signal(signal.SIGTERM)
    assert worker.end(within=60) == 0, worker.log.read_text()[-3000:]


def wait_until_working(fleet: Fleet, description: str) -> None:
    before = len(fleet.ended())
    wait_for(lambda: len(fleet.ended()) > before + 20, f"messages are processed {description}")


def test_a_worker_continues_after_everything_was_deleted(
    tmp_path: Path, start_redis: StartRedis, open_fleet: OpenFleet
) -> None:
    server = start_redis()
    fleet = open_fleet(tmp_path, server.url)
    worker = fleet.start().ready()
    fleet.broker.send(PLAIN, [outgoing("in progress", seconds=1)])
    wait_for(fleet.started, "the message is in progress")
    server.clean()
    fleet.broker.send(PLAIN, [outgoing("next")])
    wait_for(lambda: fleet.ended() == {"in progress", "next"}, "both are done")
    wait_for(fleet.empty, "and acked")
    assert worker.process.poll() is None


def test_without_memory_sends_are_refused_and_waiting_messages_are_processed(
    tmp_path: Path, start_redis: StartRedis, open_fleet: OpenFleet
) -> None:
    server = start_redis()
    fleet = open_fleet(tmp_path, server.url)
    waiting = [outgoing(f"m{n}") for n in range(50)]
    fleet.broker.send(PLAIN, waiting)
    server.cli("CONFIG SET", "maxmemory", "1")
    with pytest.raises(TemporaryError):
        fleet.broker.send(PLAIN, [outgoing("one more")])
    fleet.start().ready()
    wait_for(lambda: fleet.ended() == ids(waiting), "they are processed")
    wait_for(fleet.empty, "and acked")


# --- ways to connect


def test_a_worker_on_a_cluster_works_and_continues_after_a_restart(
    tmp_path: Path, start_redis: StartRedis, open_fleet: OpenFleet
) -> None:
    server = start_redis(cluster=True, persistence=True)
    fleet = open_fleet(tmp_path, server.cluster_url)
    fleet.start().ready()
    check_all_queues(fleet, "before")
    server.kill()
    server.start()
    send_until_accepted(fleet.broker, [outgoing("probe")])
    check_all_queues(fleet, "after")


def check_all_queues(fleet: Fleet, name: str) -> None:
    """Process a message in each queue, and wait until all are acked."""
    wanted = {f"{name} {queue}" for queue in ("plain", "once", "looped")}
    for queue in ("plain", "once", "looped"):
        fleet.broker.send(queue, [outgoing(f"{name} {queue}")])
    wait_for(lambda: wanted <= fleet.ended(), "all queues are served")
    wait_for(fleet.empty, "and acked")


def test_a_worker_connects_with_tls_and_a_password(
    tmp_path: Path, start_redis: StartRedis, open_fleet: OpenFleet, certificate: Certificate
) -> None:
    server = start_redis(certificate=certificate, users="user default off\nuser worker on >s3cret ~* &* +@all")
    fleet = open_fleet(tmp_path, server.tcp_url.replace("rediss://", "rediss://worker:s3cret@"))
    worker = fleet.start().ready()
    check_all_queues(fleet, "one")
    assert "s3cret" not in worker.log.read_text()
