"""The proxy injects exactly the requested faults into connections."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.integration.fleet import wait_for
from tests.services.fault_proxy import Afterwards, FaultProxy, Way
from tests.services.plugin import Servers
from tests.services.redis_server import RedisServer

DEADLINE_SECONDS = 60.0
PING = b"PING\r\n"
PATIENT_SECONDS = 10.0
IMPATIENT_SECONDS = 1.0


@pytest.fixture
def server(servers: Servers) -> Iterator[RedisServer]:
    server = servers.redis("7.0")
    yield server
    server.clean()


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[FaultProxy]:
    proxy = FaultProxy(str(server.socket))
    yield proxy
    proxy.close()
    assert proxy.connections == 0


Connect = Callable[..., redis.Redis]


@pytest.fixture
def connect(proxy: FaultProxy) -> Iterator[Connect]:
    """Connect clients that hold one connection each and retry nothing."""
    opened: list[redis.Redis] = []

    def connect(*, seconds: float = PATIENT_SECONDS) -> redis.Redis:
        client = redis.Redis.from_url(
            proxy.url, single_connection_client=True, retry=Retry(NoBackoff(), 0), socket_timeout=seconds
        )
        opened.append(client)
        return client

    yield connect
    for client in opened:
        client.close()


@pytest.fixture
def impatient(connect: Connect) -> Connect:
    """Connect clients that time out soon."""
    return lambda: connect(seconds=IMPATIENT_SECONDS)


def test_without_a_fault_everything_passes(proxy: FaultProxy, connect: Connect) -> None:
    large = b"x" * 3_000_000
    one, two = connect(), connect()
    one.set("a", large)
    assert two.get("a") == large
    assert proxy.connections == 2
    one.close()
    wait_for(lambda: proxy.connections == 1, "the proxy notices that a client has left")


def test_a_missing_server_refuses_connections_through_the_proxy_too(tmp_path: Path) -> None:
    proxy = FaultProxy(str(tmp_path / "missing"))
    with (
        redis.Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0)) as client,
        pytest.raises(redis.ConnectionError),
    ):
        client.ping()
    proxy.close()


def test_stalled_requests_continue_after_healing(
    server: RedisServer, proxy: FaultProxy, connect: Connect, impatient: Connect
) -> None:
    patient, hasty = connect(), impatient()
    proxy.stall()
    with ThreadPoolExecutor(1) as pool:
        increment = pool.submit(patient.incr, "a")
        with pytest.raises(redis.TimeoutError):
            hasty.ping()
        assert not increment.done()
        assert server.cli("GET", "a") is None
        proxy.heal()
        assert increment.result(timeout=DEADLINE_SECONDS) == 1


def test_stalled_replies_let_requests_through(server: RedisServer, proxy: FaultProxy, impatient: Connect) -> None:
    client = impatient()
    proxy.stall(Way.REPLIES)
    with pytest.raises(redis.TimeoutError):
        client.incr("a")
    assert server.cli("GET", "a") == b"1"


def test_half_open_connections_stay_dead_and_new_ones_work_after_healing(
    server: RedisServer, proxy: FaultProxy, connect: Connect, impatient: Connect
) -> None:
    client = impatient()
    proxy.half_open()
    with pytest.raises(redis.TimeoutError):  # it receives nothing, not even the end of the connection
        client.incr("a")
    with pytest.raises(redis.TimeoutError):
        impatient()
    proxy.heal()
    assert connect().incr("a") == 1


def test_healing_does_not_revive_a_connection_that_lost_bytes(proxy: FaultProxy, server: RedisServer) -> None:
    with raw_connection(proxy) as connection:
        ask(connection, PING)
        proxy.half_open()
        connection.settimeout(IMPATIENT_SECONDS)
        with pytest.raises(TimeoutError):
            ask(connection, PING)
        proxy.heal()
        with pytest.raises(TimeoutError):
            ask(connection, PING)


def test_a_connection_that_was_idle_meanwhile_works_after_healing(proxy: FaultProxy, server: RedisServer) -> None:
    with raw_connection(proxy) as connection:
        ask(connection, PING)
        proxy.half_open()
        proxy.heal()
        ask(connection, PING)


def test_cut_connections_are_reset_and_new_ones_work(proxy: FaultProxy, connect: Connect, server: RedisServer) -> None:
    patient = connect()
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(patient.blpop, ["nothing"], 8)
        wait_for(lambda: server.client.info("clients")["blocked_clients"] == 1, "a client is blocked")
        proxy.cut()
        with pytest.raises(redis.ConnectionError, match="reset"):
            blocked.result(timeout=DEADLINE_SECONDS)
    assert proxy.connections == 0
    wait_for(lambda: server.client.info("clients")["blocked_clients"] == 0, "the server notices it, too")
    assert connect().ping()


def test_stalled_connections_can_be_cut(proxy: FaultProxy, impatient: Connect) -> None:
    client = impatient()
    proxy.stall()
    with pytest.raises(redis.TimeoutError):
        client.incr("a")
    proxy.cut()
    assert proxy.connections == 0


def test_only_the_reply_of_the_marked_request_is_swallowed_and_the_request_is_applied(
    proxy: FaultProxy, connect: Connect, server: RedisServer
) -> None:
    one, two = connect(), connect()
    trap = proxy.swallow(b"INCRBY")
    assert one.set("a", 5)
    assert two.get("a") == b"5"
    assert not trap.sprung.is_set()
    with pytest.raises(redis.ConnectionError):
        one.incr("a")
    trap.wait()
    assert server.cli("GET", "a") == b"6"
    assert two.incr("a") == 7  # the trap was for one reply only


def test_after_a_swallowed_reply_the_connection_may_be_held(
    proxy: FaultProxy, impatient: Connect, server: RedisServer
) -> None:
    client = impatient()
    trap = proxy.swallow(afterwards=Afterwards.HOLD)
    with pytest.raises(redis.TimeoutError):
        client.incr("a")
    trap.wait()
    assert server.cli("GET", "a") == b"1"


def test_a_held_request_arrives_late_even_if_its_client_has_left(
    proxy: FaultProxy, connect: Connect, impatient: Connect, server: RedisServer
) -> None:
    client, other = impatient(), connect()
    trap = proxy.hold(b"INCRBY")
    with pytest.raises(redis.TimeoutError):
        client.incr("a")
    trap.wait()
    client.close()
    assert other.incr("b") == 1
    assert server.cli("GET", "a") is None
    proxy.heal()
    wait_for(lambda: server.cli("GET", "a") == b"1", "it arrived late")


def test_a_marker_that_arrives_in_two_pieces_is_detected(proxy: FaultProxy, server: RedisServer) -> None:
    with raw_connection(proxy) as connection:
        trap = proxy.swallow(b"marker")
        ask(connection, PING + b"ECHO mar")
        connection.sendall(b"ker\r\n")
        with pytest.raises(ConnectionResetError):
            connection.recv(100)
        trap.wait()


def raw_connection(proxy: FaultProxy) -> socket.socket:
    address = urlsplit(proxy.url)
    assert address.port is not None
    return socket.create_connection(("127.0.0.1", address.port), timeout=10)


def ask(connection: socket.socket, request: bytes) -> None:
    connection.sendall(request)
    assert connection.recv(100) == b"+PONG\r\n"
