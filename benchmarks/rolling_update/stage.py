"""Workers that are replaced under load, and the monitor."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

from tests.integration.fleet import Fleet, WorkerProcess, wait_for
from tests.services.ports import free_port
from tests.services.redis_server import RedisServer

from benchmarks.rolling_update.scraper import QUEUE, Scraper, answers
from benchmarks.rolling_update.story import (
    ACTS,
    CONCURRENCY,
    LEASE_SECONDS,
    LONG_SECONDS,
    SHORT_SECONDS,
    STOP_TIMEOUT_SECONDS,
    WORKERS,
    Act,
    Moment,
    Story,
)

APP = """
import json
import os
import time

from penstock import App, Queue

app = App.from_config()
JOURNAL = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(what, body, ctx):
    line = {"what": what, "id": body["id"], "message": ctx.message.id, "pid": os.getpid(), "attempt": ctx.attempt}
    os.write(JOURNAL, (json.dumps({**line, "at": time.time()}) + "\\n").encode())


@app.handler(Queue("orders", dict))
def order(body, ctx):
    note("start", body, ctx)
    ends_at = time.monotonic() + body["seconds"]
    while (left := ends_at - time.monotonic()) > 0:
        time.sleep(min(left, 0.05))
        ctx.checkpoint()
    note("end", body, ctx)
"""


def play(folder: Path, *, rate: float) -> tuple[list[Story], Fleet, list[str]]:
    """Run all acts, and return their results, the fleet with its journal, and the sent messages."""
    redis = RedisServer(folder=folder / "redis", tcp=True).start()
    try:
        fleet = Fleet(
            folder,
            broker=redis.tcp_url,
            app=APP,
            worker_lease=LEASE_SECONDS,
            worker_stop_timeout=STOP_TIMEOUT_SECONDS,
            worker_concurrency=CONCURRENCY,
            metrics_monitor_every=1,
        )
        with closing(fleet), monitored(fleet) as port:
            scraper, load = Scraper(port), Load(fleet, rate)
            stage = Stage(fleet, scraper)
            for _ in range(WORKERS):
                stage.join()
            scraper.start()
            load.start()
            time.sleep(3)
            stories = [played(act, stage, load, scraper) for act in ACTS]
            load.end()
            wait_for(lambda: set(load.sent) <= fleet.ended(), "everything is done", within=60)
            wait_for(fleet.empty, "the queue is empty", within=30)
            scraper.end()
            stage.leave()
            return stories, fleet, load.sent
    finally:
        redis.close()


def played(act: Act, stage: "Stage", load: "Load", scraper: Scraper) -> Story:
    load.long_share = act.long_share
    first = len(scraper.samples)
    story = Story(act=act, began_at=time.time())
    if act.long_share:
        time.sleep(LONG_SECONDS / 2)
    stage.replace_all(story, pause_seconds=1.0 if act.signal is signal.SIGTERM else LEASE_SECONDS * 1.5 + 2)
    load.long_share = 0.0
    time.sleep(LONG_SECONDS if act.long_share else 2.0)
    story.samples = scraper.samples[first:]
    return story


@contextmanager
def monitored(fleet: Fleet) -> Iterator[int]:
    port = free_port()
    environment = {**fleet.environment, "PENSTOCK_METRICS_MONITOR_ADDRESS": f"127.0.0.1:{port}"}
    with (fleet.folder / "monitor.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "admin", "monitor", "fleet_app:app"],
            cwd=fleet.folder,
            env=environment,
            stderr=log,
        )
    try:
        wait_for(lambda: answers(port, "/readyz"), "the monitor is ready")
        yield port
    finally:
        process.terminate()
        process.wait(10)


class Load:
    """A thread that sends a steady stream of messages."""

    def __init__(self, fleet: Fleet, rate: float) -> None:
        self._fleet = fleet
        self._every_seconds = 1.0 / rate
        self._random = Random(7)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.long_share = 0.0  # written by the stage
        self.sent: list[str] = []  # written by the thread

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every_seconds):
            long = self._random.random() < self.long_share
            seconds = LONG_SECONDS if long else self._random.choice(SHORT_SECONDS)
            name = f"order-{len(self.sent)}"
            self._fleet.send(QUEUE, {"id": name, "seconds": seconds})
            self.sent.append(name)


class Stage:
    """The workers, and their replacements."""

    def __init__(self, fleet: Fleet, scraper: Scraper) -> None:
        self._fleet = fleet
        self._scraper = scraper
        self._living: list[WorkerProcess] = []
        self._names: dict[int, str] = {}

    def join(self, story: Story | None = None) -> WorkerProcess:
        """Start another worker and wait until it is ready."""
        number, port = len(self._fleet.workers) + 1, free_port()
        self._fleet.environment["PENSTOCK_DATA_DIR"] = str(self._fleet.folder / f"host-{number}")
        self._fleet.environment["PENSTOCK_METRICS_ADDRESS"] = f"127.0.0.1:{port}"
        worker = self._fleet.start()
        self._names[worker.pid] = f"worker {number}"
        wait_for(lambda: answers(port, "/readyz"), f"worker {number} is ready")
        if story is not None:
            story.moments.append(Moment(at=time.time(), actor=self._names[worker.pid], event="is ready (`/readyz`)"))
        self._scraper.watch(port)
        self._living.append(worker)
        return worker

    def replace_all(self, story: Story, *, pause_seconds: float) -> None:
        """Replace workers as a rolling update does: the new one is ready before the old one gets its signal."""
        for old in list(self._living):
            self.join(story)
            self._living.remove(old)
            time.sleep(1.5)  # so that the last scrape includes its work
            self._signal(old, story)
            time.sleep(pause_seconds)

    def leave(self) -> None:
        for worker in self._living:
            worker.signal(signal.SIGTERM)
        for worker in self._living:
            worker.end(within=STOP_TIMEOUT_SECONDS + 5)

    def _signal(self, old: WorkerProcess, story: Story) -> None:
        name, began_at = self._names[old.pid], time.time()
        story.moments.append(Moment(at=began_at, actor=name, event=f"gets {story.act.signal.name}"))
        story.names[old.pid] = name
        story.signalled_at[old.pid] = began_at
        old.signal(story.act.signal)
        code = old.end(within=STOP_TIMEOUT_SECONDS + 5)
        story.exits.append(time.time() - began_at)
        story.moments.append(Moment(at=time.time(), actor=name, event=f"has ended (exit code {code})"))
        story.moments += [moment for line in old.events() if (moment := logged(name, line)) is not None]


def logged(actor: str, line: dict[str, Any]) -> Moment | None:
    """Return the end of a worker as a moment, from its log line."""
    at = datetime.fromisoformat(line["ts"]).timestamp()
    match line["event"]:
        case "worker.draining":
            return Moment(at=at, actor=actor, event=f"logs `worker.draining`, {line['in_flight']} in flight")
        case "worker.drained":
            return Moment(at=at, actor=actor, event="logs `worker.drained`")
        case "worker.interrupted":
            return Moment(at=at, actor=actor, event=f"logs `worker.interrupted`, {line['count']} of them")
        case "worker.forced":
            return Moment(at=at, actor=actor, event="logs `worker.forced`")
        case _:
            return None
