"""Object handlers in real workers: threads, heartbeats, timeouts and stops, on an SQLite queue and ledger."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.events import Bus, Event, LeasesExtended, ObjectFailed, ObjectFinished, ObjectInterrupted
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectState
from penstock.messaging.clock import SystemClock
from penstock.messaging.death import death_of
from penstock.messaging.message import Outgoing
from penstock.objects.local_store import LocalStore
from penstock.objects.notification import announce, parse
from penstock.objects.reference import ObjectRef
from penstock.pipeline.objects.declaration import ObjectContext, ObjectHandlerDeclaration
from penstock.pipeline.objects.handler import ObjectHandler, ObjectHandlerRuntime
from penstock.pipeline.objects.stream import IncomingObject
from penstock.worker.consumer import Consumer
from penstock.worker.lifecycle import WorkerOutcome
from penstock.worker.settings import WorkerSettings
from penstock.worker.shutdown import StopSignal
from penstock.worker.worker import Worker

HANDLER, QUEUE = "thumbnails", "landing"
DEADLINE_SECONDS = 60.0


class Site:
    """A queue, a ledger, a folder, and workers in threads of this process."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self.folder = folder
        self.input = folder / "in"
        self.input.mkdir()
        self.ledger = Ledger.open(folder / "ledger.db")
        self.broker = SqliteBroker(folder / "queue.db", holder="test")
        self.store = LocalStore(self.input)
        self.events: list[Event] = []
        self.listeners: list[Callable[[Event], object]] = [self.events.append]
        self._pool = pool
        self._stops: list[StopSignal] = []

    def close(self) -> None:
        for stop in self._stops:  # after a failed test too: the threads must not outlive it
            stop.request()
            stop.request()
        self._pool.shutdown()
        self.broker.close()
        self.ledger.close()

    def put(self, name: str) -> ObjectRef:
        path = self.input / name
        path.write_bytes(b"x\n")
        return self.store.describe(path)

    def announce(self, *refs: ObjectRef) -> None:
        self.broker.send(QUEUE, [Outgoing(body=announce(ref)) for ref in refs])

    def begin(
        self,
        function: Callable[..., Any],
        *,
        worker: str = "w1",
        lease_seconds: float = 60.0,
        until: Callable[[], bool] | None = None,
        **declared: Any,
    ) -> "tuple[StopSignal, Future[WorkerOutcome]]":
        """Start a worker; return its stop signal and its future outcome."""
        bus = Bus(self._emit)
        handler = ObjectHandler(
            ObjectHandlerDeclaration(name=HANDLER, function=function, **declared),
            ObjectHandlerRuntime(
                ledger=self.ledger,
                store=self.store,
                parse=partial(parse, buckets_allowed=None),
                worker=worker,
                lease_seconds=lease_seconds,
                bus=bus,
                backoff_base_seconds=0.01,
            ),
        )
        broker = SqliteBroker(self.folder / "queue.db", holder=worker)
        made = Worker(
            broker=broker,
            consumers=[Consumer(queue=QUEUE, handler=handler)],
            settings=WorkerSettings(concurrency=4, lease_seconds=lease_seconds, idle_ceiling_seconds=0.1),
            clock=SystemClock(),
            bus=bus,
        )
        stop = StopSignal()
        self._stops.append(stop)

        def work() -> WorkerOutcome:
            try:
                return made.run(stop, until)
            finally:
                broker.close()

        return stop, self._pool.submit(work)

    def _emit(self, event: Event) -> None:
        for listen in self.listeners:
            listen(event)

    def empty(self) -> bool:
        stats = self.broker.stats(QUEUE)
        return stats.visible + stats.in_flight + stats.delayed == 0

    def emitted(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    def state(self, ref: ObjectRef) -> ObjectState:
        return self.ledger.states(HANDLER, [ref.object_id])[ref.object_id]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ThreadPoolExecutor(4) as pool:
        site = Site(tmp_path, pool)
        yield site
        site.close()


def test_two_workers_call_the_function_once_for_an_object_with_two_notifications(site: Site) -> None:
    calls: list[str] = []
    refs = [site.put(str(number)) for number in range(20)]
    site.announce(*refs, *refs)
    workers = [
        # A duplicate waits for one lease while its object is being processed.
        site.begin(lambda obj: calls.append(obj.key), worker=name, lease_seconds=3.0, until=site.empty)
        for name in ("w1", "w2")
    ]
    assert [future.result(DEADLINE_SECONDS).outcome for _, future in workers] == ["drained", "drained"]
    assert sorted(calls) == sorted(ref.key for ref in refs)
    assert {site.state(ref) for ref in refs} == {ObjectState.PROCESSED}
    assert site.emitted(ObjectFinished) == len(refs)


def test_row_69_a_heartbeat_keeps_the_claim_of_work_longer_than_its_lease(site: Site) -> None:
    calls: list[str] = []
    beats = threading.Semaphore(0)
    site.listeners.append(lambda event: beats.release() if isinstance(event, LeasesExtended) else None)

    def long(obj: IncomingObject) -> None:
        calls.append(obj.key)
        for _ in range(5):  # a beat comes every third of the lease
            assert beats.acquire(timeout=DEADLINE_SECONDS)

    ref = site.put("a")
    site.announce(ref)
    first = site.begin(long, worker="w1", lease_seconds=1.5, until=site.empty)
    second = site.begin(long, worker="w2", lease_seconds=1.5, until=site.empty)
    for _, future in (first, second):
        assert future.result(DEADLINE_SECONDS).outcome == "drained"
    assert calls == [ref.key]
    assert site.state(ref) is ObjectState.PROCESSED


def test_a_stop_releases_work_at_a_checkpoint_and_another_worker_processes_it(site: Site) -> None:
    started, tick = threading.Event(), threading.Event()

    def waits(obj: IncomingObject, ctx: ObjectContext) -> None:
        started.set()
        while not tick.wait(0.005):
            ctx.checkpoint()

    ref = site.put("a")
    site.announce(ref)
    stop, worker = site.begin(waits, on_stop="release")
    assert started.wait(DEADLINE_SECONDS)
    stop.request()
    assert worker.result(DEADLINE_SECONDS).outcome == "interrupted"
    assert site.state(ref) is ObjectState.UNPROCESSED
    assert (site.emitted(ObjectInterrupted), site.emitted(ObjectFailed)) == (1, 0)

    _, other = site.begin(lambda obj: None, worker="w2", until=site.empty)
    assert other.result(DEADLINE_SECONDS).outcome == "drained"
    assert site.state(ref) is ObjectState.PROCESSED


def test_work_past_its_timeout_is_ended_and_final_after_its_last_attempt(site: Site) -> None:
    tick = threading.Event()

    def hangs(obj: IncomingObject, ctx: ObjectContext) -> None:
        while not tick.wait(0.005):
            ctx.checkpoint()

    ref = site.put("a")
    site.announce(ref)
    _, worker = site.begin(hangs, timeout_seconds=0.1, attempts_max=2, until=site.empty)
    assert worker.result(DEADLINE_SECONDS).outcome == "drained"
    assert site.state(ref) is ObjectState.DEAD
    [message] = site.broker.browse(f"{QUEUE}-dlq", messages_max=10)
    death = death_of(message.attributes)
    assert death is not None
    assert (death.reason, death.attempts) == ("timed out after 0.1 s", 2)
    assert "hangs" in (death.traceback or "")
