"""Workers that are restarted, killed, halted and blocked under load: nothing is lost, and nothing is done twice without
reason.

The short cells run in CI; the long ones have the figures of the documented guarantees.
"""

import os
import random
import signal
import time
from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.integration.fleet import Fleet, wait_for
from tests.services.plugin import StartRedis

from penstock.ledger import Ledger
from penstock.ledger.records import WorkState

STOP_TIMEOUT = 10
EXIT_SECONDS = 60.0  # an upper bound
CLOCKS_SECONDS = 0.1  # times of a log and of a journal are taken by two threads


def open_fleet(folder: Path, *, lease_seconds: float = 30, **settings: Any) -> Fleet:
    return Fleet(folder, worker_lease=lease_seconds, worker_stop_timeout=STOP_TIMEOUT, **settings)


# Rolling restarts


@pytest.mark.parametrize(
    ("restarts", "prefix"),
    [
        pytest.param(4, (), id="4-restarts"),
        pytest.param(30, (), id="30-restarts", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
        pytest.param(
            30,
            ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"),
            id="30-restarts-as-pid-1",
            marks=[pytest.mark.slow, pytest.mark.timeout(1800)],
        ),
    ],
)
def test_rolling_restarts_under_load_lose_nothing_and_continue_at_once(
    tmp_path: Path, restarts: int, prefix: tuple[str, ...]
) -> None:
    fleet = open_fleet(tmp_path, worker_concurrency=40)
    chance = random.Random(1)
    sent: set[str] = set()

    def load(count: int) -> None:
        for queue in ("plain", "looped"):
            bodies = [
                {"id": f"{queue}-{len(sent)}-{n}", "seconds": chance.choice((0.01, 0.05, 0.3, 1.0, 6.0))}
                for n in range(count)
            ]
            fleet.send(queue, *bodies)
            sent.update(str(body["id"]) for body in bodies)

    try:
        living = [fleet.start(prefix=prefix).ready() for _ in range(2)]
        exits: list[float] = []
        for _ in range(restarts):
            if len(sent) - len(fleet.ended()) < 40:
                load(20)
            stopping = living.pop(0)
            living.append(fleet.start(prefix=prefix).ready())
            began_at = time.monotonic()
            os.kill(worker_pid(stopping.pid, bool(prefix)), signal.SIGTERM)
            assert stopping.end(within=EXIT_SECONDS) == 0, stopping.log.read_text()[-2000:]
            exits.append(time.monotonic() - began_at)
        wait_for(lambda: fleet.ended() == sent, "everything is done", within=240)
        wait_for(fleet.empty, "the queues are empty")
        for worker in living:
            os.kill(worker_pid(worker.pid, bool(prefix)), signal.SIGTERM)
            assert worker.end(within=EXIT_SECONDS) == 0
        waits = seconds_to_restart(fleet)
        ends = Counter(line.message for line in fleet.lines() if line.what == "end")
        twice = {message for message, count in ends.items() if count > 1}
        print(  # noqa: T201 # the figures, shown with -s
            f"{restarts} restarts, {len(sent)} messages, {len(waits)} released, started again after "
            f"{median(waits or [0]):.3f} s (median) and {max(waits, default=0):.3f} s (most), "
            f"exit after {max(exits):.1f} s at most, {len(twice)} done twice"
        )
        assert fleet.dead() == 0
        # Released first, interrupted after: work that ends in between is done twice, and no other is.
        assert twice <= released_messages(fleet)
    finally:
        fleet.close()


def worker_pid(pid: int, namespaced: bool) -> int:
    """Return the process to signal: inside a namespace it is the child of `unshare`."""
    if not namespaced:
        return pid
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def seconds_to_restart(fleet: Fleet) -> list[float]:
    """Return the seconds from each release by a stopping worker to the next start of that message."""
    starts: dict[str, list[float]] = defaultdict(list)
    for line in fleet.lines():
        if line.what == "start":
            starts[line.message].append(line.at)
    waits, returned = [], released_messages(fleet)
    for worker in fleet.workers:
        for event in worker.events("message.released"):
            released_at = datetime.fromisoformat(event["ts"]).timestamp()
            later = [at for at in starts[event["message_id"]] if at > released_at - CLOCKS_SECONDS]
            if event["message_id"] in returned and later:
                waits.append(max(0.0, min(later) - released_at))
    return waits


def released_messages(fleet: Fleet) -> set[str]:
    """Return the messages that stopping workers released."""
    events = [event for worker in fleet.workers for event in worker.events("worker.interrupted")]
    return {message for event in events for message in event["ids"]}


# Long, blocking, halted, killed


@pytest.mark.parametrize(
    ("lease", "seconds"),
    [
        pytest.param(5, 9, id="9s-on-5s"),
        pytest.param(10, 90, id="90s-on-10s", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("queue", ["stubborn", "looped"])
def test_row_69_work_longer_than_its_lease_is_not_redelivered(
    tmp_path: Path, queue: str, lease: float, seconds: float
) -> None:
    fleet = open_fleet(tmp_path, lease_seconds=lease)
    try:
        for _ in range(2):
            fleet.start().ready()
        fleet.send(queue, {"id": "long", "seconds": seconds})
        wait_for(lambda: "long" in fleet.ended(), "the work is done", within=seconds + 60)
        wait_for(fleet.empty, "it is acked")
        assert [line.what for line in fleet.lines()] == ["start", "end"]
    finally:
        fleet.close()


def test_a_handler_that_blocks_the_loop_loses_no_lease_and_delays_no_other_queue(tmp_path: Path) -> None:
    lease = 5.0
    fleet = open_fleet(tmp_path, lease_seconds=lease)
    try:
        workers = [fleet.start().ready() for _ in range(2)]
        fleet.send("looped", {"id": "blocker", "gated": True})
        fleet.send("looped", *({"id": f"beside-{n}", "seconds": 0.01} for n in range(20)))
        wait_for(lambda: "blocker" in fleet.started(), "the handler blocks")
        fleet.send("plain", *({"id": f"plain-{n}", "seconds": 0.01} for n in range(50)))
        wait_for(lambda: {f"plain-{n}" for n in range(50)} <= fleet.ended(), "other queues go on")
        (blocked,) = [line for line in fleet.lines() if line.id == "blocker"]
        wait_for(lambda: time.time() > blocked.at + 1.5 * lease, "its lease would be over")
        for worker in workers:
            worker.go_on()
        wait_for(lambda: len(fleet.ended()) == 71, "everything is done")
        wait_for(fleet.empty, "everything is acked")
        starts = Counter(line.id for line in fleet.lines() if line.what == "start")
        assert set(starts.values()) == {1}
    finally:
        fleet.close()


def test_a_halted_worker_that_wakes_up_neither_settles_nor_extends(tmp_path: Path) -> None:
    fleet = open_fleet(tmp_path, lease_seconds=3)
    try:
        zombie = fleet.start().ready()
        fleet.send("stubborn", {"id": "work", "gated": True})
        wait_for(lambda: "work" in fleet.started(), "the work begins")
        zombie.signal(signal.SIGSTOP)
        fleet.environment["PENSTOCK_WORKER_LEASE"] = "600"  # the other one loses none
        other = fleet.start().ready()
        wait_for(lambda: len(fleet.lines()) == 2, "the lease ended, and another begins")
        zombie.signal(signal.SIGCONT)
        for worker in (zombie, other):
            worker.go_on()
        wait_for(lambda: sum(line.what == "end" for line in fleet.lines()) == 2, "both calls ended")
        wait_for(
            lambda: zombie.events("lease.lost") or zombie.events("settlement.failed"),
            "the zombie learns that it lost its lease",
        )
        wait_for(lambda: other.events("message.acked"), "the other one acks")
        wait_for(fleet.empty, "it is acked once")
        assert not zombie.events("message.acked")
        assert fleet.dead() == 0
    finally:
        fleet.close()


def test_messages_of_a_killed_worker_are_redelivered_after_their_lease(tmp_path: Path) -> None:
    lease = 5
    fleet = open_fleet(tmp_path, lease_seconds=lease, worker_concurrency=20)
    try:
        fleet.send("plain", *({"id": f"m{n}", "seconds": 1} for n in range(200)))
        victim = fleet.start().ready()
        wait_for(lambda: len(fleet.ended()) >= 30, "it has processed some messages")
        held = fleet.started() - fleet.ended()
        victim.kill()
        killed_at = time.time()
        fleet.environment["PENSTOCK_WORKER_LEASE"] = "600"  # its successor loses none
        fleet.start().ready()
        wait_for(lambda: len(fleet.ended()) == 200, "all are done", within=120)
        wait_for(fleet.empty, "all are acked")
        again = [line.at - killed_at for line in fleet.lines() if line.what == "start" and line.attempt == 2]
        print(f"{len(held)} were held, begun again after {max(again):.1f} s at most")  # noqa: T201  # shown with -s
        assert len(again) >= len(held)
        assert fleet.dead() == 0
    finally:
        fleet.close()


@pytest.mark.parametrize("broker", ["sqlite", "redis"])
@pytest.mark.parametrize("step", ["received", "settling", "settled"])
def test_an_idempotent_handler_killed_around_its_record_has_one_effect_per_message(
    tmp_path: Path, step: str, broker: str, start_redis: StartRedis
) -> None:
    fleet = open_fleet(tmp_path, lease_seconds=30, broker=start_redis().url if broker == "redis" else None)
    try:
        ids = {f"m{n}" for n in range(20)}
        fleet.send("once", *({"id": id} for id in sorted(ids)))
        victim = fleet.start("--queues", "once", kill_at=step)
        assert victim.end(within=60) == -signal.SIGKILL
        ledger = Ledger.open(tmp_path / "ledger.db")
        recorded = {work.key for work in ledger.works("once", state=WorkState.DONE)}
        ledger.close()
        assert bool(recorded) == (step != "received")
        fleet.start("--queues", "once").ready()
        wait_for(lambda: fleet.ended() == ids and fleet.empty(), "everything is done and acked")
        ends = Counter(line.id for line in fleet.lines() if line.what == "end")
        assert all(ends[id] == 1 for id in recorded), "recorded work was done again"
        assert fleet.dead() == 0
    finally:
        fleet.close()
