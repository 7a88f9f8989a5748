"""The environment of a contestant: a server, a file for effects, and its workers and senders."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.redis.contestants import Contestant
from benchmarks.redis.effects import Effect, Effects
from benchmarks.redis.processes import Processes, running
from benchmarks.redis.server import Server, server

POLL_SECONDS = 0.01
SEND_SECONDS_MAX = 120.0


class Failed(Exception):
    """A contestant did not do its work; the message has the details."""


@dataclass(slots=True, kw_only=True)
class Stage:
    contestant: Contestant
    server: Server
    effects: Effects
    effects_file: Path
    log: Path
    _next: int = 0

    def take(self, messages: int) -> range:
        """Return new numbers for that many messages."""
        numbers = range(self._next, self._next + messages)
        self._next += messages
        return numbers

    def send(self, numbers: range, *, seconds: float = 0.0, mode: str = "one") -> float:
        """Send messages whose handlers sleep that long, and return the duration of sending."""
        words = (str(numbers.start), str(len(numbers)), str(seconds), mode)
        with self.log.open("ab") as output:
            sent = subprocess.run(
                [*self.contestant.sender, *words],
                cwd=self.contestant.folder,
                env={**os.environ, **self.environment()},
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                timeout=SEND_SECONDS_MAX,
                check=False,
            )
        if sent.returncode:
            raise Failed(f"its sender failed: {self.last_words()}")
        return float(sent.stdout.strip().splitlines()[-1])

    def fill(self, numbers: range, *, seconds: float = 0.0) -> None:
        """Send with the contestant's fastest method."""
        self.send(numbers, seconds=seconds, mode="many" if self.contestant.bulk else "one")

    @contextmanager
    def worker(self, concurrency: int, environment: Mapping[str, str] | None = None) -> Iterator[Processes]:
        command = [word.replace("{concurrency}", str(concurrency)) for word in self.contestant.worker]
        given = {**self.environment(concurrency), **(environment or {})}
        with running(command, folder=self.contestant.folder, environment=given, log=self.log) as processes:
            yield processes

    def environment(self, concurrency: int = 1) -> dict[str, str]:
        return {
            **self.contestant.environment,
            "BENCH_REDIS": self.server.address,
            "BENCH_EFFECTS": str(self.effects_file),
            "BENCH_CONCURRENCY": str(concurrency),
            "PENSTOCK_BROKER": self.server.address,
            "PENSTOCK_DATA_DIR": str(self.effects_file.parent / "state"),
        }

    def left(self) -> int:
        return self.contestant.left.count(self.server.redis)

    def started(self, numbers: range) -> list[Effect]:
        return [effect for effect in self.effects.read(numbers) if effect.starts]

    def ended(self, numbers: range) -> list[Effect]:
        """Return the effects of handlers that sleep."""
        return [effect for effect in self.effects.read(numbers) if effect.ended_at]

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"


@contextmanager
def stage(contestant: Contestant, folder: Path, *, messages_max: int) -> Iterator[Stage]:
    own = folder / contestant.name.replace(" ", "-")
    own.mkdir(parents=True, exist_ok=True)
    effects_file = own / "effects"
    effects = Effects.make(effects_file, messages_max)
    with server(own) as started:
        try:
            yield Stage(
                contestant=contestant,
                server=started,
                effects=effects,
                effects_file=effects_file,
                log=own / "log",
            )
        finally:
            effects.close()


def wait_until(true: Callable[[], bool], *, seconds_max: float, worker: Processes | None = None) -> bool:
    """Return True if the condition became true in time, before the worker ended."""
    deadline = time.monotonic() + seconds_max
    while not true():
        if time.monotonic() > deadline or (worker is not None and worker.ended):
            return False
        time.sleep(POLL_SECONDS)
    return True
