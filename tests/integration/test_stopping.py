"""Every way to stop a worker, on real processes: nothing is lost, and released messages are redelivered at once."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.fleet import Fleet, wait_for

EXIT_SECONDS = 60.0  # more than any stop timeout below, with time for a slow machine


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    opened = Fleet(tmp_path, worker_lease=30, worker_stop_timeout=10, worker_concurrency=4)
    yield opened
    opened.close()


def test_row_74_a_term_while_idle_ends_the_worker_within_a_poll(fleet: Fleet) -> None:
    worker = fleet.start().ready()
    worker.signal(signal.SIGTERM)
    assert worker.end(within=EXIT_SECONDS) == 0
    (stopped,) = worker.events("worker.drained")
    (draining,) = worker.events("worker.draining")
    assert stopped["ts"] >= draining["ts"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_work_in_flight_finish_and_starts_no_more(fleet: Fleet, number: signal.Signals) -> None:
    worker = fleet.start("--stop-timeout", "60").ready()
    fleet.send("plain", *({"id": f"m{n}", "seconds": 0.8} for n in range(4)))
    wait_for(lambda: len(fleet.started()) == 4, "all slots are busy")
    worker.signal(number)
    wait_for(lambda: worker.events("worker.draining"), "it drains")
    fleet.send("plain", {"id": "late", "seconds": 0})
    assert worker.end(within=EXIT_SECONDS) == 0
    assert fleet.ended() == {f"m{n}" for n in range(4)}
    assert fleet.broker.stats("plain").visible == 1
    assert worker.events("worker.drained")


@pytest.mark.parametrize("queue", ["plain", "looped", "stubborn"])
def test_row_75_work_that_does_not_end_in_time_is_released_uncounted_and_continues_elsewhere(
    fleet: Fleet, queue: str
) -> None:
    first = fleet.start().ready()
    fleet.send(queue, {"id": "long", "seconds": 60})
    wait_for(lambda: "long" in fleet.started(), "the work begins")
    second = fleet.start("--queues", queue).ready()
    first.signal(signal.SIGTERM)
    assert first.end(within=EXIT_SECONDS) == 0
    (interrupted,) = first.events("worker.interrupted")
    assert interrupted["count"] == 1
    assert not first.events("message.failed")
    wait_for(lambda: len(fleet.lines()) == 2, "another worker starts it")
    first_start, again = fleet.lines()
    assert again.pid == second.pid
    assert (first_start.attempt, again.attempt) == (1, 1)
    released_at = max(line["ts"] for line in first.events("message.interrupted"))
    print("released", released_at, "started again at", again.at)  # noqa: T201  # shown with -s


def test_a_second_signal_releases_at_once(fleet: Fleet) -> None:
    worker = fleet.start("--stop-timeout", "60").ready()
    fleet.send("plain", {"id": "long", "seconds": 60})
    wait_for(lambda: "long" in fleet.started(), "the work begins")
    worker.signal(signal.SIGTERM)
    wait_for(lambda: worker.events("worker.draining"), "it drains")
    worker.signal(signal.SIGTERM)
    assert worker.end(within=EXIT_SECONDS) == 0
    assert worker.events("worker.interrupted")
    assert fleet.broker.stats("plain").visible == 1


def test_tstp_stops_fetching_and_stays_up_until_a_term(fleet: Fleet) -> None:
    worker = fleet.start().ready()
    fleet.send("plain", {"id": "running", "seconds": 0.5})
    wait_for(lambda: "running" in fleet.started(), "the work begins")
    worker.signal(signal.SIGTSTP)
    wait_for(lambda: worker.events("worker.draining"), "it drains")
    fleet.send("plain", {"id": "later", "seconds": 0})
    wait_for(lambda: "running" in fleet.ended(), "what is in flight is finished")
    assert worker.process.poll() is None
    assert "later" not in fleet.started()
    worker.signal(signal.SIGTERM)
    assert worker.end(within=EXIT_SECONDS) == 0
    assert fleet.broker.stats("plain").visible == 1


@pytest.mark.parametrize("number", [signal.SIGTTIN, signal.SIGUSR1])
def test_ttin_and_usr1_log_the_stacks_of_all_threads(fleet: Fleet, number: signal.Signals) -> None:
    worker = fleet.start().ready()
    fleet.send("stubborn", {"id": "sleeper", "seconds": 600})
    wait_for(lambda: "sleeper" in fleet.started(), "the work begins")
    worker.signal(number)
    wait_for(lambda: worker.events("stacks.dumped"), "the stacks are logged")
    (stacks,) = worker.events("stacks.dumped")
    text = str(stacks)
    assert "penstock-io" in text
    assert "penstock-heartbeat" in text
    assert "time.sleep(body" in text
    assert worker.process.poll() is None


def test_a_drain_that_cannot_fit_is_refused_at_the_start(fleet: Fleet) -> None:
    fleet.environment["PENSTOCK_WORKER_DRAIN"] = "29"
    worker = fleet.start()
    assert worker.end(within=EXIT_SECONDS) == 78
    assert "drain" in worker.log.read_text()


def can_create_process_namespaces() -> bool:
    """Return True if this machine grants a process id namespace."""
    try:
        tried = subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        return False
    return tried.returncode == 0


@pytest.mark.skipif(
    not can_create_process_namespaces(), reason="not applicable: this machine grants no process id namespaces"
)
def test_a_worker_as_pid_1_drains_releases_and_ends_with_0(fleet: Fleet) -> None:
    prefix = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL")
    worker = fleet.start("--stop-timeout", "13", prefix=prefix).ready()  # five seconds are for draining
    fleet.send("plain", {"id": "short", "seconds": 0.3}, {"id": "long", "seconds": 60})
    wait_for(lambda: fleet.started() >= {"short", "long"}, "the work begins")
    (inside,) = children_of(worker.pid)
    os.kill(inside, signal.SIGTERM)
    assert worker.end(within=EXIT_SECONDS) == 0
    assert "short" in fleet.ended()
    assert fleet.broker.stats("plain").visible == 1


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=True)
    return [int(one) for one in listed.stdout.split()]
