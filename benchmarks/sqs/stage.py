"""The environment of the contestants: one server, a delaying proxy, and a queue and a process for each.

Contestants use one core; the server, the proxy and the benchmark use the others, if there are any.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.services.aws_server import AwsServer, environment_for

from benchmarks.redis.effects import Effect, Effects
from benchmarks.redis.processes import Processes, running
from benchmarks.sqs.filler import Filler
from benchmarks.sqs.way import Way

ROOT = Path(__file__).resolve().parents[2]
LOOK_SECONDS = 0.02
START_SECONDS_MAX = 30.0
DRAIN_SECONDS_MAX = 120.0

CONTESTANTS = ("bare", "plain", "async")  # also their queues' names


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """The figures of one queue that was processed."""

    rate: float  # messages a second, from the first handler's start until the last delete
    cpu_microseconds: float  # of the contestant, a message
    calls: Mapping[str, int]  # by operation, the start's not counted; empty where there was no way to count
    resident_mib: float  # at the end


@dataclass(slots=True, kw_only=True)
class Stage:
    server: AwsServer
    filler: Filler
    folder: Path
    pollers: int
    concurrency: int
    cores: tuple[int, ...]  # the contestants'

    @contextmanager
    def way(self, delay_seconds: float | None) -> Iterator[Way | None]:
        """None: no way, but straight to the server."""
        if delay_seconds is None:
            yield None
            return
        way = Way(self.server.port, delay_seconds=delay_seconds)
        try:
            yield way
        finally:
            way.close()

    @contextmanager
    def worker(self, name: str, way: Way | None) -> Iterator[Processes]:
        url = self.server.url if way is None else way.url
        environment = {
            **environment_for(url),
            **{key: value for key, value in self.server.environment.items() if key != "AWS_ENDPOINT_URL"},
            "PENSTOCK_BROKER": "sqs://",
            "PENSTOCK_DATA_DIR": str(self.folder / f"state-{name}"),
            "BENCH_EFFECTS": str(self.effects_file(name)),
            "BENCH_POLLERS": str(self.pollers),
            "BENCH_CONCURRENCY": str(self.concurrency),
            "BENCH_CORES": ",".join(map(str, self.cores)),
        }
        command = [sys.executable, "-m", "benchmarks.sqs.peer", name]
        with running(command, folder=ROOT, environment=environment, log=self.folder / f"{name}.log") as processes:
            yield processes

    @contextmanager
    def effects(self, name: str, messages: int) -> Iterator[Effects]:
        """Return an empty file for the effects of the contestant's handlers."""
        book = Effects.make(self.effects_file(name), messages)
        try:
            yield book
        finally:
            book.close()

    def drain(self, name: str, messages: int, *, delay_seconds: float | None, seconds: float = 0.0) -> Drained:
        """Fill the queue and let a new worker empty it, with handlers that sleep that long."""
        with self.effects(name, messages) as book, self.way(delay_seconds) as way:
            self.filler.fill(name, range(messages), seconds=seconds)
            with self.worker(name, way) as worker:
                self.wait(lambda: any(_begun(book, messages)), name, worker, seconds_max=START_SECONDS_MAX)
                calls, cpu_seconds = Counter() if way is None else Counter(way.calls), worker.cpu_seconds()
                self.wait(lambda: self.filler.left(name) == 0, name, worker, seconds_max=DRAIN_SECONDS_MAX)
                ended_at = time.time()
                took_calls = {} if way is None else Counter(way.calls) - calls
                cpu_seconds, resident_mib = worker.cpu_seconds() - cpu_seconds, worker.resident_mib()
            effects = list(book.read(range(messages)))
        self.check(name, effects)
        return Drained(
            rate=messages / (ended_at - min(effect.first_start_at for effect in effects)),
            cpu_microseconds=cpu_seconds / messages * 1e6,
            calls=took_calls,
            resident_mib=resident_mib,
        )

    def wait(
        self, true: Callable[[], bool], name: str, worker: Processes, *, seconds_max: float, look: float = LOOK_SECONDS
    ) -> None:
        """Wait for a condition. Ends the benchmark if the contestant has ended or the time is over."""
        deadline = time.monotonic() + seconds_max
        while not true():
            if worker.ended or time.monotonic() > deadline:
                raise SystemExit(f"{name} does not do its work; see {self.folder / f'{name}.log'}")
            time.sleep(look)

    def check(self, name: str, effects: list[Effect]) -> None:
        """Check that each message was processed once; otherwise there are no figures."""
        wrong = sum(effect.starts != 1 for effect in effects)
        if wrong:
            raise SystemExit(f"{name} worked on {wrong:,} of {len(effects):,} messages not once")

    def effects_file(self, name: str) -> Path:
        return self.folder / f"{name}.effects"


@contextmanager
def stage(folder: Path, *, pollers: int, concurrency: int) -> Iterator[Stage]:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:-1] or cores)
    server = AwsServer(kind="fauxqs", folder=folder)
    server.start()
    filler = Filler(server.port, account=server.account)
    try:
        for name in CONTESTANTS:
            filler.make(name)
        yield Stage(
            server=server,
            filler=filler,
            folder=folder,
            pollers=pollers,
            concurrency=concurrency,
            cores=tuple(cores[-1:]),
        )
    finally:
        filler.close()
        server.stop()
        with suppress(OSError):
            os.sched_setaffinity(0, cores)


def _begun(book: Effects, messages: int) -> Iterator[bool]:
    return (effect.starts > 0 for effect in book.read(range(min(messages, 1_000))))
