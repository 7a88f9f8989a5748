"""`penstock` as a separate process: its log, line by line, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.services.forked_process import ForkedPopen

SRC = Path(__file__).parents[2] / "src"
DEADLINE_SECONDS = 180.0


class Process:
    """One call of `penstock` in a folder; its standard error is a log of JSON lines, perhaps with an error message."""

    def __init__(self, folder: Path, *arguments: object, before: Sequence[str] = (), module: str = "penstock") -> None:
        """Start the process. ``module`` is the module that Python runs; `tests.chaos.in_process` starts no Spark."""
        self._child = ForkedPopen(
            [*before, sys.executable, "-m", module, *map(str, arguments)],
            cwd=folder,
            env={"PENSTOCK_LOG_LEVEL": "debug", **os.environ, "PYTHONPATH": f"{SRC}{os.pathsep}{SRC.parent}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log_lines: list[str] = []
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def expect(self, event: str, *, times: int = 1, **fields: Any) -> dict[str, Any]:
        """Wait for and return the log line of that event with these fields; ``times`` selects one of several."""

        def found() -> list[dict[str, Any]]:
            lines = [json.loads(line) for line in self.log_lines if line.startswith("{")]
            return [line for line in lines if {"event": event, **fields}.items() <= line.items()]

        with self._changed:
            self._changed.wait_for(lambda: len(found()) >= times or self._ended, DEADLINE_SECONDS)
            assert len(found()) >= times, f"the process never logged {event} {fields}:\n" + "".join(self.log_lines)
            return found()[times - 1]

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def await_state(self, letter: str) -> None:
        """Wait until the process has this state in /proc. Linux only."""
        stat = Path(f"/proc/{self.pid}/stat")
        ends_at = time.monotonic() + DEADLINE_SECONDS
        while stat.read_text().rpartition(") ")[2][:1] != letter:
            assert time.monotonic() < ends_at, f"the process never had the state {letter}"
            time.sleep(0.01)

    def exit_code(self) -> int:
        """Wait for the end and return the exit code; negative for a signal."""
        code = self._child.wait(DEADLINE_SECONDS)
        self._thread.join(DEADLINE_SECONDS)
        return code

    def error_message(self) -> str:
        """Return the error with which the process ended: its sentence, else the event in its log."""
        self.exit_code()
        events = [json.loads(line) for line in self.log_lines if line.startswith("{")]
        logged = [str(event["error.message"]) for event in events if event["event"] == "worker.failed"]
        printed = [line for line in self.log_lines if line.startswith("penstock: ")]
        *_, message = logged + printed
        return message

    def kill(self) -> None:
        self._child.kill()
        self._child.wait(DEADLINE_SECONDS)

    def _listen(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            with self._changed:
                self.log_lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


Start = Callable[..., Process]
