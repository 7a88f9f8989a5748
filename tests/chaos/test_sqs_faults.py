"""Workers at a server that speaks SQS's dialect, which restarts and freezes, behind a network that fails in every way.

The oracle is the handlers' journal and what the sender, who comes another way, was told is accepted. Nothing is lost;
nothing is begun a second time but where something was away for longer than a lease; no effect of a key is doubled.
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.chaos.test_redis_faults import Happened, Run, goes_on, load
from tests.integration.fleet import let_pass, wait_for
from tests.integration.sender import Sender, ids
from tests.integration.sqs_fleet import sqs_fleet, straight
from tests.services.aws_proxy import AwsProxy
from tests.services.aws_server import AwsServer, Kind
from tests.services.fault_proxy import Afterwards, Way
from tests.services.plugin import StartAwsProxy

SHORT_LEASE_SECONDS = 5
LEASE_SECONDS = 8  # some faults do not end it, nor does a call that is given up after five seconds
AWAY_SECONDS = SHORT_LEASE_SECONDS * 1.2
MOMENT_SECONDS = 0.3
TRAP_SECONDS = 30.0  # after which a kind of request is held not to come
SETTLED_SECONDS = 180.0
BETWEEN = (3, 25)  # lines of the journal between two faults
ATTEMPTS = 20  # every receive counts, also one whose answer is lost

SLOW = [pytest.mark.slow, pytest.mark.timeout(1_800)]

Fault = Callable[[AwsProxy, AwsServer], bool]  # answers whether it happened: what it waits for may not come


# --- faults of the network


def cut(proxy: AwsProxy, server: AwsServer) -> bool:
    proxy.cut()
    return True


def stall_a_moment(proxy: AwsProxy, server: AwsServer) -> bool:
    proxy.stall()
    let_pass(MOMENT_SECONDS)
    return True


def hold_replies_a_moment_and_cut(proxy: AwsProxy, server: AwsServer) -> bool:
    """The request was executed, but its answer is lost."""
    proxy.stall(Way.REPLIES)
    let_pass(MOMENT_SECONDS)
    proxy.cut()
    return True


def swallow(operation: str, afterwards: Afterwards = Afterwards.CUT) -> Fault:
    """The next call of that kind is done, and its reply lost."""

    def fault(proxy: AwsProxy, server: AwsServer) -> bool:
        return proxy.swallow(f"AmazonSQS.{operation}".encode(), afterwards=afterwards).sprung.wait(TRAP_SECONDS)

    fault.__name__ = f"swallow_{operation}_{afterwards.name.lower()}"
    return fault


def hold(operation: str) -> Fault:
    """The next call of that kind comes to the server a moment late."""

    def fault(proxy: AwsProxy, server: AwsServer) -> bool:
        came = proxy.hold(f"AmazonSQS.{operation}".encode()).sprung.wait(TRAP_SECONDS)
        let_pass(MOMENT_SECONDS)
        return came

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
    """Connections are cut, and for a moment refused; it keeps its data, as SQS does."""
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


def happens(fault: Fault, proxy: AwsProxy, server: AwsServer) -> Happened:
    began_at = time.time()
    happened = fault(proxy, server)
    proxy.heal()
    return Happened(name=fault.__name__ if happened else "nothing", began_at=began_at, ended_at=time.time())


# --- the run and its oracle


def run(
    folder: Path, server: AwsServer, proxy: AwsProxy, faults: Sequence[Fault], *, seed: int, lease_seconds: float
) -> Run:
    """Two workers behind the proxy; the faults one after the other, and then peace until all is done."""
    chance = random.Random(seed)
    fleet = sqs_fleet(folder, server, way=proxy.url, worker_lease=lease_seconds)
    sender: Sender | None = None
    try:
        workers = [fleet.start() for _ in range(2)]
        for worker in workers:
            worker.ready()
        sender = Sender(straight(server), load)
        happened = []
        for fault in faults:
            goes_on(fleet, chance.randint(*BETWEEN))
            happened.append(happens(fault, proxy, server))
        goes_on(fleet, BETWEEN[1])
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
    """One of the test's own."""
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
    """Each kind about as often as any other; in an order of the seed's, where each comes at least once."""
    faults = [kinds[number % len(kinds)] for number in range(count)]
    if count >= len(kinds):
        random.Random(seed).shuffle(faults)
    return faults
