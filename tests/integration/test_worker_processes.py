"""Workers as real processes on the embedded queue, with real signals."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.services.forked_process import ForkedPopen

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.message import Outgoing

TOY = "tests.integration.toy_worker"
SRC = Path(__file__).parents[2] / "src"
DEADLINE_SECONDS = 180.0
NEVER_SECONDS = 3_600.0  # a lease or a stop timeout whose end no test waits for
SHORT_LEASE_SECONDS = 4.0  # shorter than the test
OFTEN_SECONDS = 0.5  # between its heartbeats, some of which may be late


class Process:
    """A toy worker, and every line that it printed, with its time."""

    def __init__(self, path: Path, name: str, options: dict[str, Any]) -> None:
        self._child = ForkedPopen(
            [sys.executable, "-m", TOY, str(path), name, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{SRC}{os.pathsep}{SRC.parent}"},
            text=True,
        )
        self.lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()
        self.expect("ready")

    def _listen(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            with self._changed:
                self.lines.append({**json.loads(line), "at": time.monotonic()})
                self._changed.notify_all()

    def expect(self, event: str, **fields: Any) -> dict[str, Any]:
        """Wait for and return the first line of that event with these fields."""

        def found() -> dict[str, Any] | None:
            wanted = {"event": event, **fields}
            return next((line for line in self.lines if wanted.items() <= line.items()), None)

        with self._changed:
            assert self._changed.wait_for(found, DEADLINE_SECONDS), (
                f"the process never printed {event} {fields}: {self.lines}"
            )
            line = found()
        assert line is not None
        return line

    def order(self, *events: str) -> list[str]:
        """Return those of the events that were printed, in order."""
        return [line["event"] for line in self.lines if line["event"] in events]

    def signal(self, number: signal.Signals) -> float:
        """Send the signal, and return when that was."""
        at = time.monotonic()
        self._child.send_signal(number)
        return at

    def go_on(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write("go on\n")
        self._child.stdin.flush()

    def outcome(self) -> str:
        """Return the printed outcome of the process; its exit code must be 0."""
        outcome: str = self.expect("outcome")["outcome"]
        assert self._child.wait(DEADLINE_SECONDS) == 0
        return outcome

    def kill(self) -> None:
        self._child.kill()
        self._child.wait(DEADLINE_SECONDS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def broker(path: Path) -> Iterator[SqliteBroker]:
    broker = SqliteBroker(path, holder="test")
    yield broker
    broker.close()


Start = Callable[..., Process]


@pytest.fixture
def start(path: Path, broker: SqliteBroker) -> Iterator[Start]:
    started: list[Process] = []

    def begin(name: str = "a", **options: Any) -> Process:
        process = Process(path, name, options)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()


def send(broker: SqliteBroker, count: int = 1) -> list[str]:
    return list(broker.send("q", [Outgoing(body=b"{}") for _ in range(count)]))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_row_74_a_signal_while_idle_ends_the_process_within_the_poll_wait(start: Start, number: signal.Signals) -> None:
    worker = start(idle_ceiling_seconds=1.0, stop_timeout_seconds=NEVER_SECONDS)
    worker.expect("upkeep")
    worker.signal(number)
    assert worker.outcome() == "drained"


def test_a_signal_lets_work_in_flight_finish(start: Start, broker: SqliteBroker) -> None:
    (message_id,) = send(broker)
    worker = start()
    worker.expect("started")
    worker.signal(signal.SIGTERM)
    worker.expect("WorkerDraining", in_flight=1)
    worker.go_on()
    assert worker.outcome() == "drained"
    worker.expect("DeliveryAcked", message_id=message_id, settlement="Ack")
    stats = broker.stats("q")
    assert (stats.visible, stats.in_flight) == (0, 0)


def test_row_75_work_beyond_the_drain_deadline_is_redelivered_at_once(start: Start, broker: SqliteBroker) -> None:
    (message_id,) = send(broker)
    first = start("a", stop_timeout_seconds=9.0, lease_seconds=NEVER_SECONDS)  # one of which is for draining
    first.expect("started")
    second = start("b", idle_ceiling_seconds=0.2)
    second.expect("upkeep")
    signalled_at = first.signal(signal.SIGTERM)
    restarted = second.expect("started", ids=[message_id])
    assert restarted["attempts"] == [1], "a release counts no attempt"
    freed = first.expect("claim freed")
    assert freed["at"] - signalled_at >= 0.9, "the work had its time to finish"
    assert first.outcome() == "interrupted"
    order = first.order("claim freed", "DeliverySettled", "interrupted", "ended", "WorkerStopped")
    assert order == ["claim freed", "DeliverySettled", "interrupted", "ended", "WorkerStopped"]
    first.expect("WorkerStopped", released=[message_id])
    second.go_on()
    second.expect("DeliveryAcked", message_id=message_id, settlement="Ack")


def test_a_second_signal_releases_at_once(start: Start, broker: SqliteBroker) -> None:
    send(broker)
    worker = start(stop_timeout_seconds=NEVER_SECONDS)
    worker.expect("started")
    worker.signal(signal.SIGTERM)
    worker.expect("WorkerDraining")
    worker.signal(signal.SIGTERM)
    assert worker.outcome() == "interrupted"
    assert broker.stats("q").visible == 1


def test_row_76_a_message_that_arrives_during_the_draining_poll_is_released(start: Start, broker: SqliteBroker) -> None:
    worker = start(poll_wait_seconds=15.0)
    worker.expect("waiting")
    worker.signal(signal.SIGTERM)
    worker.expect("WorkerDraining")
    (message_id,) = send(broker)
    worker.expect("DeliverySettled", message_id=message_id, settlement="Release")
    assert worker.outcome() == "drained"
    assert worker.order("started") == []
    (delivery,) = broker.receive("q", messages_max=10, lease_seconds=5.0)
    assert (delivery.message.id, delivery.attempt) == (message_id, 1)


def test_after_a_kill_another_worker_resumes_when_the_lease_ends(start: Start, broker: SqliteBroker) -> None:
    (message_id,) = send(broker)
    first = start("a", lease_seconds=2.0)
    first.expect("started")
    first.kill()
    second = start("b", lease_seconds=NEVER_SECONDS)
    second.expect("started", ids=[message_id], attempts=[2])


def test_a_worker_stopped_past_its_lease_neither_settles_nor_extends(start: Start, broker: SqliteBroker) -> None:
    (message_id,) = send(broker)
    zombie = start("zombie", lease_seconds=1.5)
    zombie.expect("started")
    zombie.signal(signal.SIGSTOP)
    successor = start("successor", lease_seconds=NEVER_SECONDS)
    successor.expect("started", ids=[message_id], attempts=[2])
    zombie.signal(signal.SIGCONT)
    zombie.expect("LeaseLost", message_id=message_id)
    zombie.go_on()
    zombie.expect("SettlementFailed", message_id=message_id, lost=True)
    assert zombie.order("DeliverySettled", "DeliveryAcked") == []
    # The successor keeps its lease all the time: no other receiver gets the message, and its ack counts.
    assert broker.receive("q", messages_max=1, lease_seconds=1.5, wait_seconds=2.0) == ()
    successor.go_on()
    successor.expect("DeliveryAcked", message_id=message_id, settlement="Ack")
    assert successor.order("LeaseLost", "SettlementFailed") == []


def test_row_69_work_longer_than_the_lease_is_not_redelivered(start: Start, broker: SqliteBroker) -> None:
    (message_id,) = send(broker)
    worker = start(lease_seconds=SHORT_LEASE_SECONDS, heartbeat_seconds=OFTEN_SECONDS)
    worker.expect("started")
    assert broker.receive("q", messages_max=1, lease_seconds=1.0, wait_seconds=SHORT_LEASE_SECONDS + 1) == ()
    worker.go_on()
    worker.expect("DeliveryAcked", message_id=message_id, settlement="Ack", attempt=1)


def test_heartbeats_continue_while_a_worker_drains(start: Start, broker: SqliteBroker) -> None:
    (message_id,) = send(broker)
    worker = start(
        lease_seconds=SHORT_LEASE_SECONDS, heartbeat_seconds=OFTEN_SECONDS, stop_timeout_seconds=NEVER_SECONDS
    )
    worker.expect("started")
    worker.signal(signal.SIGTERM)
    worker.expect("WorkerDraining")
    assert broker.receive("q", messages_max=1, lease_seconds=1.0, wait_seconds=SHORT_LEASE_SECONDS + 1) == ()
    worker.go_on()
    assert worker.outcome() == "drained"
    worker.expect("DeliveryAcked", message_id=message_id, settlement="Ack")


def test_a_stuck_thread_does_not_keep_the_process_alive(start: Start, broker: SqliteBroker) -> None:
    send(broker)
    stop_timeout_seconds = 12.0  # the worker waits for its threads until two seconds before
    worker = start(stop_timeout_seconds=stop_timeout_seconds, drain_seconds=0.0, stubborn=True)
    worker.expect("started")
    signalled_at = worker.signal(signal.SIGTERM)
    assert worker.outcome() == "forced"
    assert time.monotonic() - signalled_at < stop_timeout_seconds, "the platform would have killed it"
    worker.expect("ThreadLeftBehind", thread="penstock-run-toy-1")
    assert broker.stats("q").visible == 1


def test_prefetched_messages_are_released_without_a_counted_attempt(start: Start, broker: SqliteBroker) -> None:
    ids = send(broker, 2)
    worker = start(batch_messages_max=1)
    worker.expect("started", ids=ids[:1])
    worker.expect("held", ids=ids[1:])
    worker.signal(signal.SIGTERM)
    worker.expect("DeliverySettled", message_id=ids[1], settlement="Release")
    (delivery,) = broker.receive("q", messages_max=10, lease_seconds=30.0)
    assert (delivery.message.id, delivery.attempt) == (ids[1], 1)
    worker.go_on()
    assert worker.outcome() == "drained"


def test_sigtstp_stops_fetching_and_sigterm_ends_the_worker(start: Start, broker: SqliteBroker) -> None:
    (message_id,) = send(broker)
    worker = start(place="pool", batch_messages_max=1)
    worker.expect("started", ids=[message_id])
    worker.signal(signal.SIGTSTP)
    worker.expect("WorkerDraining", reason="pause requested", in_flight=1)
    (later,) = send(broker)
    worker.go_on()
    worker.expect("DeliveryAcked", message_id=message_id, settlement="Ack")
    # It is running: another signal has an effect. And it has not received the message sent meanwhile.
    worker.signal(signal.SIGUSR1)
    worker.expect("StacksDumped")
    assert broker.stats("q").visible == 1
    worker.signal(signal.SIGTERM)
    assert worker.outcome() == "drained"
    assert {"event": "held", "ids": [later]} not in [
        {k: v for k, v in line.items() if k != "at"} for line in worker.lines
    ]


@pytest.mark.parametrize("number", [signal.SIGTTIN, signal.SIGUSR1])
def test_a_signal_dumps_the_stacks_and_changes_nothing(
    start: Start, broker: SqliteBroker, number: signal.Signals
) -> None:
    send(broker)
    worker = start(place="pool", batch_messages_max=1)
    worker.expect("started")
    worker.signal(number)
    stacks = worker.expect("StacksDumped")["stacks"]
    for thread in ("MainThread", "penstock-io", "penstock-heartbeat", "penstock-pool-1"):
        assert f"Thread {thread}:" in stacks
    assert "toy_worker.py" in stacks
    worker.go_on()
    worker.expect("DeliveryAcked", settlement="Ack")


def test_a_function_that_ignores_its_stop_is_released_and_abandoned(start: Start, broker: SqliteBroker) -> None:
    (message_id,) = send(broker)
    worker = start(place="pool", batch_messages_max=1, stubborn=True, drain_seconds=0.0)
    worker.expect("started")
    worker.signal(signal.SIGTERM)
    assert worker.outcome() == "interrupted"
    assert worker.expect("outcome")["threads_left"] == ["penstock-pool-1"]
    (delivery,) = broker.receive("q", messages_max=10, lease_seconds=5.0)
    assert (delivery.message.id, delivery.attempt) == (message_id, 1)
