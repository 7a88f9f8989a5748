"""Fixtures of tests on real servers: brokers, a failing network, workers of several hosts, databases."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.integration.fleet import Fleet
from tests.integration.redis_scene import Scene
from tests.integration.transactions_scene import KINDS, UserDatabase, make_user_database
from tests.services.fault_proxy import FaultProxy
from tests.services.redis_server import RedisServer

from penstock.brokers.redis import RedisStreamsBroker

FLEET_LEASE_SECONDS = 5.0  # short, and yet long enough for a slow machine
STOP_TIMEOUT_SECONDS = 10.0

OpenFleet = Callable[..., Fleet]


@pytest.fixture
def scene(redis_server: RedisServer) -> Iterator[Scene]:
    opened = Scene(redis_server)
    yield opened
    opened.close()


@pytest.fixture
def broker(redis_server: RedisServer) -> Iterator[RedisStreamsBroker]:
    """Open a broker that sweeps on each poll."""
    with closing(RedisStreamsBroker(redis_server.url, holder="w1", sweep_seconds=0.0)) as opened:
        yield opened


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    with closing(FaultProxy(str(redis_server.socket))) as opened:
        yield opened


@pytest.fixture
def open_fleet() -> Iterator[OpenFleet]:
    """Return a factory of fleets in separate folders, at a broker's address, perhaps with another lease; their workers
    end with the test.
    """
    opened: list[Fleet] = []

    def open_one(folder: Path, address: str, *, lease_seconds: float = FLEET_LEASE_SECONDS) -> Fleet:
        folder.mkdir(exist_ok=True)
        opened.append(
            Fleet(folder, broker=address, worker_lease=lease_seconds, worker_stop_timeout=STOP_TIMEOUT_SECONDS)
        )
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.fixture(params=KINDS)
def user_database(request: pytest.FixtureRequest, tmp_path: Path) -> UserDatabase:
    """Create an application's own database of each kind, with Penstock's two tables in it."""
    return make_user_database(request.param, request, tmp_path)
