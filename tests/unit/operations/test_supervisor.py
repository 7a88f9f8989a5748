"""A supervisor of small child processes: restarts, exit codes, stops and the stop timeout."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SRC = Path(__file__).parents[3] / "src"
SUPERVISE = """
import dataclasses, json, os, sys
from penstock.operations.supervisor import Supervisor, spawner
from penstock.messaging.clock import SystemClock

def emit(event):
    print(json.dumps({"event": type(event).__name__, **dataclasses.asdict(event)}), flush=True)

options = json.loads(sys.argv[1])
spawn = spawner(lambda number: ["-c", sys.argv[2]], executable=sys.executable, environment=dict(os.environ))
sys.exit(Supervisor(spawn, clock=SystemClock(), random=lambda: 0.5, emit=emit, **options).run())
"""
# A stop signal between the installation of the command's handlers and of the supervisor's.
STOPPED_EARLY = """
import contextlib, os, signal, sys
from penstock.cli import supervise as command
from penstock.config import load_settings

opened = command.lifeline

@contextlib.contextmanager
def lifeline():
    with opened() as descriptor:
        os.kill(os.getpid(), signal.SIGTERM)
        yield descriptor

command.lifeline = lifeline
command.spawner = lambda *_, **__: lambda _: os._exit(9)
sys.exit(command.supervise([], load_settings(worker_processes=2)))
"""
# Children handle signals as the worker does: blocked at first, and handled once they are ready.
READY = "import signal, sys; from penstock.operations.supervisor import ready_for_signals as ready\n"
PRINT_READY = 'print(\'{"event": "ready"}\', flush=True)\n'
DEADLINE_SECONDS = 60.0


class SupervisorProcess:
    """A supervisor as a process, and the lines that it and its children print."""

    def __init__(self, child: str, options: dict[str, Any], cwd: Path | None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, json.dumps(options), READY + child],
            cwd=cwd,
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": str(SRC)},
            text=True,
        )

    def next(self) -> dict[str, Any]:
        """Return the next line. The deadline is pytest's timeout."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the supervisor ended"
        parsed: dict[str, Any] = json.loads(line)
        return parsed

    def exit_code(self) -> int:
        return self.process.wait(DEADLINE_SECONDS)


@contextmanager
def running_supervisor(child: str, *, cwd: Path | None = None, **options: Any) -> Iterator[SupervisorProcess]:
    started = SupervisorProcess(child, {"processes": 1, "stop_timeout_seconds": 10.0, **options}, cwd)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()


@pytest.mark.timeout(60)
def test_a_child_that_keeps_failing_is_restarted_with_growing_delays() -> None:
    with running_supervisor("sys.exit(1)") as supervisor:
        ended = [supervisor.next() for _ in range(2)]
        assert [line["restart_in_seconds"] for line in ended] == [1.5, 2.0]
        assert [line["exit_code"] for line in ended] == [1, 1]
        supervisor.process.send_signal(signal.SIGTERM)
        assert supervisor.exit_code() == 0, "no child failed after the stop"


@pytest.mark.timeout(60)
def test_a_stop_before_the_first_child_starts_none(tmp_path: Path) -> None:
    """The signal used to be lost between two handlers, and the workers ran until SIGKILL."""
    environment = {"PYTHONPATH": str(SRC), "HOME": str(tmp_path)}
    completed = subprocess.run(
        [sys.executable, "-c", STOPPED_EARLY], cwd=tmp_path, env=environment, timeout=DEADLINE_SECONDS
    )
    assert completed.returncode == 0


@pytest.mark.timeout(60)
def test_a_child_that_outlasts_the_stop_timeout_is_killed() -> None:
    with running_supervisor(
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); {PRINT_READY}\nwhile True: signal.pause()",
        stop_timeout_seconds=1.5,
    ) as supervisor:
        assert supervisor.next()["event"] == "ready"
        supervisor.process.send_signal(signal.SIGTERM)
        assert supervisor.next()["event"] == "ProcessKilled"
        ended = supervisor.next()
        assert (ended["exit_code"], ended["restart_in_seconds"]) == (-signal.SIGKILL, None)
        assert supervisor.exit_code() == 128 + signal.SIGKILL


@pytest.mark.timeout(60)
@pytest.mark.parametrize("code", [2, 78])
def test_a_child_with_a_permanent_error_ends_the_others(tmp_path: Path, code: int) -> None:
    child = f"""
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    Path("first").touch(exist_ok=False)
except FileExistsError:
    sys.exit({code})
ready()
while True: signal.pause()
"""
    with running_supervisor(child, processes=2, cwd=tmp_path) as supervisor:
        ended = [supervisor.next() for _ in range(2)]
        assert [(line["exit_code"], line["restart_in_seconds"]) for line in ended] == [(code, None), (0, None)]
        assert supervisor.exit_code() == code


@pytest.mark.timeout(60)
def test_a_successful_child_is_not_restarted() -> None:
    with running_supervisor("sys.exit(0)", processes=2) as supervisor:
        assert [supervisor.next()["exit_code"] for _ in range(2)] == [0, 0]
        assert supervisor.exit_code() == 0


@pytest.mark.timeout(60)
def test_after_a_pause_no_child_is_restarted() -> None:
    with running_supervisor(
        f"signal.signal(signal.SIGTSTP, lambda *_: sys.exit(1)); ready(); {PRINT_READY}\nsignal.pause()"
    ) as supervisor:
        assert supervisor.next()["event"] == "ready"
        supervisor.process.send_signal(signal.SIGTSTP)
        assert supervisor.next()["restart_in_seconds"] is None
        assert supervisor.exit_code() == 1


@pytest.mark.timeout(60)
def test_a_signal_before_the_child_is_ready_is_delivered_later() -> None:
    wait = "while signal.SIGTERM not in signal.sigpending(): pass"
    child = f"{PRINT_READY}\n{wait}\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); ready(); signal.pause()"
    with running_supervisor(child, restarts=False) as supervisor:
        assert supervisor.next()["event"] == "ready"
        supervisor.process.send_signal(signal.SIGTERM)
        assert supervisor.next()["exit_code"] == 0
        assert supervisor.exit_code() == 0


@pytest.mark.timeout(60)
def test_the_exit_code_of_a_single_child_is_passed_on() -> None:
    with running_supervisor("sys.exit(75)", restarts=False) as supervisor:
        assert supervisor.next()["restart_in_seconds"] is None
        assert supervisor.exit_code() == 75
