"""Measure the cost of metrics: workers whose handlers do nothing, with and without metrics, alternating.

    python -m benchmarks.metrics [--rounds N] [--messages N] [--only NAME]

With metrics, everything is counted, and another process scrapes the endpoint once a second. Each round runs both kinds
in separate processes, in alternating order. The figures are medians: messages per second from the first call to the
last, CPU microseconds per message, and the ratio of both within a round, because the speed of a busy machine varies.

- ``sqlite``, ``redis``: as `penstock worker` runs, with its record and its log at the default level (to /dev/null).
- ``bare sqlite``, ``bare redis``: the same without any other listener, so that metrics pay for every event that is
  built for them.
- ``costless``: the worker alone, bare, over a broker that costs nothing: the most that metrics can cost.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.redis.server import server
from benchmarks.worker import BODY, CostlessBroker
from penstock import App
from penstock.app.metering import Metering, open_metering
from penstock.app.running import run_worker
from penstock.config import Settings, load_settings
from penstock.events import Bus
from penstock.handlers.declaration import HandlerDeclaration
from penstock.handlers.function_handler import FunctionHandler
from penstock.messaging.broker import Broker
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.messaging.schema import Queue
from penstock.worker.consumer import Consumer
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal
from penstock.worker.worker import Worker

QUEUE = "orders"
SCRAPE_SECONDS = 1.0
FIGURES = ("sqlite", "redis", "bare sqlite", "bare redis", "costless")
SEND_MAX = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    messages_per_second: float
    core_microseconds: float  # a message


class Calls:
    """A handler that records its first and last call, and then stops the worker."""

    def __init__(self, messages: int, stop: StopSignal) -> None:
        self._left = messages
        self._messages = messages
        self._stop = stop
        self._lock = threading.Lock()
        self._began = (0.0, 0.0)  # under the lock, as is the count: wall and processor
        self._ended = (0.0, 0.0)

    def __call__(self, body: bytes) -> None:  # noqa: ARG002 - a handler's
        with self._lock:
            if self._left == self._messages:
                self._began = (time.perf_counter(), time.process_time())
            self._left -= 1
            if not self._left:
                self._ended = (time.perf_counter(), time.process_time())
                self._stop.request()

    def run(self) -> Run:
        wall, core = (ended - began for began, ended in zip(self._began, self._ended, strict=True))
        return Run(messages_per_second=self._messages / wall, core_microseconds=core / self._messages * 1e6)


def worked(name: str, messages: int, *, metrics: bool) -> Run:
    """Run once in this process."""
    stop = StopSignal()
    calls = Calls(messages, stop)
    settings = load_settings(metrics_address="127.0.0.1:0" if metrics else None)
    if name == "costless":
        return bare(CostlessBroker(messages), settings, calls, stop, queue="q")
    app = App(settings=settings)
    app.handler(QUEUE)(_function(calls))
    for first in range(0, messages, SEND_MAX):
        app.broker.send(QUEUE, [Outgoing(body=BODY)] * min(SEND_MAX, messages - first))
    if name.startswith("bare"):
        return bare(app.broker, settings, calls, stop, queue=QUEUE)
    if metrics:
        announced(Path(settings.data_dir))
    run_worker(app, stop=stop)
    return calls.run()


def bare(broker: Broker, settings: Settings, calls: Calls, stop: StopSignal, *, queue: str) -> Run:
    """Run a worker without log and record; with metrics, they are the only listener."""
    with _metering(settings) as metering:
        bus = Bus() if metering is None else Bus(metering.listener)
        declaration = HandlerDeclaration(name="take", queue=Queue(queue), function=_function(calls))
        handler = FunctionHandler(declaration, bus=bus, clock=SystemClock(), random=random.random)
        worker = Worker(
            broker=broker,
            consumers=[Consumer(queue=queue, handler=handler)],
            settings=WorkerSettings(start_jitter_seconds=0.0),
            clock=SystemClock(),
            bus=bus,
        )
        worker.run(stop)
    return calls.run()


@contextlib.contextmanager
def _metering(settings: Settings) -> Iterator[Metering | None]:
    if settings.metrics_address is None:
        yield None
        return
    metering = open_metering(settings, worker="bench", health=None, queues={}, emit=Bus().emit)
    with metering.beside():
        say(address=metering.address)
        yield metering


def _function(calls: Calls) -> Any:
    def take(body: bytes) -> None:
        calls(body)

    return take


def announced(state: Path) -> None:
    """Print the metrics address of this process's worker, once its record has it."""
    from penstock.app.registry import Workers

    def look() -> None:
        while True:
            for record in Workers(state).records():
                if record.metrics_address and not record.metrics_address.endswith(":0"):
                    say(address=record.metrics_address)
                    return
            time.sleep(0.02)

    threading.Thread(target=look, daemon=True).start()


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def measured(name: str, messages: int, folder: Path, *, metrics: bool, environment: dict[str, str]) -> Run:
    """Run once in a separate process, and scrape it."""
    command = [sys.executable, "-m", "benchmarks.metrics", "--one", name, "--messages", str(messages)]
    given = {**os.environ, "PENSTOCK_DATA_DIR": str(folder), **environment, "BENCH_METRICS": "1" if metrics else ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=given, text=True) as process:
        assert process.stdout is not None
        over, report = threading.Event(), {}
        for line in process.stdout:
            report = json.loads(line)
            if "address" in report:
                threading.Thread(target=_scrape, args=(report["address"], over), daemon=True).start()
        over.set()
    assert process.returncode == 0, f"{name} failed"
    return Run(**report)


def _scrape(address: str, over: threading.Event) -> None:
    while not over.wait(SCRAPE_SECONDS):
        with contextlib.suppress(OSError):  # it has just ended
            urllib.request.urlopen(f"http://{address}/metrics", timeout=5).read()


def figure(name: str, messages: int, rounds: int, folder: Path) -> None:
    runs: dict[bool, list[Run]] = {True: [], False: []}
    with contextlib.ExitStack() as stack:
        environment: dict[str, str] = {}
        if name.endswith("redis"):
            environment["PENSTOCK_BROKER"] = stack.enter_context(server(folder)).address
        for number in range(rounds):
            for metrics in (number % 2 == 0, number % 2 != 0):
                own = folder / f"{name} {number} {metrics}"
                own.mkdir()
                if name.endswith("sqlite"):
                    environment["PENSTOCK_BROKER"] = f"sqlite:///{own}/queue.db"
                runs[metrics].append(measured(name, messages, own, metrics=metrics, environment=environment))
    without, with_ = runs[False], runs[True]
    rates = [median(run.messages_per_second for run in each) for each in (without, with_)]
    cores = [median(run.core_microseconds for run in each) for each in (without, with_)]
    rounds_ = list(zip(without, with_, strict=True))
    rate = median(two.messages_per_second / one.messages_per_second for one, two in rounds_)
    core = median(two.core_microseconds / one.core_microseconds for one, two in rounds_)
    print(
        f"{name:>12}: {rates[0]:8,.0f} a second without, {rates[1]:8,.0f} with ({rate - 1:+.1%}); "
        f"{cores[0]:6.1f} us of a core without, {cores[1]:6.1f} with ({core - 1:+.1%})",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=FIGURES)
    parser.add_argument("--one", choices=FIGURES, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one is not None:
        run = worked(given.one, given.messages, metrics=bool(os.environ["BENCH_METRICS"]))
        say(messages_per_second=run.messages_per_second, core_microseconds=run.core_microseconds)
        return
    print(f"{given.messages:,} messages to a handler that does nothing, medians of {given.rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        for name in FIGURES:
            if given.only in (None, name):
                figure(name, given.messages, given.rounds, Path(folder))


if __name__ == "__main__":
    main()
