"""A Redis server that is killed and comes back under load: workers go on by themselves; what it kept is all done."""

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.integration.fleet import Fleet, WorkerProcess, wait_for
from tests.integration.sender import Sender, ids, outgoing
from tests.services.redis_server import VERSIONS, RedisServer

from penstock.errors import TemporaryError
from penstock.messaging.message import Outgoing

StartRedis = Callable[..., RedisServer]
LEASE_SECONDS = 3
QUEUE = "plain"
AFTER_RESTART = 25  # messages done between two kills
KILLS = [3, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]


def load(number: int) -> tuple[str, Sequence[Outgoing]]:
    return QUEUE, [outgoing(f"m{number}-{n}") for n in range(3)]


@pytest.fixture
def fleets() -> Iterator[Callable[[Path, RedisServer], Fleet]]:
    opened: list[Fleet] = []

    def fleet(folder: Path, server: RedisServer) -> Fleet:
        opened.append(Fleet(folder, broker=server.url, lease_seconds=LEASE_SECONDS, stop_timeout_seconds=10))
        return opened[-1]

    yield fleet
    for each in opened:
        each.close()


def restart(server: RedisServer) -> None:
    server.kill()
    server.start()


def ends_well(worker: WorkerProcess) -> None:
    """It is the process that was started, and it leaves in order."""
    worker.signal(signal.SIGTERM)
    assert worker.end(within=30) == 0, worker.log.read_text()[-3000:]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kills", KILLS, ids=lambda kills: f"{kills}-kills")
def test_what_a_persistent_server_accepted_is_all_done_however_often_it_is_killed(
    tmp_path: Path, start_redis: StartRedis, fleets: Callable[[Path, RedisServer], Fleet], version: str, kills: int
) -> None:
    server = start_redis(version, persistence=True)
    fleet = fleets(tmp_path, server)
    worker = fleet.start().ready()
    sender = Sender(server.url, load)
    for _ in range(kills):
        done = len(fleet.ended())
        wait_for(lambda done=done: len(fleet.ended()) >= done + AFTER_RESTART, "work goes on")  # type: ignore[misc]
        restart(server)
    accepted = sender.stop()
    wait_for(lambda: fleet.ended() >= ids(accepted), "everything accepted is done")
    wait_for(fleet.empty, "and acked")
    assert fleet.ended() == ids(accepted)
    assert fleet.dead() == 0
    messages = {line.id: line.message for line in fleet.lines()}
    assert len(set(messages.values())) == len(accepted) == len({line.message for line in fleet.lines()}), "sent twice"
    ends_well(worker)
    starts = Counter(line.id for line in fleet.lines() if line.what == "start")
    print(f"{len(accepted)} messages, {sum(starts.values()) - len(starts)} begun again")  # noqa: T201 # shown with -s


@pytest.mark.parametrize("version", VERSIONS)
def test_after_a_forgetful_server_was_killed_what_is_sent_next_is_done(
    tmp_path: Path, start_redis: StartRedis, fleets: Callable[[Path, RedisServer], Fleet], version: str
) -> None:
    server = start_redis(version, persistence=False)
    fleet = fleets(tmp_path, server)
    worker = fleet.start().ready()
    for turn in range(3):
        fleet.broker.send(QUEUE, [outgoing(f"gone {turn}", seconds=1)])
        wait_for(lambda turn=turn: f"gone {turn}" in fleet.started(), "it is at work")  # type: ignore[misc]
        restart(server)
        sent = [outgoing(f"kept {turn}"), outgoing(f"delayed {turn}", delay_seconds=1.0)]
        send_until_accepted(fleet, sent)
        wanted = {f"kept {turn}", f"delayed {turn}"}
        wait_for(lambda wanted=wanted: wanted <= fleet.ended(), "work goes on", within=20)  # type: ignore[misc]
    wait_for(fleet.empty, "the queue is empty")
    ends_well(worker)


def send_until_accepted(fleet: Fleet, messages: Sequence[Outgoing]) -> None:
    def sent() -> bool:
        try:
            return bool(fleet.broker.send(QUEUE, messages))
        except TemporaryError:
            return False

    wait_for(sent, "the server takes messages again")


def test_a_server_that_halts_for_longer_than_a_lease_finds_its_worker_at_work(
    tmp_path: Path, start_redis: StartRedis, fleets: Callable[[Path, RedisServer], Fleet]
) -> None:
    server = start_redis()
    fleet = fleets(tmp_path, server)
    worker = fleet.start().ready()
    fleet.broker.send(QUEUE, [outgoing(f"before {n}", seconds=0.5) for n in range(10)])
    wait_for(fleet.started, "work begins")
    server.freeze()
    threading.Event().wait(LEASE_SECONDS * 1.5)
    server.thaw()
    send_until_accepted(fleet, [outgoing("after")])
    wait_for(lambda: fleet.ended() == {"after", *(f"before {n}" for n in range(10))}, "everything is done")
    wait_for(fleet.empty, "and acked")
    assert fleet.dead() == 0
    ends_well(worker)
