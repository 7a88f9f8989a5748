"""A shop with its own database, as separate processes that die where a test demands.

`shop` is the app that workers serve; `writers` are processes that write an order and its outbox row in one transaction,
as a web handler would. Each process kills itself by SIGKILL at the step in DIE_AT, once in all.
"""

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.fleet import Fleet, WorkerProcess, wait_for
from tests.integration.transactions_scene import UserDatabase
from tests.services.forked_process import ForkedPopen

LEASE_SECONDS = 1.0  # of a relay: claims of a dead relay wait for its end

APP = '''
"""A handler with an inbox, and a relay."""

import os
import signal
import threading

from sqlalchemy import create_engine, text

from penstock import App, Context, Queue
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.config import load_settings

engine = create_engine(os.environ["DATABASE"])


def die_at(step):
    """Kill this process if the test demands it and no process died here before."""
    if os.environ.get("DIE_AT") == step:
        try:
            os.close(os.open(os.environ["DIED"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class Broker(SqliteBroker):
    """Forgets deduplication ids at once if the test examines the inbox alone."""

    def send(self, queue, messages):
        die_at("claimed")
        ids = super().send(queue, messages)
        die_at("sent")
        return ids


path = os.environ["PENSTOCK_BROKER"].removeprefix("sqlite:///")
window = float(os.environ["DEDUPLICATION_SECONDS"])
broker = Broker(path, holder=f"worker-{os.getpid()}", deduplication_window_seconds=window)
app = App(settings=load_settings(), broker=broker)
app.relay(engine, every=0.05, lease=float(os.environ["RELAY_LEASE"]))
JOURNAL = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
dies_sent = os.environ.get("DIE_AT") == "sent" and not os.path.exists(os.environ["DIED"])


@app.handler(Queue("orders", dict), max_attempts=1000, retry_base=0.05, max_retry_wait=0.2)
def ship(body, ctx: Context):
    if dies_sent:
        threading.Event().wait()  # a call that began before the relay dies would be a second one of its message
    os.write(JOURNAL, f"{body['no']}\\n".encode())
    die_at("called")
    with engine.begin() as connection:
        if not app.inbox(connection, ctx):
            return
        connection.execute(
            text("INSERT INTO effects (no, pid) VALUES (:no, :pid)"), {"no": body["no"], "pid": os.getpid()}
        )
        die_at("committing")
    die_at("committed")


def write(first, count):
    """Write orders of these numbers, each in one transaction with its message; skip existing ones."""
    existing = text("SELECT count(*) FROM orders WHERE no = :no")
    for no in range(first, first + count):
        with engine.begin() as connection:
            if connection.execute(existing, {"no": no}).scalar_one():
                continue
            connection.execute(text("INSERT INTO orders (no) VALUES (:no)"), {"no": no})
            app.outbox(connection).send("orders", {"no": no}, group=f"g{no % 3}")
            die_at("order_written")
        die_at("order_committed")
'''
STEPS = ("order_written", "order_committed", "claimed", "sent", "called", "committing", "committed")


@dataclass(kw_only=True)
class Shop:
    """The database, the fleet of workers, and the writers."""

    folder: Path
    database: UserDatabase
    die_at: str = ""
    deduplication_seconds: float = 0.0
    name: str = "shop"
    fleet: Fleet = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        added = {
            "DATABASE": self.database.url,
            "DIE_AT": self.die_at,
            "DIED": str(self.folder / "died"),
            "DEDUPLICATION_SECONDS": str(self.deduplication_seconds),
            "RELAY_LEASE": str(LEASE_SECONDS),
            "PENSTOCK_APP_NAME": self.name,
        }
        self.fleet = Fleet(self.folder, added=added, app=APP, worker_lease=3, log_level="warning")

    @property
    def died(self) -> bool:
        return (self.folder / "died").exists()

    def work(self) -> WorkerProcess:
        return self.fleet.start()

    def write(self, first: int, count: int) -> "subprocess.Popen[bytes]":
        code = f"import fleet_app; fleet_app.write({first}, {count})"
        return ForkedPopen([sys.executable, "-c", code], cwd=self.folder, env=self.fleet.environment)

    def calls(self) -> list[int]:
        """Return the numbers of the orders that the handler was called with, including duplicates."""
        return [int(line) for line in self.fleet.journal.read_text(encoding="utf-8").split()]

    def done(self) -> bool:
        """Return True if nothing waits anywhere."""
        stats = self.fleet.broker.stats("orders")
        return not (self.database.outbox_rows() or stats.visible or stats.in_flight or stats.delayed)

    def close(self) -> None:
        self.fleet.close()


class ProcessKeeper:
    """Restart a process whenever it ends, until stopped; kill it on demand."""

    def __init__(self, start: Callable[[], "subprocess.Popen[bytes]"], *, until_success: bool = False) -> None:
        self._start = start
        self._until_success = until_success
        self._stopped = False  # written by the test's thread
        self._process: subprocess.Popen[bytes] | None = None  # written by the keeper's thread
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()  # harmless if it has ended, even if the keeper's thread has just noticed that

    def join(self, within: float) -> None:
        self._thread.join(within)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        self._stopped = True
        wait_for(self._ended, "the last process ended")

    def _ended(self) -> bool:
        self.kill()  # each time: one may just have been started
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped:
            self._process = self._start()
            if self._process.wait() == 0 and self._until_success:
                return
