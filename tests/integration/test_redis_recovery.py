"""A worker that is killed, and one on another host that receives its messages when their lease has expired."""

import time
from pathlib import Path

from tests.integration.conftest import OpenFleet
from tests.integration.fleet import wait_for
from tests.services.redis_server import RedisServer

HELD = 20


def test_messages_of_a_killed_worker_start_on_another_host_soon_after_their_lease(
    tmp_path: Path, redis_server: RedisServer, open_fleet: OpenFleet
) -> None:
    """Each host has its own data directory, and knows nothing of the other's processes."""
    first = open_fleet(tmp_path / "first", redis_server.url)
    second = open_fleet(tmp_path / "second", redis_server.url, lease_seconds=8)  # it sweeps twice in that time
    killed = first.start().ready()
    first.send("plain", *({"id": str(n), "seconds": 600} for n in range(HELD)))
    wait_for(lambda: len(first.started()) == HELD, "all are in progress")
    second.start().ready()
    assert not second.started()
    killed_at = time.time()
    killed.kill()
    wait_for(lambda: len(second.started()) == HELD, "all are started again")
    lines = [line for line in second.lines() if line.what == "start"]
    waits = sorted(line.at - killed_at for line in lines)
    print(f"started again {waits[0]:.2f} to {waits[-1]:.2f} s after the kill")  # noqa: T201  # shown with -s
    assert {line.attempt for line in lines} == {2}
    assert not first.dead()
