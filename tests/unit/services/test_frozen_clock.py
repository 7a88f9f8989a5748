"""A server and a test that share a frozen clock."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integration.fleet import wait_for
from tests.services.frozen_clock import ServerClock
from tests.services.plugin import Servers
from tests.services.redis_server import VERSIONS, RedisServer

DEADLINE_SECONDS = 60.0


@pytest.fixture(params=VERSIONS, ids=lambda version: f"redis-{version}")
def server(request: pytest.FixtureRequest, frozen_servers: Servers) -> RedisServer:
    return frozen_servers.redis(request.param)


def server_time(server: RedisServer) -> float:
    seconds, micros = server.client.time()
    return float((seconds * 1_000_000 + micros) / 1_000_000)


def test_the_time_of_the_server_moves_only_with_the_clock(server: RedisServer, frozen_servers: Servers) -> None:
    clock = ServerClock(frozen_servers.clock_file)
    assert server_time(server) == clock.now() == 1_700_000_000.0
    for seconds in (0.1, 1 / 3, 1e-6, 5_000, 0.0000004, 86_400 * 365 + 0.7):
        clock.advance(seconds)
        assert server_time(server) == clock.now() == server_time(server)
    assert clock.now() == 1_700_000_000.0 + clock.monotonic()


def test_scripts_and_idle_times_use_the_frozen_time(server: RedisServer, frozen_servers: Servers) -> None:
    clock = ServerClock(frozen_servers.clock_file)
    seconds, micros = server.cli("EVAL", "return redis.call('TIME')", 0)
    assert float(f"{int(seconds)}.{int(micros):06}") == clock.now()
    entry = server.cli("XADD", "s", "*", "a", "1")
    assert entry == b"1700000000000-0"
    server.cli("XGROUP CREATE", "s", "g", "0")
    server.cli("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    clock.advance(29.999)
    (pending,) = server.client.xpending_range("s", "g", "-", "+", 10)
    assert pending["time_since_delivered"] == 29_999
    server.clean()


def test_a_blocking_command_ends_by_the_frozen_time(server: RedisServer, frozen_servers: Servers) -> None:
    clock = ServerClock(frozen_servers.clock_file)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.cli, "BLPOP", "nothing", 5)
        wait_for(lambda: server.client.info("clients")["blocked_clients"] == 1, "a client is blocked")
        clock.advance(4.9)
        assert not waiting.done()
        clock.advance(0.2)
        assert waiting.result(timeout=DEADLINE_SECONDS) is None


def test_a_wait_ends_when_the_clock_has_moved(frozen_servers: Servers) -> None:
    clock = ServerClock(frozen_servers.clock_file)
    waited = threading.Thread(target=lambda: clock.wait(threading.Event(), 60))
    waited.start()
    clock.advance(60)
    waited.join(DEADLINE_SECONDS)
    assert not waited.is_alive()


def test_the_clock_never_goes_back(frozen_servers: Servers) -> None:
    clock = ServerClock(frozen_servers.clock_file)
    with pytest.raises(ValueError, match="not go back"):
        clock.advance(-1)
