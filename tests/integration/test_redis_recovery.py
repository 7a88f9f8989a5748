"""A worker that is killed, and one on another host that gets its messages when their lease is over."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.fleet import Fleet, wait_for
from tests.services.plugin import Servers

LEASE_SECONDS = 3.0
SWEEP_SECONDS = LEASE_SECONDS / 2
HELD = 20


@pytest.fixture
def host(tmp_path: Path, servers: Servers) -> Iterator[Callable[[str], Fleet]]:
    """Hosts: each has a state folder of its own, and knows nothing of the other's processes."""
    server = servers.redis("7.0")
    opened: list[Fleet] = []

    def open_host(name: str) -> Fleet:
        folder = tmp_path / name
        folder.mkdir()
        opened.append(Fleet(folder, broker=server.url, lease_seconds=LEASE_SECONDS, stop_timeout_seconds=10))
        return opened[-1]

    yield open_host
    for each in opened:
        each.close()
    server.clean()


def test_what_a_killed_worker_held_is_begun_on_another_host_soon_after_its_lease(
    host: Callable[[str], Fleet],
) -> None:
    first, second = host("first"), host("second")
    killed = first.start().ready()
    first.send("plain", *({"id": str(n), "seconds": 600} for n in range(HELD)))
    wait_for(lambda: len(first.started()) == HELD, "all are at work")
    second.start().ready()
    assert not second.started()
    killed_at = time.time()
    killed.kill()
    wait_for(lambda: len(second.started()) == HELD, "all are begun again", within=30)
    lines = [line for line in second.lines() if line.what == "start"]
    waits = sorted(line.at - killed_at for line in lines)
    promise = 1.2 * LEASE_SECONDS + SWEEP_SECONDS
    print(f"begun again {waits[0]:.2f} to {waits[-1]:.2f} s after the kill; promised {promise:.2f} s")  # noqa: T201
    assert {line.attempt for line in lines} == {2}
    assert waits[-1] < 10 * promise  # a machine under load is no defect
    assert not first.dead()
