"""Leases while another component fails or is slow: the number of lost messages, and the margin of the others.

    python -m benchmarks.leases [--seconds 150] [--messages 10000] [--claims 1000] [--only PART,...] [--json]

A worker has messages in work whose handlers do not return; a second worker polls the same queues. Both have default
settings: a lease of 60 s. For two and a half leases, one of these parts applies:

- `mariadb`, `postgresql`: the server of the ledger is frozen (SIGSTOP). Half of the handlers hold a claim there.
- `objects`: the object store is frozen (moto). Half of the handlers have an object of it, half of those read again.
- `claims-mariadb`, `claims-postgresql`: each request to the ledger takes 45 ms more, and 1,000 handlers hold a claim.
- `rows-mariadb`, `rows-postgresql`: the ledger takes 45 ms for each of 1,000 claims that it extends.
- `redis`, `sqlite`, `sqs`: 10,000 messages of one queue are in work. SQS is fauxqs, a server for tests.

Then the component recovers, the handlers return, and every message must be acked. A message counts as lost if its lease
ended, or if a handler was called with it while another call had it. `gap` is the longest time between two extensions of
one lease, `left` the rest of the lease then; `leases/s` are the leases extended per second, while calls to extend are
under way. A separate connection reads every second how soon the first claim ends (`claims left`; negative: that long
ago; an ended claim is lost only if another worker takes it over). A part takes three minutes or more.
"""

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import text
from tests.services import fauxqs_package
from tests.services.aws_server import NO_ACCOUNT, REGION, AwsServer
from tests.services.fault_proxy import Link
from tests.services.mariadb_server import MariadbServer, install_template
from tests.services.postgresql_server import PostgresqlServer, make_template
from tests.services.redis_server import RedisServer
from tests.services.sql_proxy import Fate, Request, SqlProxy

from penstock import App
from penstock.app.serving import serve
from penstock.brokers.redis import RedisStreamsBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.brokers.sqs import SqsBroker
from penstock.config import Settings
from penstock.events import (
    DeliverySettled,
    Event,
    ExecutionFailed,
    LeaseLost,
    LeasesExtended,
    MessagesReceived,
    WorkerStarted,
)
from penstock.ledger import Ledger
from penstock.messaging.broker import Broker, QueueSettings
from penstock.messaging.delivery import Delivery
from penstock.messaging.message import Message, Outgoing
from penstock.messaging.settlement import Ack
from penstock.objects.notification import announce
from penstock.objects.reference import ObjectRef
from penstock.pipeline.objects.stream import IncomingObject
from penstock.worker.executor import CLAIM_LOST
from penstock.worker.shutdown import StopSignal

LEASE_SECONDS = 60.0  # the default
SLOW_SECONDS = 0.045
ENOUGH_SECONDS = 600.0  # the limit for every wait
CONCURRENCY_MAX = 10_000
BUCKET = "bench"
FEW = 100  # messages, in parts that do not measure their number

SqlServer = MariadbServer | PostgresqlServer

PARTS = (
    "mariadb",
    "postgresql",
    "objects",
    "claims-mariadb",
    "claims-postgresql",
    "rows-mariadb",
    "rows-postgresql",
    "redis",
    "sqlite",
    "sqs",
)
SLOW_ROWS = {
    "mariadb": ("CREATE TRIGGER slow BEFORE UPDATE ON works FOR EACH ROW DO SLEEP({seconds})",),
    "postgresql": (
        (
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END'"
        ),
        "CREATE TRIGGER slow BEFORE UPDATE ON works FOR EACH ROW EXECUTE FUNCTION slow()",
    ),
}
FAST_ROWS = {"mariadb": "DROP TRIGGER slow", "postgresql": "DROP TRIGGER slow ON works"}
CLAIMS_END = {  # seconds until the first open claim ends, by the database's clock
    "mariadb": "SELECT MIN(lease_until) - UNIX_TIMESTAMP(NOW(6)) FROM works WHERE ended_at IS NULL",
    "postgresql": "SELECT MIN(lease_until) - EXTRACT(EPOCH FROM clock_timestamp()) FROM works WHERE ended_at IS NULL",
}


@dataclass(kw_only=True)
class Books:
    """The events of a run. Threads of handlers and workers write under the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    workers: int = 0  # that began to serve
    alive: Counter[str] = field(default_factory=Counter)  # calls under way, by message
    calls: int = 0
    twice: set[str] = field(default_factory=set)  # messages that two calls had at a time
    elsewhere: set[str] = field(default_factory=set)  # messages that the second worker began, though not released
    released: set[str] = field(default_factory=set)  # reasons why objects could not be read
    leased_at: dict[str, float] = field(default_factory=dict)  # monotonic: the last receive or extension
    gap_seconds: float = 0.0
    lost: set[str] = field(default_factory=set)
    claims_lost: int = 0
    claims_left_seconds: float = math.inf
    acked: set[str] = field(default_factory=set)
    extended: int = 0  # leases; this and the next by all calls of a broker together
    extending_seconds: float = 0.0

    @contextmanager
    def call(self, worker: str, message_id: str) -> Iterator[None]:
        with self.lock:
            self.calls += 1
            self.alive[message_id] += 1
            if self.alive[message_id] > 1:
                self.twice.add(message_id)
            if worker != "first" and message_id not in self.released:
                self.elsewhere.add(message_id)
        try:
            yield
        finally:
            with self.lock:
                self.alive[message_id] -= 1

    @property
    def working(self) -> int:
        """Return the number of messages in work."""
        with self.lock:
            return sum(1 for count in self.alive.values() if count)

    def hear(self, event: Event) -> None:
        now = time.monotonic()
        with self.lock:
            match event:
                case WorkerStarted():
                    self.workers += 1
                case MessagesReceived():
                    self.leased_at.update(dict.fromkeys(event.message_ids, now))
                case LeasesExtended():
                    for id in event.message_ids:
                        leased_at = self.leased_at.get(id, now)  # another thread may emit its receive later
                        self.gap_seconds = max(self.gap_seconds, now - leased_at)
                        self.leased_at[id] = now
                case LeaseLost():
                    self.lost.add(event.message_id)
                case ExecutionFailed(error=error) if error == CLAIM_LOST:
                    self.claims_lost += len(event.message_ids)
                case DeliverySettled(settlement=Ack()):
                    self.acked.add(event.message_id)
                    self.leased_at.pop(event.message_id, None)
                case DeliverySettled():
                    self.released.add(event.message_id)
                    self.leased_at.pop(event.message_id, None)
                case _:
                    pass

    def end_of_hold(self) -> None:
        """Include the leases that were not extended until now."""
        now = time.monotonic()
        with self.lock:
            self.gap_seconds = max([self.gap_seconds, *(now - at for at in self.leased_at.values())])

    def time(self, broker: Broker) -> None:
        """Measure the time of the broker's extensions."""
        extend = broker.extend

        def timed(deliveries: Sequence[Delivery], *, lease_seconds: float) -> Sequence[Delivery]:
            began_at = time.monotonic()
            lost = extend(deliveries, lease_seconds=lease_seconds)
            with self.lock:
                self.extended += len(deliveries)
                self.extending_seconds += time.monotonic() - began_at
            return lost

        broker.extend = timed  # type: ignore[method-assign] # a spy


class Gate:
    """Handlers wait at it, in threads and on event loops."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []  # under the lock

    async def wait(self) -> None:
        here = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiting.append(here)
        if not self.opened.is_set():
            await here[1].wait()

    def open(self) -> None:
        self.opened.set()
        with self._lock:
            for loop, event in self._waiting:
                loop.call_soon_threadsafe(event.set)


@dataclass(kw_only=True)
class Stage:
    """Two workers on one broker, and handlers that wait at the gate."""

    stack: ExitStack
    folder: Path
    seconds: float
    messages: int
    lease_seconds: float
    books: Books = field(default_factory=Books)
    gate: Gate = field(default_factory=Gate)
    failing: threading.Event = field(default_factory=threading.Event)  # the fault has begun
    queues: Sequence[str] = ("plain",)
    ledger: str = "sqlite://"
    store: AwsServer | None = None

    def broker(self, holder: str) -> Broker:
        """Return another connection to the broker."""
        return SqliteBroker(self.folder / "queue.db", holder=holder)

    def run(self, *, fail: Callable[[], object] = int, heal: Callable[[], object] = int) -> None:
        """Wait until all messages are in work, fail for `seconds`, heal in any case, and wait until all are acked."""
        began_at = time.monotonic()
        self._start("first")
        self._until(lambda: self.books.working >= self.messages, "all messages are in work")
        say(f"all in work after {time.monotonic() - began_at:.0f} s")
        self._start("second")
        self._until(lambda: self.books.workers >= 2, "the second worker waits at the queues")
        fail()
        try:
            self.failing.set()
            time.sleep(self.seconds)
            self.books.end_of_hold()
        finally:
            heal()
            self.gate.open()
        self._until(lambda: len(self.books.acked) >= self.messages, "all messages are acked")

    def send(self, queue: str, bodies: Sequence[bytes]) -> None:
        with closing(self.broker("sender")) as broker:
            for start in range(0, len(bodies), 1_000):
                broker.send(queue, [Outgoing(body=body) for body in bodies[start : start + 1_000]])

    def _start(self, name: str) -> None:
        broker = self.stack.enter_context(closing(self.broker(name)))
        if name == "first":
            self.books.time(broker)
        aws: dict[str, Any] = {}
        if self.store is not None:
            aws = {"aws_endpoint_url": self.store.url, "aws_region": REGION}
        concurrency = min(self.messages, CONCURRENCY_MAX)
        settings = Settings(
            data_dir=str(self.folder / name),
            ledger=self.ledger,
            worker_concurrency=concurrency,
            worker_lease=self.lease_seconds,
            **aws,
        )
        app = App(broker=broker, settings=settings, name="bench")

        async def hold(message: Message) -> None:
            with self.books.call(name, message.id):
                await self.gate.wait()

        def read(incoming: IncomingObject) -> None:
            with self.books.call(name, incoming.message_id):
                incoming.read()
                if int(incoming.key) % 2:
                    self.gate.opened.wait()
                else:
                    self.failing.wait()
                    incoming.read()

        if "plain" in self.queues:
            app.handler("plain", name="plain")(hold)
        if "keyed" in self.queues:
            app.handler("keyed", name="keyed", idempotency=lambda message: message.id)(hold)
        if "objects" in self.queues:
            app.object_handler("objects", name="objects", source=f"s3://{BUCKET}")(read)
        stop = StopSignal()
        worker = threading.Thread(
            target=lambda: serve(app, stop=stop, listeners=(self.books.hear,), resident=False), daemon=True
        )
        worker.start()
        self.stack.callback(worker.join, ENOUGH_SECONDS)
        self.stack.callback(stop.request)

    def _until(self, condition: Callable[[], bool], description: str) -> None:
        ends_at = time.monotonic() + ENOUGH_SECONDS
        while not condition():
            if time.monotonic() > ends_at:
                raise SystemExit(f"not reached: {description}: {self.books.working} in work, {self.books}")
            time.sleep(0.2)


class RedisStage(Stage):
    server: RedisServer

    def broker(self, holder: str) -> Broker:
        return RedisStreamsBroker(self.server.url, holder=holder)


class SqsStage(Stage):
    server: AwsServer

    def broker(self, holder: str) -> Broker:
        return SqsBroker(self.server.aws, holder=holder, queues=[QueueSettings(name="plain")])


class SlowWay(SqlProxy):
    """A proxy that delays each request."""

    def _apply(self, link: Link, data: bytes, noted: tuple[Request, Fate] | None) -> bool:
        if noted is not None:
            time.sleep(SLOW_SECONDS)
        return super()._apply(link, data, noted)


def frozen_ledger(stage: Stage, server: SqlServer) -> None:
    stage.ledger, stage.queues = server.fresh(), ("plain", "keyed")
    Ledger.open(stage.ledger).close()
    for queue in stage.queues:
        stage.send(queue, [b"{}"] * (stage.messages // 2))
    stage.run(fail=server.freeze, heal=server.thaw)


def frozen_store(stage: Stage) -> None:
    server = stage.store = AwsServer(kind="moto", folder=stage.folder / "moto").start()
    stage.ledger = f"sqlite:///{stage.folder}/ledger.db"
    stage.stack.callback(server.close)
    stage.queues = ("plain", "objects")
    client = server.client("s3")
    client.create_bucket(Bucket=BUCKET)
    refs = []
    for number in range(stage.messages // 2):
        etag = client.put_object(Bucket=BUCKET, Key=str(number), Body=b"content")["ETag"].strip('"')
        refs.append(ObjectRef(bucket=BUCKET, key=str(number), size_bytes=7, etag=etag))
    stage.send("plain", [b"{}"] * len(refs))
    stage.send("objects", [announce(ref) for ref in refs])
    stage.run(fail=server.freeze, heal=server.thaw)


def slow_requests(stage: Stage, server: SqlServer, kind: str) -> None:
    direct = server.fresh()
    Ledger.open(direct).close()  # takes many requests
    way = SlowWay(direct)
    stage.stack.callback(way.close)
    _with_claims(stage, way.url, direct, kind)


def slow_rows(stage: Stage, server: SqlServer, kind: str) -> None:
    direct = server.fresh()
    slow = [statement.format(seconds=SLOW_SECONDS) for statement in SLOW_ROWS[kind]]
    _with_claims(stage, direct, direct, kind, slow=slow, fast=[FAST_ROWS[kind]])


def _with_claims(
    stage: Stage, ledger: str, direct: str, kind: str, *, slow: Sequence[str] = (), fast: Sequence[str] = ()
) -> None:
    """Nine of ten messages hold a claim; a separate connection reads how soon the first of those ends."""
    stage.ledger, stage.queues = ledger, ("plain", "keyed")
    stage.send("plain", [b"{}"] * FEW)
    stage.send("keyed", [b"{}"] * (stage.messages - FEW))
    own = stage.stack.enter_context(closing(Ledger.open(direct)))
    engine = own.database.engine
    over = threading.Event()

    def execute(statements: Sequence[str]) -> None:
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def look() -> None:
        while not over.wait(1.0):
            with engine.begin() as connection:
                left = connection.scalar(text(CLAIMS_END[kind]))
            stage.books.claims_left_seconds = min(stage.books.claims_left_seconds, float(left))

    looking = threading.Thread(target=look, daemon=True)

    def fail() -> None:
        execute(slow)
        looking.start()

    def heal() -> None:
        over.set()
        looking.join(ENOUGH_SECONDS)
        execute(fast)

    stage.run(fail=fail, heal=heal)


def many(stage: Stage) -> None:
    stage.send("plain", [b"{}"] * stage.messages)
    stage.run()


def figures(part: str, stage: Stage) -> Mapping[str, Any]:
    books = stage.books
    lost = books.lost | books.twice | books.elsewhere
    claims = math.isfinite(books.claims_left_seconds)
    return {
        "part": part,
        "messages": stage.messages,
        "lost": len(lost),
        "calls": books.calls,
        "gap": round(books.gap_seconds, 1),
        "left": round(stage.lease_seconds - books.gap_seconds, 1),
        "leases/s": round(books.extended / books.extending_seconds) if books.extended else 0,
        "claims lost": books.claims_lost,
        "claims left": round(books.claims_left_seconds, 1) if claims else None,
    }


def measure(
    part: str, *, seconds: float, messages: int, claims: int, lease_seconds: float = LEASE_SECONDS
) -> Mapping[str, Any]:
    """Run one part in this process. Raises `SystemExit` if an awaited state is not reached."""
    kind = part.rpartition("-")[2]
    if part.startswith(("claims", "rows")):
        messages = claims + FEW
    elif part not in ("redis", "sqlite", "sqs"):
        messages = FEW
    with tempfile.TemporaryDirectory(prefix="penstock-leases-") as name, ExitStack() as stack:
        folder = Path(name)
        make = {"redis": RedisStage, "sqs": SqsStage}.get(part, Stage)
        stage = make(stack=stack, folder=folder, seconds=seconds, messages=messages, lease_seconds=lease_seconds)
        if isinstance(stage, RedisStage):
            stage.server = RedisServer(folder=folder / "redis").start()
            stack.callback(stage.server.close)
        if isinstance(stage, SqsStage):
            stage.server = AwsServer(kind="fauxqs", folder=folder / "fauxqs").start()
            stack.callback(stage.server.close)
        if kind in SLOW_ROWS:
            server = sql_server(kind, folder)
            stack.callback(server.close)
            if part == kind:
                frozen_ledger(stage, server)
            elif part.startswith("rows"):
                slow_rows(stage, server, kind)
            else:
                slow_requests(stage, server, kind)
        elif part == "objects":
            frozen_store(stage)
        else:
            many(stage)
        return figures(part, stage)


def sql_server(kind: str, folder: Path) -> SqlServer:
    if kind == "mariadb":
        return MariadbServer(folder=folder / kind, template=install_template(folder)).start()
    return PostgresqlServer(template=make_template()).start()


def say(text: str) -> None:
    """Print progress to standard error; figures are on standard output."""
    print(f"  {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.5 * LEASE_SECONDS, help="of each part; default: 150")
    parser.add_argument("--messages", type=int, default=10_000, help="in work at once; default: 10000")
    parser.add_argument("--claims", type=int, default=1_000, help="held at once; default: 1000")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,...", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each part")
    arguments = parser.parse_args()
    os.environ.update(NO_ACCOUNT)
    heading = False
    lost = 0
    for part in arguments.only.split(","):
        if part == "sqs" and (reason := fauxqs_package.why_not_here()) is not None:
            print(f"left out: {reason}")
            continue
        say(part)
        found = measure(part, seconds=arguments.seconds, messages=arguments.messages, claims=arguments.claims)
        lost += found["lost"]
        if arguments.json:
            print(json.dumps(found), flush=True)
            continue
        if not heading:
            print(f"{'part':18}" + "".join(f"{name:>12}" for name in found if name != "part"))
            heading = True
        cells = ["" if value is None else f"{value:,}" for name, value in found.items() if name != "part"]
        print(f"{part:18}" + "".join(f"{cell:>12}" for cell in cells), flush=True)
    if lost:
        raise SystemExit(f"{lost} messages were lost")


if __name__ == "__main__":
    main()
