"""A supervisor over toy children: who is started again, when, and what outlasts the stop timeout."""

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

def tell(event):
    print(json.dumps({"event": type(event).__name__, **dataclasses.asdict(event)}), flush=True)

options = json.loads(sys.argv[1])
spawn = spawner(lambda number: ["-c", sys.argv[2]], executable=sys.executable, environment=dict(os.environ))
sys.exit(Supervisor(spawn, clock=SystemClock(), random=lambda: 0.5, emit=tell, **options).run())
"""
# A stop comes after the command's handlers were installed, and before the supervisor's.
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
# Children take the signals as the worker does: blocked at first, and heard once they are ready.
READY = "import signal, sys; from penstock.operations.supervisor import ready_for_signals as ready\n"
SAY = 'print(\'{"event": "ready"}\', flush=True)\n'
DEADLINE_SECONDS = 60.0


class Toy:
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
        """The next line; pytest's timeout is its deadline."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it ended"
        said: dict[str, Any] = json.loads(line)
        return said

    def exit_code(self) -> int:
        return self.process.wait(DEADLINE_SECONDS)


@contextmanager
def toy(child: str, *, cwd: Path | None = None, **options: Any) -> Iterator[Toy]:
    started = Toy(child, {"processes": 1, "stop_timeout_seconds": 10.0, **options}, cwd)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()


@pytest.mark.timeout(60)
def test_a_child_that_fails_again_and_again_is_started_after_waits_that_double() -> None:
    with toy("sys.exit(1)") as supervisor:
        ended = [supervisor.next() for _ in range(2)]
        assert [line["restart_in_seconds"] for line in ended] == [1.5, 2.0]
        assert [line["exit_code"] for line in ended] == [1, 1]
        supervisor.process.send_signal(signal.SIGTERM)
        assert supervisor.exit_code() == 0, "nobody was there who failed after it was asked to stop"


@pytest.mark.timeout(60)
def test_a_stop_before_the_first_child_starts_none(tmp_path: Path) -> None:
    """It was lost between two handlers, and the workers ran until SIGKILL."""
    environment = {"PYTHONPATH": str(SRC), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_EARLY], cwd=tmp_path, env=environment, timeout=DEADLINE_SECONDS
    )
    assert done.returncode == 0


@pytest.mark.timeout(60)
def test_what_outlasts_the_stop_timeout_is_killed() -> None:
    with toy(
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); {SAY}\nwhile True: signal.pause()",
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
def test_a_child_that_can_never_work_ends_the_others_too(tmp_path: Path, code: int) -> None:
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
    with toy(child, processes=2, cwd=tmp_path) as supervisor:
        ended = [supervisor.next() for _ in range(2)]
        assert [(line["exit_code"], line["restart_in_seconds"]) for line in ended] == [(code, None), (0, None)]
        assert supervisor.exit_code() == code


@pytest.mark.timeout(60)
def test_a_child_that_ended_well_is_not_started_again() -> None:
    with toy("sys.exit(0)", processes=2) as supervisor:
        assert [supervisor.next()["exit_code"] for _ in range(2)] == [0, 0]
        assert supervisor.exit_code() == 0


@pytest.mark.timeout(60)
def test_after_a_pause_nobody_is_started_again() -> None:
    with toy(f"signal.signal(signal.SIGTSTP, lambda *_: sys.exit(1)); ready(); {SAY}\nsignal.pause()") as supervisor:
        assert supervisor.next()["event"] == "ready"
        supervisor.process.send_signal(signal.SIGTSTP)
        assert supervisor.next()["restart_in_seconds"] is None
        assert supervisor.exit_code() == 1


@pytest.mark.timeout(60)
def test_a_signal_that_comes_before_the_child_is_ready_waits_for_it() -> None:
    wait = "while signal.SIGTERM not in signal.sigpending(): pass"
    child = f"{SAY}\n{wait}\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); ready(); signal.pause()"
    with toy(child, restarts=False) as supervisor:
        assert supervisor.next()["event"] == "ready"
        supervisor.process.send_signal(signal.SIGTERM)
        assert supervisor.next()["exit_code"] == 0
        assert supervisor.exit_code() == 0


@pytest.mark.timeout(60)
def test_a_lone_child_hands_its_exit_code_on() -> None:
    with toy("sys.exit(75)", restarts=False) as supervisor:
        assert supervisor.next()["restart_in_seconds"] is None
        assert supervisor.exit_code() == 75
