"""Workers at an SQS server that restarts and freezes, with network faults of all kinds between them.

The oracle is the handlers' journal and the list of accepted messages of the sender, which is not behind the proxy.
Nothing is lost. No message is started a second time unless server or network failed for longer than a lease. The effect
of a key happens once.
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from tests.chaos.test_redis_faults import Happened, Run, load, wait_for_progress
from tests.integration.fleet import let_pass, wait_for
from tests.integration.sender import Sender, ids
from tests.integration.sqs_fleet import sqs_fleet, straight
from tests.services.aws_proxy import AwsProxy
from tests.services.aws_server import AwsServer, Kind
from tests.services.fault_proxy import Afterwards, Way
from tests.services.plugin import StartAwsProxy

SHORT_LEASE_SECONDS = 5
LEASE_SECONDS = 8  # survives several faults, and a call that times out after five seconds
AWAY_SECONDS = SHORT_LEASE_SECONDS * 1.2
MOMENT_SECONDS = 0.3
TRAP_SECONDS = 30.0  # after this time, the expected request is assumed not to come
SETTLED_SECONDS = 600.0  # of a backlog at a slow server
BETWEEN = (3, 25)  # lines of the journal between two faults
ATTEMPTS = 1_000  # every receive counts, even if its answer is lost
# moto goes through all messages of a queue in each call. Behind a backlog of 900, its answers take longer than a lease.
PAUSE_SECONDS: Mapping[Kind, float] = {"fauxqs": 0.02, "moto": 0.5}

SLOW = [pytest.mark.slow, pytest.mark.timeout(1_800)]

Fault = Callable[[AwsProxy, AwsServer], bool]  # returns True if it happened: the request that it waits for may not come


# --- faults of the network


def cut(proxy: AwsProxy, server: AwsServer) -> bool:
    proxy.cut()
    return True


def stall_a_moment(proxy: AwsProxy, server: AwsServer) -> bool:
    proxy.stall()
    let_pass(MOMENT_SECONDS)
    return True


def hold_replies_a_moment_and_cut(proxy: AwsProxy, server: AwsServer) -> bool:
    """Lose the reply of a request that was executed."""
    proxy.stall(Way.REPLIES)
    let_pass(MOMENT_SECONDS)
    proxy.cut()
    return True


def swallow(operation: str, afterwards: Afterwards = Afterwards.CUT) -> Fault:
    """Return a fault that loses the reply of the operation's next call, which is executed."""

    def fault(proxy: AwsProxy, server: AwsServer) -> bool:
        return proxy.swallow(f"AmazonSQS.{operation}".encode(), afterwards=afterwards).sprung.wait(TRAP_SECONDS)

    fault.__name__ = f"swallow_{operation}_{afterwards.name.lower()}"
    return fault


def hold(operation: str) -> Fault:
    """Return a fault that delays the operation's next call."""

    def fault(proxy: AwsProxy, server: AwsServer) -> bool:
        happened = proxy.hold(f"AmazonSQS.{operation}".encode()).sprung.wait(TRAP_SECONDS)
        let_pass(MOMENT_SECONDS)
        return happened

    fault.__name__ = f"hold_{operation}"
    return fault


def stall_beyond_the_leases(proxy: AwsProxy, server: AwsServer) -> bool:
    proxy.stall()
    let_pass(AWAY_SECONDS)
    return True


def half_open_beyond_the_leases(proxy: AwsProxy, server: AwsServer) -> bool:
    proxy.half_open()
    let_pass(AWAY_SECONDS)
    return True


# --- faults of the server


def restart(proxy: AwsProxy, server: AwsServer) -> bool:
    """Cut connections and refuse new ones for a moment. The server keeps its data, as SQS does."""
    server.leave()
    let_pass(MOMENT_SECONDS)
    server.come_back()
    return True


def freeze_beyond_the_leases(proxy: AwsProxy, server: AwsServer) -> bool:
    server.freeze()
    let_pass(AWAY_SECONDS)
    server.thaw()
    return True


ENDING = ("DeleteMessageBatch", "ChangeMessageVisibilityBatch")
SHORT: Sequence[Fault] = (
    cut,
    stall_a_moment,
    hold_replies_a_moment_and_cut,
    *(swallow(operation) for operation in ("ReceiveMessage", *ENDING)),
    *(hold(operation) for operation in ("ReceiveMessage", *ENDING)),
)
LONG: Sequence[Fault] = (
    half_open_beyond_the_leases,
    freeze_beyond_the_leases,
    stall_beyond_the_leases,
    swallow("ReceiveMessage", Afterwards.HOLD),
    swallow("DeleteMessageBatch", Afterwards.HOLD),
)


def run_fault(fault: Fault, proxy: AwsProxy, server: AwsServer) -> Happened:
    began_at = time.time()
    happened = fault(proxy, server)
    proxy.heal()
    return Happened(name=fault.__name__ if happened else "nothing", began_at=began_at, ended_at=time.time())


# --- the run and its oracle


def run(
    folder: Path, server: AwsServer, proxy: AwsProxy, faults: Sequence[Fault], *, seed: int, lease_seconds: float
) -> Run:
    """Run two workers behind the proxy, cause the faults in turn, and wait until all messages are done."""
    chance = random.Random(seed)
    fleet = sqs_fleet(folder, server, way=proxy.url, worker_lease=lease_seconds)
    sender: Sender | None = None
    try:
        workers = [fleet.start() for _ in range(2)]
        for worker in workers:
            worker.ready()
        sender = Sender(straight(server), load, pause_seconds=PAUSE_SECONDS[server.kind])
        happened = []
        for fault in faults:
            wait_for_progress(fleet, chance.randint(*BETWEEN))
            happened.append(run_fault(fault, proxy, server))
        wait_for_progress(fleet, BETWEEN[1])
        accepted = sender.stop()
        wait_for(lambda: fleet.ended() >= ids(accepted), "everything accepted is done", within=SETTLED_SECONDS)
        wait_for(fleet.empty, "and acked", within=SETTLED_SECONDS)
        assert fleet.dead() == 0
        for worker in workers:
            worker.signal(signal.SIGTERM)
        for worker in workers:
            assert worker.end(within=60) == 0, worker.log.read_text()[-3000:]
        return Run(accepted=accepted, lines=fleet.lines(), faults=happened, lease_seconds=lease_seconds)
    finally:
        if sender is not None:
            proxy.heal()
            sender.stop()
        fleet.close()


def check(run: Run) -> None:
    """Check the invariants after any faults."""
    assert {line.id for line in run.lines} == ids(run.accepted)
    effects = Counter(line.id for line in run.lines if line.what == "end" and line.id.startswith("once-"))
    assert set(effects.values()) == {1}, "an effect was doubled under its key"
    again = run.begun_again()
    assert [pair for pair in again if not run.away_between(*pair)] == []
    counted = Counter(fault.name for fault in run.faults)
    print(f"{len(run.accepted)} messages, {len(again)} begun again, {counted}")  # noqa: T201 # shown with -s


@pytest.fixture
def server(request: pytest.FixtureRequest, kind: Kind) -> AwsServer:
    """Start a server for this test alone."""
    started: AwsServer = request.getfixturevalue(f"start_{kind}")()
    return started


@pytest.fixture(autouse=True)
def attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTEMPTS", str(ATTEMPTS))


@pytest.mark.parametrize(
    ("kind", "seed", "count"),
    [("fauxqs", 1, 9), pytest.param("fauxqs", 2, 200, marks=SLOW), pytest.param("moto", 3, 40, marks=SLOW)],
)
def test_short_faults_lose_nothing_and_nothing_is_begun_twice(
    tmp_path: Path, server: AwsServer, start_aws_proxy: StartAwsProxy, seed: int, count: int
) -> None:
    faults = drawn(SHORT, count, seed=seed)
    found = run(tmp_path, server, start_aws_proxy(server), faults, seed=seed, lease_seconds=LEASE_SECONDS)
    check(found)
    assert found.begun_again() == []
    happened = {fault.name for fault in found.faults}
    assert {fault.__name__ for fault in SHORT} <= happened, "some faults never happened"


@pytest.mark.parametrize(
    ("kind", "seed", "count"),
    [("fauxqs", 1, 2), pytest.param("fauxqs", 2, 40, marks=SLOW), pytest.param("moto", 3, 15, marks=SLOW)],
)
def test_faults_longer_than_a_lease_lose_nothing_and_restart_only_held_messages(
    tmp_path: Path, server: AwsServer, start_aws_proxy: StartAwsProxy, seed: int, count: int
) -> None:
    faults = drawn(LONG, count, seed=seed)
    found = run(tmp_path, server, start_aws_proxy(server), faults, seed=seed, lease_seconds=SHORT_LEASE_SECONDS)
    check(found)


@pytest.mark.parametrize(
    ("kind", "times"),
    [("fauxqs", 3), pytest.param("fauxqs", 60, marks=SLOW), pytest.param("moto", 20, marks=SLOW)],
)
def test_a_server_that_restarts_under_load_loses_nothing(
    tmp_path: Path, server: AwsServer, start_aws_proxy: StartAwsProxy, times: int
) -> None:
    found = run(tmp_path, server, start_aws_proxy(server), [restart] * times, seed=1, lease_seconds=LEASE_SECONDS)
    check(found)


def drawn(kinds: Sequence[Fault], count: int, *, seed: int) -> Sequence[Fault]:
    """Return that many faults, all kinds about equally often; in a seeded random order if every kind occurs."""
    faults = [kinds[number % len(kinds)] for number in range(count)]
    if count >= len(kinds):
        random.Random(seed).shuffle(faults)
    return faults
