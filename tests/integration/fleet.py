"""Worker processes over one broker, and a journal of their handlers' calls, written by the handlers.

The journal is the oracle: every handler appends lines to a file (one write each, so lines never mix), and Penstock does
not know the file. A message is lost if its journal has no end and its queue does not hold it any more.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.forked_process import ForkedPopen

from penstock.app.app import App
from penstock.app.brokers import open_broker
from penstock.config import Settings
from penstock.messaging.broker import Broker

APP = '''
"""Handlers that record their calls in a journal."""

import asyncio
import json
import os
import time

from penstock import App, Context, Queue

app = App.from_config()
JOURNAL = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
OPTIONS = {"retry_base": 0.1, "max_retry_wait": 0.5, "max_attempts": int(os.environ.get("ATTEMPTS", "5"))}


def hold(body):
    """Block until the test lets this process go on, if the message is gated, and then for its seconds."""
    while body.get("gated") and not os.path.exists(f"go-{os.getpid()}"):
        time.sleep(0.02)  # between two checks for a file that the test creates
    time.sleep(body.get("seconds", 0))  # work that takes time


def note(what, body, ctx):
    line = {"what": what, "id": body["id"], "message": ctx.message.id, "pid": os.getpid(), "attempt": ctx.attempt}
    line["at"] = time.time()
    os.write(JOURNAL, (json.dumps(line) + "\\n").encode())


@app.handler(Queue("plain", dict), **OPTIONS)
def plain(body, ctx):
    note("start", body, ctx)
    ends_at = time.monotonic() + body["seconds"]
    while (left := ends_at - time.monotonic()) > 0:
        time.sleep(min(left, 0.05))
        ctx.checkpoint()
    note("end", body, ctx)


@app.handler(Queue("stubborn", dict), **OPTIONS)
def stubborn(body, ctx):
    note("start", body, ctx)
    hold(body)
    note("end", body, ctx)


@app.handler(Queue("once", dict), idempotency=lambda body: body["id"], **OPTIONS)
def once(body, ctx):
    note("start", body, ctx)
    hold(body)
    note("end", body, ctx)


@app.handler(Queue("looped", dict), **OPTIONS)
async def looped(body, ctx):
    note("start", body, ctx)
    if body.get("gated"):
        hold(body)
    else:
        await asyncio.sleep(body["seconds"])
    note("end", body, ctx)
'''
QUEUES = ("plain", "stubborn", "once", "looped")
DEADLINE_SECONDS = 240.0  # an upper bound; on an idle machine, conditions become true at once


@dataclass(frozen=True)
class Line:
    """One line of the journal."""

    what: str
    id: str
    message: str
    pid: int
    attempt: int
    at: float


class Fleet:
    """A folder with a queue, an app, a journal, and the workers started on it.

    ``broker`` is the workers' address; ``aside`` is the test's own address of the same broker, if the two differ.
    ``added`` extends the workers' environment beside the settings, and ``app`` is the code that they run.
    """

    def __init__(
        self,
        folder: Path,
        *,
        broker: str | None = None,
        aside: str | Broker | None = None,
        added: Mapping[str, str] | None = None,
        app: str = APP,
        **settings: object,
    ) -> None:
        self.folder = folder
        self.journal = folder / "journal"
        self.journal.touch()
        (folder / "fleet_app.py").write_text(app, encoding="utf-8")
        address = broker or f"sqlite:///{folder / 'queue.db'}"
        self.environment = {
            "PENSTOCK_LOG_LEVEL": "debug",  # tests wait for messages to be received, started and acked
            **os.environ,
            **(added or {}),
            "JOURNAL": str(self.journal),
            "PENSTOCK_BROKER": address,
            "PENSTOCK_LEDGER": f"sqlite:///{folder / 'ledger.db'}",
            "PENSTOCK_ONE_HOST": "true",
            "PENSTOCK_DATA_DIR": str(folder / "state"),
            **{f"PENSTOCK_{name.upper()}": str(value) for name, value in settings.items()},
        }
        way = aside or address
        self.broker: Broker = open_broker(Settings(broker=way), holder="test") if isinstance(way, str) else way
        self.app = App(broker=self.broker)
        self.workers: list[WorkerProcess] = []

    def start(self, *options: str, prefix: Sequence[str] = (), kill_at: str | None = None) -> "WorkerProcess":
        worker = WorkerProcess(self, options, prefix, kill_at, number=len(self.workers))
        self.workers.append(worker)
        return worker

    def send(self, queue: str, *bodies: dict[str, Any]) -> None:
        self.app.send_many(queue, [json.dumps(body) for body in bodies])

    def lines(self) -> list[Line]:
        text = self.journal.read_text(encoding="utf-8")
        return [Line(**json.loads(line)) for line in text.splitlines()]

    def ended(self) -> set[str]:
        return {line.id for line in self.lines() if line.what == "end"}

    def started(self) -> set[str]:
        return {line.id for line in self.lines() if line.what == "start"}

    def empty(self) -> bool:
        stats = [self.broker.stats(queue) for queue in QUEUES]
        return not any(one.visible or one.in_flight or one.delayed for one in stats)

    def dead(self) -> int:
        if not self.broker.capabilities.browsable:
            return sum(self.broker.stats(f"{queue}-dlq").visible for queue in QUEUES)
        return sum(len(self.broker.browse(f"{queue}-dlq", messages_max=1000)) for queue in QUEUES)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.broker.close()


class WorkerProcess:
    """`penstock worker` as a separate process; its log is a file of JSON lines."""

    def __init__(
        self, fleet: Fleet, options: Sequence[str], prefix: Sequence[str], kill_at: str | None, *, number: int
    ) -> None:
        self.log = fleet.folder / f"worker-{number}.log"
        command = [*prefix, sys.executable, "-m", "penstock", "worker", "fleet_app:app", *options]
        environment = {**fleet.environment, **({"PENSTOCK_KILL_AT": kill_at} if kill_at else {})}
        with self.log.open("wb") as stream:
            self.process = ForkedPopen(
                command,
                cwd=fleet.folder,
                env=environment,
                stderr=stream,
                stdin=subprocess.DEVNULL,
                start_new_session=kill_at is not None,  # dying at a step kills the process group
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        lines = self.log.read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [line for line in found if name in (None, line["event"])]

    def ready(self) -> "WorkerProcess":
        wait_for(
            lambda: self.events("worker.started") or self.process.poll() is not None, f"{self.log} has worker.started"
        )
        assert self.process.poll() is None, self.log.read_text()
        return self

    def go_on(self) -> None:
        """Let its handlers of gated messages finish."""
        (self.log.parent / f"go-{self.pid}").touch()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, *, within: float) -> int:
        """Wait for its end; return the exit code."""
        return self.process.wait(within)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)


def wait_for(condition: Callable[[], object], description: str, *, within: float = DEADLINE_SECONDS) -> None:
    ends_at, tick = time.monotonic() + within, threading.Event()
    while not condition():
        assert time.monotonic() < ends_at, f"not true within {within} s: {description}"
        tick.wait(0.02)


def let_pass(seconds: float) -> None:
    """Let real time pass, for faults that last: between processes no fake clock helps. To wait for a condition, use
    `wait_for`.
    """
    threading.Event().wait(seconds)
