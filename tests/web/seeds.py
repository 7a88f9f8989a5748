"""Fill the shop with every state that the dashboard shows, through the product's own API.

`seeded(folder)` keeps the shop's workers alive inside its block; the app to show is `Seed.app`. Ages come from an
injected clock, so nothing waits. `fill` gives any broker many queues and dead letters, for measurements.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path

from tests.web.hostile import SCRIPT
from tests.web.past import DAY, HOUR, MINUTE, PastClock
from tests.web.seeded_history import seed_history
from tests.web.seeded_objects import seed_objects
from tests.web.seeded_queues import crashed, queue_seeder, seed_dead_letters, seed_messages
from tests.web.shop import (
    BROKEN_QUEUE,
    CLICKS,
    EMPTY_QUEUE,
    FLOODED_QUEUE,
    JAPANESE_QUEUE,
    LAGGING_QUEUE,
    LONG_QUEUE,
    PAUSED_QUEUE,
    STATE,
    THUMBNAILS,
    UNSERVED_QUEUE,
    shop,
)

from penstock.app.app import App
from penstock.app.housekeeping import Presence
from penstock.app.naming import register
from penstock.app.paths import LEDGER_FILE
from penstock.app.processes import PROCESSES_FOLDER, ProcessRegistry
from penstock.app.registry import WorkerRecord
from penstock.app.state import QUEUE_FILE
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.events import BreakerOpened, Event, LedgerUnavailable, MessagesReceived, WorkerStarted
from penstock.ledger import Ledger
from penstock.messaging.broker import SEND_CHUNK, Broker
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.worker.shutdown import StopSignal

# Ids as `worker_id` makes them: host, process id and ULID
BUSY = "web-1-4211-01KB7XK2N6H7V8D0E4J5R6S7T8"
STUCK = "web-1-4398-01KB7XM4Q8J9W0F2G6K7T8V9X0"
DRAINING = "batch-tokyo-2-990-01KB7XP6S0K1Y2H4J8M9V0X1Z2"
DEAD = "web-3-77-01KB7XR8V2M3Z4K6M0P1X2Z3B4"
QUEUES_OF = {
    BUSY: (FLOODED_QUEUE, BROKEN_QUEUE, PAUSED_QUEUE, EMPTY_QUEUE, LONG_QUEUE, UNSERVED_QUEUE, f"{CLICKS}-files"),
    STUCK: (LAGGING_QUEUE,),
    DRAINING: (JAPANESE_QUEUE, f"{THUMBNAILS}-files"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """The seeded shop: its folder, its app, and the ids of its workers."""

    folder: Path
    app: App
    workers: Sequence[str] = ()


@contextmanager
def empty(folder: Path) -> Iterator[Seed]:
    """Yield the shop before its first message: it has neither a queue nor a ledger."""
    with closing(shop(folder)) as app:
        yield Seed(folder=folder, app=app)


@contextmanager
def seeded(folder: Path) -> Iterator[Seed]:
    """Yield the shop in every state. Its workers live until the block ends; their process is this one."""
    folder = folder.resolve()
    with closing(shop(folder)) as app, ExitStack() as workers:
        register(app, app.services)
        clock = PastClock()
        seed_objects(folder, clock, busy=BUSY, dead=DEAD)
        clock = PastClock()
        with queue_seeder(folder, clock, [BUSY, STUCK, DRAINING]) as queues:
            seed_dead_letters(queues, BUSY)
            seed_messages(queues, busy=BUSY, stuck=STUCK, draining=DRAINING)
        seed_audit(folder)
        workers.enter_context(_stuck_worker(folder))
        workers.enter_context(_worker(app, BUSY, _troubles()))
        workers.enter_context(_worker(app, DRAINING, (), draining=True))
        seed_history(app)
        yield Seed(folder=folder, app=app, workers=(BUSY, STUCK, DRAINING))


def _troubles() -> Sequence[Event]:
    """Return the events of a worker with an open breaker, a queue that it cannot serve, and messages in flight."""
    error, which = "TimeoutError: the gateway did not answer within 5 s", f"{BROKEN_QUEUE}|TimeoutError|"
    return (
        BreakerOpened(queue=BROKEN_QUEUE, handler=BROKEN_QUEUE, fingerprint=which, failures=10, error=error),
        LedgerUnavailable(error="the ledger did not answer within 3 s", queues=(UNSERVED_QUEUE,)),
        MessagesReceived(queue=FLOODED_QUEUE, message_ids=("1", "2", "3", "4"), redelivered=0),
    )


@contextmanager
def _worker(app: App, worker: str, events: Sequence[Event], *, draining: bool = False) -> Iterator[None]:
    """Register a living worker, which writes its record every two seconds, and let it see these events."""
    stop = StopSignal()
    if draining:
        stop.pause()
    path = Path(app.settings.data_dir) / QUEUE_FILE
    with closing(SqliteBroker(path, holder=worker)) as broker:
        presence = Presence(settings=app.settings, broker=broker, worker=worker, stop=stop, clock=SystemClock())
        (keeper,) = presence.listeners
        keeper(WorkerStarted(queues=QUEUES_OF[worker], concurrency=16))
        for event in events:
            keeper(event)
        with presence.register(ledger=lambda: app.ledger, emit=lambda event: None, random=lambda: 0.5):
            yield


@contextmanager
def _stuck_worker(folder: Path) -> Iterator[None]:
    """Hold the lock of a worker that has written no record for 50 minutes."""
    registry, clock = ProcessRegistry(folder / STATE / PROCESSES_FOLDER), PastClock()
    clock.ago_seconds = 50 * MINUTE
    record = WorkerRecord(
        worker=STUCK,
        host="web-1",
        namespace="",
        pid=4_398,
        version="0.1.0",
        started_at=clock.now() - 3 * DAY,
        state="serving",
        queues=QUEUES_OF[STUCK],
        in_flight=1,
        beat_at=clock.now(),
        settled={LAGGING_QUEUE: 9_876_543_210},
    )
    with registry.register(STUCK):
        registry.record(STUCK).write_text(dumps(asdict(record)), encoding="utf-8")
        yield


def seed_audit(folder: Path) -> None:
    """Record actions with every outcome, oldest first, and one that has not ended."""
    clock = PastClock()
    entries: Sequence[tuple[float, str, str, str, Mapping[str, object], int, str | None]] = (
        (9 * DAY, "replay", "orders-dlq", "anna@laptop", {"queue": "orders", "rate": 50.0}, 12_345, "done"),
        (8 * DAY, "replay", "orders-dlq", "佐藤花子 via the dashboard", {"error": "Timeout"}, 40, "interrupted"),
        (3 * DAY, "purge", "orders-dead", "anna@laptop", {"ids": [f"01KB{n:04}" for n in range(70)]}, 70, "done"),
        (2 * DAY, "export", "payments-dlq", "bo@laptop", {"file": "/tmp/payments.jsonl"}, 0, "failed"),
        (5 * HOUR, "replay", "payments-dlq", "ann via the dashboard", {"canary": 1}, 1, "canary died"),
        (4 * HOUR, "replay", f"{LONG_QUEUE}-dlq", SCRIPT, {"error": SCRIPT, "attributes": {"a": SCRIPT}}, 0, "done"),
        (2 * MINUTE, "replay", "invoices-dlq", "ann via the dashboard", {"queue": "invoices"}, 0, None),
    )
    with closing(Ledger.open(folder / STATE / LEDGER_FILE, now=clock.now)) as ledger:
        for ago_seconds, action, queue, who, details, messages, outcome in entries:
            clock.ago_seconds = ago_seconds
            entry = ledger.audits.begin(action, queue=queue, who=who, details=details)
            if outcome is not None:
                clock.ago_seconds -= MINUTE
                ledger.audits.end(entry, messages=messages, outcome=outcome)


def fill(broker: Broker, *, queues: int, dead_letters: int) -> None:
    """Give a broker many queues with a message each, and many dead letters of one queue in a few groups."""
    for number in range(queues):
        broker.send(f"queue-{number:04}", [Outgoing(body=b'{"number": %d}' % number)])
    errors = [crashed(_raise_number(number), "orders") for number in range(20)]
    for first in range(0, dead_letters, SEND_CHUNK):
        count = min(SEND_CHUNK, dead_letters - first)
        broker.send("orders", [Outgoing(body=b'{"order": %d}' % number) for number in range(first, first + count)])
        found = broker.receive("orders", messages_max=count, lease_seconds=HOUR)
        assert len(found) == count
        assert not broker.settle([(each, errors[number % len(errors)]) for number, each in enumerate(found)])


def _raise_number(number: int) -> object:
    def fail() -> None:
        raise ValueError(f"error number {number}")

    return fail
