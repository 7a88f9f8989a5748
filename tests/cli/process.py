"""`penstock` as a process of its own: what it says, line by line, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.services.forked_process import ForkedPopen

SRC = Path(__file__).parents[2] / "src"
DEADLINE_SECONDS = 60.0


class Process:
    """One call of `penstock` in a folder; its standard error is a log of JSON lines, and perhaps a sentence."""

    def __init__(self, folder: Path, *arguments: object, before: Sequence[str] = (), module: str = "penstock") -> None:
        """``module`` is what Python runs; `tests.chaos.in_process` starts no Spark."""
        self._child = ForkedPopen(
            [*before, sys.executable, "-m", module, *map(str, arguments)],
            cwd=folder,
            env={"PENSTOCK_LOG_LEVEL": "debug", **os.environ, "PYTHONPATH": f"{SRC}{os.pathsep}{SRC.parent}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self._ended = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def expect(self, event: str, *, times: int = 1, **fields: Any) -> dict[str, Any]:
        """The line of that event with these fields, awaited; of several, the one of that number."""

        def found() -> list[dict[str, Any]]:
            lines = [json.loads(line) for line in self.said if line.startswith("{")]
            return [line for line in lines if {"event": event, **fields}.items() <= line.items()]

        with self._news:
            self._news.wait_for(lambda: len(found()) >= times or self._ended, DEADLINE_SECONDS)
            assert len(found()) >= times, f"it never said {event} {fields}:\n" + "".join(self.said)
            return found()[times - 1]

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def exit_code(self) -> int:
        """Awaited; negative for a signal."""
        code = self._child.wait(DEADLINE_SECONDS)
        self._thread.join(DEADLINE_SECONDS)
        return code

    def sentence(self) -> str:
        """Return the error message of an ended process."""
        self.exit_code()
        (line,) = [line for line in self.said if line.startswith("penstock: ")]
        return line

    def kill(self) -> None:
        self._child.kill()
        self._child.wait(DEADLINE_SECONDS)

    def _listen(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            with self._news:
                self.said.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


Start = Callable[..., Process]
