"""Simulate an outage: a handler's dependency is down for ten minutes, with and without the circuit breaker.

    python -m benchmarks.outage [--seconds 600] [--rate 5] [--backlog 1000] [--breaker on,off]

A server on loopback answers, then refuses for half of the outage and hangs for the other half, then answers again. A
worker on the embedded queue calls it, with default retries (5 attempts, waits from 1 s) and a timeout of 2 s per call.
Messages arrive at a steady rate all the time; a backlog arrives when the outage begins. Both runs are concurrent, each
in its own process. Takes the outage and a minute or two.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.services.dependency import Dependency, ask

from penstock import App
from penstock.app.serving import serve
from penstock.config import Settings
from penstock.events import BreakerClosed, BreakerOpened, DeliverySettled, Event
from penstock.messaging.message import Message
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.worker.shutdown import StopSignal

QUEUE = "payments"
BEFORE_SECONDS = 10.0
RECOVERY_SECONDS_MAX = 900.0
CALL_TIMEOUT_SECONDS = 2.0
RUNS = {"on": 10, "off": 0}  # breaker_failures


class Books:
    """The events of a run. Listeners' threads write under the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.down = False  # written by the stage
        self.calls_down = 0
        self.charged: Counter[str] = Counter()  # failed attempts that counted, by message
        self.done_at: dict[str, float] = {}
        self.dead: set[str] = set()
        self.openings: list[BreakerOpened] = []
        self.probes = 0

    def called(self) -> None:
        with self.lock:
            self.calls_down += self.down

    def __call__(self, event: Event) -> None:
        with self.lock:
            match event:
                case DeliverySettled(settlement=Ack()):
                    self.done_at[event.message_id] = time.monotonic()
                case DeliverySettled(settlement=DeadLetter()):
                    self.dead.add(event.message_id)
                    self.charged[event.message_id] += 1
                case DeliverySettled(settlement=Release(uncounted=False)):
                    self.charged[event.message_id] += 1
                case BreakerOpened():
                    self.openings.append(event)
                case BreakerClosed():
                    self.probes += event.probes
                case _:
                    pass


class Arrivals:
    """A thread that sends a steady stream of messages."""

    def __init__(self, app: App, rate: float) -> None:
        self._app = app
        self._every_seconds = 1.0 / rate
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.ids: list[str] = []  # written by the thread, and by the stage for the backlog

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every_seconds):
            self.ids.append(self._app.send(QUEUE, b"{}"))


def act(folder: Path, *, failures: int, seconds: float, rate: float, backlog: int) -> dict[str, Any]:
    """Run once and return the figures."""
    books, stop = Books(), StopSignal()
    settings = Settings(
        broker=f"sqlite:///{folder}/queue.db", data_dir=str(folder / "state"), worker_breaker_failures=failures
    )
    app = App(settings=settings)
    with closing(Dependency()) as dependency, closing(app):

        def pay(message: Message) -> None:  # noqa: ARG001 - every message is the same
            books.called()
            ask(dependency.port, timeout_seconds=CALL_TIMEOUT_SECONDS)

        app.handler(QUEUE)(pay)
        worker = threading.Thread(target=lambda: serve(app, stop=stop, listeners=(books,)), daemon=True)
        arrivals = Arrivals(app, rate)
        worker.start()
        arrivals.start()
        time.sleep(BEFORE_SECONDS)
        books.down = True
        dependency.refuse()
        arrivals.ids += app.send_many(QUEUE, [b"{}"] * backlog)
        time.sleep(seconds / 2)
        dependency.hang()
        time.sleep(seconds / 2)
        before = list(arrivals.ids)
        dependency.answer()
        books.down = False
        ended_at = time.monotonic()
        _until(lambda: all(one in books.done_at or one in books.dead for one in before), RECOVERY_SECONDS_MAX)
        arrivals.end()
        stop.request()
        worker.join(60)
        dead_letters = app.broker.stats(f"{QUEUE}-dlq").visible
    waits = sorted(max(books.done_at[one] - ended_at, 0.0) for one in before if one in books.done_at)
    return {
        "messages sent before its end": len(before),
        "dead letters": dead_letters,
        "calls to what was down": books.calls_down,
        "attempts lost": sum(books.charged.values()),
        "messages that lost one": len(books.charged),
        "most lost by one message": max(books.charged.values(), default=0),
        "done 50 % s after its end": round(waits[len(waits) // 2], 1),
        "done 99 % s after its end": round(waits[int(len(waits) * 0.99)], 1),
        "all done s after its end": round(waits[-1], 1),
        "times opened": len(books.openings),
        "probes": books.probes,
    }


def _until(condition: Callable[[], bool], seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    while not condition() and time.monotonic() < ends_at:
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="of the outage; default: 600")
    parser.add_argument("--rate", type=float, default=5.0, help="messages a second; default: 5")
    parser.add_argument("--backlog", type=int, default=1_000)
    parser.add_argument("--breaker", default="on,off", metavar="on,off")
    arguments = parser.parse_args()
    runs = arguments.breaker.split(",")
    if len(runs) == 1:
        numbers = {"seconds": arguments.seconds, "rate": arguments.rate, "backlog": arguments.backlog}
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(act(Path(folder), failures=RUNS[runs[0]], **numbers)))
        return
    flags = ["--seconds", str(arguments.seconds), "--rate", str(arguments.rate), "--backlog", str(arguments.backlog)]
    command = [sys.executable, "-m", "benchmarks.outage", *flags, "--breaker"]
    children = {run: subprocess.Popen([*command, run], stdout=subprocess.PIPE, text=True) for run in runs}
    figures = {run: json.loads(child.communicate()[0]) for run, child in children.items()}
    print(f"{'':32}" + "".join(f"{f'breaker {run}':>16}" for run in runs))
    for name in figures[runs[0]]:
        print(f"{name:32}" + "".join(f"{figures[run][name]:>16}" for run in runs))


if __name__ == "__main__":
    main()
