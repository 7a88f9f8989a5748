"""Workers and a sender at a Redis server, with network faults of all kinds between them.

The oracle is the handlers' journal and the sender's list of accepted messages. Nothing is lost. No message is started a
second time unless the network failed for longer than a lease. Idempotent effects happen once.
"""

import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from tests.integration.fleet import Fleet, Line, let_pass, wait_for
from tests.integration.sender import Sender, ids, outgoing
from tests.services.fault_proxy import Afterwards, FaultProxy, Way
from tests.services.plugin import StartRedis
from tests.services.redis_server import VERSIONS, RedisServer

from penstock.brokers.redis.server import scripts
from penstock.messaging.message import Outgoing

SHORT_LEASE_SECONDS = 5  # two failed heartbeats in a row may end it
LEASE_SECONDS = 8  # survives several faults per second and a machine that is seconds late
LONG_WORK_SECONDS = 9.0  # more than a lease
AWAY_SECONDS = SHORT_LEASE_SECONDS * 1.2  # more than a short lease
MOMENT_SECONDS = 0.3  # less than anything that matters
TRAP_SECONDS = 30.0  # after this time, the expected request is assumed not to come
BETWEEN = (3, 40)  # lines of the journal between two faults

SLOW = [pytest.mark.slow, pytest.mark.timeout(1_800)]

Fault = Callable[[FaultProxy], bool]  # returns True if it happened: the request that it waits for may not come


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A fault and its time, in epoch seconds."""

    name: str
    began_at: float
    ended_at: float


def load(number: int) -> tuple[str, Sequence[Outgoing]]:
    """Return messages of all kinds. Some take longer than a lease; each idempotent one is sent twice."""
    if number % 3 == 0:
        return "once", [outgoing(f"once-{number}", copy=copy) for copy in range(2)]
    if number % 40 == 1:
        return "plain", [outgoing(f"long-{number}", seconds=LONG_WORK_SECONDS)]
    queue = "plain" if number % 3 == 1 else "looped"
    return queue, [outgoing(f"{queue}-{number}-{n}", seconds=0.01 * n) for n in range(3)]


# --- faults


def cut(proxy: FaultProxy) -> bool:
    proxy.cut()
    return True


def stall_a_moment(proxy: FaultProxy) -> bool:
    proxy.stall()
    let_pass(MOMENT_SECONDS)
    return True


def hold_replies_a_moment_and_cut(proxy: FaultProxy) -> bool:
    """Lose the reply of a request that was executed."""
    proxy.stall(Way.REPLIES)
    let_pass(MOMENT_SECONDS)
    proxy.cut()
    return True


def swallow(script: str, afterwards: Afterwards = Afterwards.CUT) -> Fault:
    """Return a fault that loses the reply of the script's next call, which is executed."""
    marker = scripts()[script].sha.encode()

    def fault(proxy: FaultProxy) -> bool:
        return proxy.swallow(marker, afterwards=afterwards).sprung.wait(TRAP_SECONDS)

    fault.__name__ = f"swallow_{script}_{afterwards.name.lower()}"
    return fault


def swallow_a_token(proxy: FaultProxy) -> bool:
    """Lose the reply of the request that took the wake-up token."""
    return proxy.swallow(b"BLPOP").sprung.wait(TRAP_SECONDS)


def swallow_take_and_its_recovery(proxy: FaultProxy) -> bool:
    return swallow("take")(proxy) and swallow("doubts")(proxy)


def stall_beyond_the_leases(proxy: FaultProxy) -> bool:
    proxy.stall()
    let_pass(AWAY_SECONDS)
    return True


def half_open_beyond_the_leases(proxy: FaultProxy) -> bool:
    proxy.half_open()
    let_pass(AWAY_SECONDS)
    return True


SHORT: Sequence[Fault] = (
    cut,
    stall_a_moment,
    hold_replies_a_moment_and_cut,
    *(swallow(script) for script in ("send", "take", "settle", "extend", "sweep")),
    swallow_a_token,
    swallow_take_and_its_recovery,
)
LONG: Sequence[Fault] = (
    stall_beyond_the_leases,
    half_open_beyond_the_leases,
    swallow("take", Afterwards.HOLD),
    swallow("settle", Afterwards.HOLD),
)


def run_fault(fault: Fault, proxy: FaultProxy) -> Happened:
    began_at = time.time()
    happened = fault(proxy)
    proxy.heal()
    return Happened(name=fault.__name__ if happened else "nothing", began_at=began_at, ended_at=time.time())


# --- the run and its oracle


@pytest.fixture
def proxies() -> Iterator[Callable[[RedisServer], FaultProxy]]:
    opened: list[FaultProxy] = []

    def proxy(server: RedisServer) -> FaultProxy:
        opened.append(FaultProxy(str(server.socket)))
        return opened[-1]

    yield proxy
    for each in opened:
        each.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of a run: accepted messages, the handlers' records, and the events."""

    accepted: Sequence[Outgoing]
    lines: Sequence[Line]
    faults: Sequence[Happened]
    lease_seconds: float

    def begun_again(self) -> list[tuple[Line, Line]]:
        """Return each start of a message except its first, with the one before it."""
        starts: dict[str, list[Line]] = defaultdict(list)
        for line in self.lines:
            if line.what == "start":
                starts[line.message].append(line)
        return [pair for lines in starts.values() for pair in pairwise(lines)]

    def away_between(self, first: Line, second: Line) -> list[Happened]:
        """Return the faults that could end the lease of the first start, which may have begun a lease earlier."""
        since = first.at - self.lease_seconds
        return [fault for fault in self.faults if fault.began_at <= second.at and fault.ended_at >= since]


def run(
    folder: Path, server: RedisServer, proxy: FaultProxy, faults: Sequence[Fault], *, seed: int, lease_seconds: float
) -> Run:
    """Run two workers and a sender behind the proxy, cause the faults in turn, and wait until all messages are done."""
    chance = random.Random(seed)
    fleet = Fleet(folder, broker=proxy.url, aside=server.url, worker_lease=lease_seconds, worker_stop_timeout=10)
    sender: Sender | None = None
    try:
        workers = [fleet.start().ready() for _ in range(2)]
        sender = Sender(proxy.url, load)
        happened = []
        for fault in faults:
            wait_for_progress(fleet, chance.randint(*BETWEEN))
            happened.append(run_fault(fault, proxy))
        wait_for_progress(fleet, BETWEEN[1])
        accepted = sender.stop()
        wait_for(lambda: fleet.ended() >= ids(accepted), "everything accepted is done")
        wait_for(fleet.empty, "and acked")
        assert fleet.dead() == 0
        for worker in workers:
            worker.signal(signal.SIGTERM)
            assert worker.end(within=60) == 0, worker.log.read_text()[-3000:]
            assert not worker.events("message.deleted")
        return Run(accepted=accepted, lines=fleet.lines(), faults=happened, lease_seconds=lease_seconds)
    finally:
        if sender is not None:
            proxy.heal()
            sender.stop()
        fleet.close()


def wait_for_progress(fleet: Fleet, lines: int) -> None:
    before = len(fleet.lines())
    wait_for(lambda: len(fleet.lines()) >= before + lines, "work goes on")


def check(run: Run) -> None:
    """Check the invariants after any faults."""
    assert {line.id for line in run.lines} == ids(run.accepted)
    plain = [message for message in run.accepted if b"once-" not in message.body]
    begun = {line.message for line in run.lines if not line.id.startswith("once-")}
    assert len(begun) == len(plain), "a message was sent twice"
    effects = Counter(line.id for line in run.lines if line.what == "end" and line.id.startswith("once-"))
    assert set(effects.values()) == {1}, "an effect was doubled under idempotency"


@pytest.mark.parametrize(
    ("version", "seed", "count"), [("7.0", 1, 12), *(pytest.param(version, 2, 300, marks=SLOW) for version in VERSIONS)]
)
def test_short_faults_lose_nothing_and_nothing_is_begun_twice(
    tmp_path: Path,
    start_redis: StartRedis,
    proxies: Callable[[RedisServer], FaultProxy],
    version: str,
    seed: int,
    count: int,
) -> None:
    server = start_redis(version)
    faults = drawn(SHORT, count, seed=seed)
    found = run(tmp_path, server, proxies(server), faults, seed=seed, lease_seconds=LEASE_SECONDS)
    check(found)
    assert found.begun_again() == []
    happened = {fault.name for fault in found.faults}
    assert {fault.__name__ for fault in SHORT} <= happened, "some faults never happened"
    print(f"{len(found.accepted)} messages, {Counter(fault.name for fault in found.faults)}")  # noqa: T201 # shown with -s


@pytest.mark.parametrize(("seed", "count"), [(1, 2), pytest.param(2, 40, marks=SLOW)])
def test_faults_longer_than_a_lease_lose_nothing_and_restart_only_held_messages(
    tmp_path: Path,
    start_redis: StartRedis,
    proxies: Callable[[RedisServer], FaultProxy],
    seed: int,
    count: int,
) -> None:
    server = start_redis()
    faults = [*drawn(LONG, count, seed=seed), *SHORT[:2]]
    found = run(tmp_path, server, proxies(server), faults, seed=seed, lease_seconds=SHORT_LEASE_SECONDS)
    check(found)
    again = found.begun_again()
    assert [pair for pair in again if not found.away_between(*pair)] == []
    print(f"{len(found.accepted)} messages, {len(again)} begun again")  # noqa: T201 # shown with -s


def drawn(kinds: Sequence[Fault], count: int, *, seed: int) -> list[Fault]:
    """Return that many faults, all kinds about equally often, in a seeded random order."""
    faults = [kinds[number % len(kinds)] for number in range(count)]
    random.Random(seed).shuffle(faults)
    return faults
