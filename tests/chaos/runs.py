"""Ingests as real processes, each in its own process group, and the folders they read."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.chaos.oracle import Truth, truth
from tests.services.forked_process import ForkedPopen
from tests.services.one_session import OneSession

ROOT = Path(__file__).parents[2]
SCHEMA = "id long, v double, s string"
RUN_SECONDS_MAX = 240.0  # a hang, or a wait for a lease, fails a test instead of prolonging it
# No process may need a lease to expire: one that waits for it exceeds the bound above.
LEASE_SECONDS = 600
HOOKS = "CHAOS_HOOKS"  # a folder with a sitecustomize.py for Spark's workers
KILLED = -signal.SIGKILL
STOPPED = 75
INTERRUPTED = 130
SOME_DEAD = 3
DELTA, ICEBERG = "delta", "iceberg"  # schemes of table formats
FORMATS = [DELTA, pytest.param(ICEBERG, marks=pytest.mark.slow)]
ON_SPARK = "penstock"
IN_PROCESS = "tests.chaos.in_process"  # for tests whose subject is not Spark
JUNK = b"--- log rotated ---"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended. ``code`` is negative for a signal."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def report(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document

    def expect(self, code: int) -> "Ended":
        """Return this, or fail with the output unless the process ended with that code."""
        assert self.code == code, f"ended with {self.code} and not {code} after {self.seconds:.1f} s:\n{self.err}"
        return self


class Running:
    """A running ingest. Its output goes to files, because processes that survive a kill could hold a pipe open."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        module: str,
        folder: Path,
        name: str,
        environment: dict[str, str],
        before_exec: Callable[[], None] | None = None,
    ) -> None:
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = ForkedPopen(
                [sys.executable, "-m", module, *arguments],
                stdout=out,
                stderr=err,
                cwd=folder,
                env=environment,
                start_new_session=True,
                preexec_fn=before_exec,
            )
        self.began_at = time.monotonic()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone, as a platform does."""
        self.process.send_signal(number)

    def send_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and its JVM at the same time."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def log(self) -> str:
        return self._err.read_text()

    def wait_until(self, condition: Callable[[], bool], *, seconds: float = RUN_SECONDS_MAX) -> None:
        """Wait for a condition. Fails if the process ends or the time is over."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"it ended too early with {self.process.returncode}:\n{self.log()}"
            assert time.monotonic() < deadline, f"it did not get that far in {seconds} s:\n{self.log()}"
            time.sleep(0.02)  # between two looks at a file that another process writes

    def end(self, *, seconds: float = RUN_SECONDS_MAX) -> Ended:
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.send_group(signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"it did not end in {seconds} s:\n{self.log()}") from None
        return Ended(code=code, out=self._out.read_text(), err=self.log(), seconds=time.monotonic() - self.began_at)


class Content(Protocol):
    """The objects of a source, and the command that ingests them."""

    def write(self, folder: Path, numbers: range) -> list[Path]:
        """Write the objects of these numbers."""
        ...

    def truth(self, folder: Path, *, at: str | None = None) -> Truth:
        """Return the rows of the objects in a folder. ``at``: see `tests.chaos.oracle.uri_of`."""
        ...

    def command(self, arguments: Sequence[str]) -> Sequence[str]:
        """Return the command. ``arguments`` are source, table and options."""
        ...


class JsonLines:
    """The `Content` of most tests."""

    def write(self, folder: Path, numbers: range) -> list[Path]:
        return write_objects(folder, numbers)

    def truth(self, folder: Path, *, at: str | None = None) -> Truth:
        return truth(folder, at=at)

    def command(self, arguments: Sequence[str]) -> Sequence[str]:
        return "ingest", *arguments, "--schema", SCHEMA, "--json"


class Case:
    """A folder to read, a table to write, and all processes that use them."""

    def __init__(
        self,
        folder: Path,
        *,
        module: str = ON_SPARK,
        content: Content | None = None,
        scheme: str = DELTA,
        **settings: object,
    ) -> None:
        """``module`` is the module that processes run: `ON_SPARK` or `IN_PROCESS`. ``settings`` apply to each."""
        self.module = module
        self.scheme = scheme  # of the table's format
        self.content = JsonLines() if content is None else content
        self.folder = folder
        self.source = folder / "in"
        self.table = folder / "table"
        self.source.mkdir()
        self.session: OneSession | None = None  # of ingests on Spark that are neither killed nor signalled
        self._settings = settings
        self._started: list[Running] = []

    def add_objects(self, numbers: range) -> None:
        """Add the objects of these numbers to the source."""
        self.content.write(self.source, numbers)

    def truth(self) -> Truth:
        """Return the lines of the source."""
        return self.content.truth(self.source)

    def mirror(self) -> Path:
        """Return a local copy of the table for the oracle."""
        return self.table

    @property
    def arguments(self) -> Sequence[str]:
        """Return the arguments of every ingest."""
        return str(self.source), self.address

    @property
    def address(self) -> str:
        """Return the table's address in commands."""
        return self._address_of(str(self.table))

    def _address_of(self, location: str) -> str:
        return location if self.scheme == DELTA else f"{self.scheme}:{location}"

    def start(self, *options: str, before_exec: Callable[[], None] | None = None, **settings: object) -> Running:
        """Start `penstock ingest` with these options, and settings by their names."""
        arguments = [*self.content.command(self.arguments), *options]
        return self._start(arguments, before_exec=before_exec, **settings)

    def ingest(
        self, *options: str, code: int = 0, before_exec: Callable[[], None] | None = None, **settings: object
    ) -> Ended:
        """Run an ingest to its end and check its exit code."""
        if self.session is not None and self.module == ON_SPARK and before_exec is None:
            return self._called_in(self.session, *options, **settings).expect(code)
        return self.start(*options, before_exec=before_exec, **settings).end().expect(code)

    def command(self, *arguments: str, code: int = 0, **settings: object) -> Ended:
        """Run any command and check its exit code."""
        return self.begin(*arguments, **settings).end().expect(code)

    def begin(self, *arguments: str, **settings: object) -> Running:
        """Start any command."""
        return self._start(arguments, before_exec=None, **settings)

    def accept_transform(self, name: str = "") -> None:
        """Allow the next ingests to have another transform, or none."""
        where = ("--table", self.address, "--data-dir", str(self.table / "_penstock"))
        self.command("admin", "schema", "transform", name or "--none", *where)

    def show(self, path: Path) -> dict[str, Any]:
        """Return the newest version from `penstock objects show`."""
        shown = self.command("objects", "show", str(path), "--table", self.address, "--json")
        document: dict[str, Any] = json.loads(shown.out)[-1]
        return document

    def _called_in(self, session: OneSession, *options: str, **settings: object) -> Ended:
        began_at = time.monotonic()
        arguments = [*self.content.command(self.arguments), *options]
        called = session.call(arguments, folder=self.folder, environment=environment(**self._settings | settings))
        return Ended(code=called.code, out=called.out, err=called.err, seconds=time.monotonic() - began_at)

    def _start(
        self, arguments: Sequence[str], *, before_exec: Callable[[], None] | None = None, **settings: object
    ) -> Running:
        running = Running(
            arguments,
            module=self.module,
            folder=self.folder,
            name=f"run-{len(self._started)}",
            environment=environment(**self._settings | settings),
            before_exec=before_exec,
        )
        self._started.append(running)
        return running

    def close(self) -> None:
        for running in self._started:
            if running.process.poll() is None:
                running.send_group(signal.SIGKILL)
                running.process.wait()


def environment(**settings: object) -> dict[str, str]:
    """Return an environment without a user's settings, with a small Spark that starts quickly."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    given = {
        "spark_master": "local[2]",
        "spark_driver_memory": "1g",
        "worker_lease": LEASE_SECONDS,
        "one_host": True,  # for tests with a queue in SQS
        **settings,
    }
    return {
        **inherited,
        # hooks of the test; `tests`, for `IN_PROCESS`; this Penstock
        "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get(HOOKS)]), str(ROOT), str(ROOT / "src")]),
        **{f"PENSTOCK_{name.upper()}": str(value) for name, value in given.items()},
    }


def write_objects(folder: Path, numbers: Iterator[int] | range, *, lines: int = 20, junk_every: int = 5) -> list[Path]:
    """Write numbered objects of that many good lines; every fourth gzipped, every ``junk_every``-th with a bad line."""
    return [write_object(folder, number, lines=lines, junk=number % junk_every == 0) for number in numbers]


def write_object(folder: Path, number: int, *, lines: int = 20, junk: bool = False) -> Path:
    texts = [line(number, place) for place in range(lines)]
    if junk:
        texts.insert(lines // 2, JUNK)
    content = b"".join(text + b"\n" for text in texts)
    path = folder / f"object-{number:04}.jsonl{'.gz' if number % 4 == 0 else ''}"
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def line(number: int, place: int, **more: object) -> bytes:
    return json.dumps({"id": number * 1_000 + place, "v": place / 2, "s": f"line {place}", **more}).encode()
