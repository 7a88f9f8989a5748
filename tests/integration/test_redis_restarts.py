"""A Redis server that is killed and restarted under load: workers recover on their own; everything it stored is
processed.
"""

import signal
from collections import Counter
from pathlib import Path

import pytest
from tests.integration.conftest import FLEET_LEASE_SECONDS, OpenFleet
from tests.integration.fleet import WorkerProcess, let_pass, wait_for
from tests.integration.sender import PLAIN, Sender, ids, outgoing, send_until_accepted, three_plain
from tests.services.plugin import StartRedis, both_versions
from tests.services.redis_server import RedisServer

AFTER_RESTART = 25  # messages done between two kills
KILLS = [3, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]


def restart(server: RedisServer) -> None:
    server.kill()
    server.start()


def assert_ends_well(worker: WorkerProcess) -> None:
    """Check that it is still the process that was started, and stop it with exit code 0."""
    worker.signal(signal.SIGTERM)
    assert worker.end(within=60) == 0, worker.log.read_text()[-3000:]


@both_versions
@pytest.mark.parametrize("kills", KILLS, ids=lambda kills: f"{kills}-kills")
def test_messages_accepted_by_a_persistent_server_survive_any_number_of_kills(
    tmp_path: Path, start_redis: StartRedis, open_fleet: OpenFleet, version: str, kills: int
) -> None:
    server = start_redis(version, persistence=True)
    fleet = open_fleet(tmp_path, server.url)
    worker = fleet.start().ready()
    sender = Sender(server.url, three_plain)
    for _ in range(kills):
        done = len(fleet.ended())
        wait_for(lambda done=done: len(fleet.ended()) >= done + AFTER_RESTART, "messages are processed")  # type: ignore[misc]
        restart(server)
    accepted = sender.stop()
    wait_for(lambda: fleet.ended() >= ids(accepted), "everything accepted is done")
    wait_for(fleet.empty, "and acked")
    assert fleet.ended() == ids(accepted)
    assert fleet.dead() == 0
    messages = {line.id: line.message for line in fleet.lines()}
    assert len(set(messages.values())) == len(accepted) == len({line.message for line in fleet.lines()}), "sent twice"
    assert_ends_well(worker)
    starts = Counter(line.id for line in fleet.lines() if line.what == "start")
    print(f"{len(accepted)} messages, {sum(starts.values()) - len(starts)} started again")  # noqa: T201  # shown with -s


@both_versions
def test_messages_sent_after_a_server_without_persistence_was_killed_are_processed(
    tmp_path: Path, start_redis: StartRedis, open_fleet: OpenFleet, version: str
) -> None:
    server = start_redis(version, persistence=False)
    fleet = open_fleet(tmp_path, server.url)
    worker = fleet.start().ready()
    for turn in range(3):
        fleet.broker.send(PLAIN, [outgoing(f"gone {turn}", seconds=1)])
        wait_for(lambda turn=turn: f"gone {turn}" in fleet.started(), "the message is in progress")  # type: ignore[misc]
        restart(server)
        sent = [outgoing(f"kept {turn}"), outgoing(f"delayed {turn}", delay_seconds=1.0)]
        send_until_accepted(fleet.broker, sent)
        wanted = {f"kept {turn}", f"delayed {turn}"}
        wait_for(lambda wanted=wanted: wanted <= fleet.ended(), "messages are processed")  # type: ignore[misc]
    wait_for(fleet.empty, "the queue is empty")
    assert_ends_well(worker)


def test_a_worker_continues_after_its_server_halted_for_longer_than_a_lease(
    tmp_path: Path, start_redis: StartRedis, open_fleet: OpenFleet
) -> None:
    server = start_redis()
    fleet = open_fleet(tmp_path, server.url)
    worker = fleet.start().ready()
    fleet.broker.send(PLAIN, [outgoing(f"before {n}", seconds=0.5) for n in range(10)])
    wait_for(fleet.started, "work begins")
    server.freeze()
    let_pass(FLEET_LEASE_SECONDS * 1.5)
    server.thaw()
    send_until_accepted(fleet.broker, [outgoing("after")])
    wait_for(lambda: fleet.ended() == {"after", *(f"before {n}" for n in range(10))}, "everything is done")
    wait_for(fleet.empty, "and acked")
    assert fleet.dead() == 0
    assert_ends_well(worker)
