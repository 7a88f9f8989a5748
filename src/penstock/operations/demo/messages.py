"""The message half of the demo: a queue, three workers, a SIGKILL, and a count of all orders by their result."""

import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from penstock.app.backends import file_ledger
from penstock.app.brokers import file_broker, open_broker
from penstock.app.paths import LEDGER_FILE
from penstock.app.state import QUEUE_FILE
from penstock.config import Settings
from penstock.errors import PenstockError
from penstock.messaging.broker import Broker
from penstock.messaging.message import Outgoing
from penstock.operations.demo import environment_without_settings

ORDERS = 1_000
WITHOUT_PRICE_EVERY = 200  # every n-th order has no price, so its handler rejects it
WORKERS = 3
KILL_AT_SHARE = 0.4  # of the orders that are recorded
QUEUE = "orders"
TEMPLATE = "shop.py.txt"
SETTINGS = """\
[worker]
# A killed worker's messages are free after a third of the lease, when another worker of this host finds its lock free.
lease = "3s"
concurrency = 4
max_fetch = 10

[log]
level = "warning"
"""
END_SECONDS_MAX = 60.0
STOP_SECONDS = 15.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCounts:
    """The state of the orders at one moment."""

    recorded: int
    dead_lettered: int
    queued: int  # visible, in flight or delayed
    started_twice: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageProof:
    """The result of the message half: the counts at the kill and at the end."""

    sent: int
    without_price: int
    workers: int
    at_kill: MessageCounts
    at_end: MessageCounts
    lost: int  # neither recorded nor dead-lettered at the end
    seconds: float

    @property
    def holds(self) -> bool:
        """True if each order with a price is recorded, each other one is dead-lettered, and nothing is left."""
        return (
            self.lost == 0
            and self.at_end.queued == 0
            and self.at_end.recorded == self.sent - self.without_price
            and self.at_end.dead_lettered == self.without_price
        )


def run_messages(folder: Path, *, report: Callable[[str], None]) -> MessageProof:
    """Send orders, run three workers on them, kill one of them, and count.

    Args:
        folder: The folder of the app (see `write_app`).
        report: Receives a line per step.

    Raises:
        PenstockError: The workers did not finish in time; their log is in the folder.
    """
    began = time.monotonic()
    with _opened_queue(folder) as broker, ExitStack() as stack:
        broker.send(QUEUE, [Outgoing(body=_order(n)) for n in range(ORDERS)])
        report(f"{ORDERS:,} orders sent; {WORKERS} workers start.")
        workers = [stack.enter_context(_worker(folder)) for _ in range(WORKERS)]
        count = _Counter(folder, broker)
        _wait(lambda: count.recorded() >= KILL_AT_SHARE * ORDERS, workers, folder)
        workers[0].kill()
        workers[0].wait()
        at_kill = count.now()
        report(f"Worker {workers[0].pid} killed with SIGKILL. The others take over its messages.")
        _wait(lambda: count.queued() == 0, workers[1:], folder)
        at_end = count.now()
    without_price = sum(_cents(n) == 0 for n in range(ORDERS))
    return MessageProof(
        sent=ORDERS,
        without_price=without_price,
        workers=WORKERS,
        at_kill=at_kill,
        at_end=at_end,
        lost=ORDERS - at_end.recorded - at_end.dead_lettered,
        seconds=time.monotonic() - began,
    )


class _Counter:
    """Count the orders in the queue, the dead letters and the shop's database."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self._folder = folder
        self._broker = broker
        self._dead_letter_queue = broker.dead_letter_queue(QUEUE)

    def now(self) -> MessageCounts:
        starts = Counter(line.split()[0] for line in (self._folder / "starts.txt").read_text().splitlines())
        return MessageCounts(
            recorded=self.recorded(),
            dead_lettered=self._broker.stats(self._dead_letter_queue).messages,
            queued=self.queued(),
            started_twice=sum(times > 1 for times in starts.values()),
        )

    def recorded(self) -> int:
        with closing(sqlite3.connect(self._folder / "shop.db", timeout=30)) as database:
            (number,) = database.execute("SELECT count(*) FROM orders").fetchone()
            return int(number)

    def queued(self) -> int:
        return self._broker.stats(QUEUE).messages


def write_app(folder: Path) -> None:
    """Write the app, its settings and its database."""
    folder.mkdir(parents=True, exist_ok=True)
    template = files("penstock.operations.demo") / TEMPLATE
    (folder / "shop.py").write_text(template.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "penstock.toml").write_text(SETTINGS, encoding="utf-8")
    with closing(sqlite3.connect(folder / "shop.db")) as database, database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY, cents INTEGER NOT NULL)")


def _order(number: int) -> bytes:
    return json.dumps({"number": number, "cents": _cents(number)}).encode()


def _cents(number: int) -> int:
    return 0 if number % WITHOUT_PRICE_EVERY == 0 else 100 + number


def settings_in(folder: Path) -> Settings:
    """Return the settings of the app in this folder, whatever the user's are."""
    state = folder / ".penstock"
    return Settings.model_construct(
        broker=file_broker(state / QUEUE_FILE), ledger=file_ledger(state / LEDGER_FILE), data_dir=str(state)
    )


@contextmanager
def _opened_queue(folder: Path) -> Iterator[Broker]:
    broker = open_broker(settings_in(folder), holder="")
    try:
        yield broker
    finally:
        broker.close()


@contextmanager
def _worker(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker of the demo's app inside the block; the folder's penstock.toml has its only settings."""
    with (folder / "workers.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "worker", "shop:app"],
            cwd=folder,
            env=environment_without_settings(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C at the terminal must not reach it before the demo stops it
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(condition: Callable[[], bool], workers: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """Wait until ``condition`` returns True. Raises `PenstockError` if a worker ends first, or after a minute."""
    deadline, never = time.monotonic() + END_SECONDS_MAX, threading.Event()
    while not condition():
        ended = [worker for worker in workers if worker.poll() is not None]
        if ended or time.monotonic() > deadline:
            reason = f"a worker ended with exit code {ended[0].returncode}" if ended else "the workers take too long"
            raise PenstockError(
                f"The message half of the demo failed: {reason}; their log is {folder / 'workers.log'}."
            )
        never.wait(_POLL_SECONDS)
