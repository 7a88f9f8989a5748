"""The records of running workers, and signals to their processes and to no others."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from penstock.app import registry
from penstock.app.processes import PROCESSES_FOLDER, ProcessRegistry
from penstock.app.registry import (
    BEAT_SECONDS,
    DRAINING,
    GATHER_SECONDS,
    SERVING,
    STOPPING,
    RecordWriter,
    WorkerRecord,
    Workers,
    is_local,
)
from penstock.events import (
    BatchClaimed,
    BatchProgressed,
    BreakerClosed,
    BreakerOpened,
    ConsumerHalted,
    LeaseLost,
    LedgerAvailable,
    LedgerUnavailable,
    MessagesReceived,
    SettlementFailed,
    SettlementsApplied,
    StoreAvailable,
    StoreUnavailable,
    WorkerDraining,
    WorkerStarted,
)
from penstock.messaging.clock import SystemClock
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.testing.fake_clock import FakeClock
from penstock.worker.liveness import Liveness, Phase
from penstock.worker.shutdown import StopSignal

PATIENCE_SECONDS = 60.0
WORKER = "here-1-A"


@pytest.fixture
def stop() -> StopSignal:
    return StopSignal()


@pytest.fixture
def writer(tmp_path: Path, stop: StopSignal) -> RecordWriter:
    return RecordWriter(tmp_path / "record.json", worker=WORKER, version="1.2", stop=stop, clock=SystemClock())


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs until its first signal."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def received(*ids: str) -> MessagesReceived:
    return MessagesReceived(queue="q", message_ids=ids, redelivered=0)


def test_in_flight_counts_received_messages_that_are_not_settled_or_lost(writer: RecordWriter) -> None:
    writer(WorkerStarted(queues=("q", "r"), concurrency=1))
    writer(received("a", "b", "c", "d"))
    writer(SettlementsApplied(queue="q", message_ids=("a",), settlements=(Ack(),)))
    writer(SettlementFailed(queue="q", message_id="b", attempt=1, operation="ack", reason="away", lost=False))
    writer(SettlementFailed(queue="q", message_id="c", attempt=1, operation="ack", reason="gone", lost=True))
    assert writer.record().in_flight == 2
    writer(LeaseLost(queue="q", message_id="d", attempt=1))
    record = writer.record()
    assert (record.in_flight, record.queues, record.version, record.pid) == (1, ("q", "r"), "1.2", os.getpid())


def test_the_messages_held_for_longest_are_named(writer: RecordWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((30.0, 10.0, 20.0))
    monkeypatch.setattr(writer._clock, "now", lambda: next(times, 99.0))
    for queue, ids in (("q", ("late", "also late")), ("r", ("early",)), ("q", ("later", "early"))):
        writer(MessagesReceived(queue=queue, message_ids=ids, redelivered=0))
    writer(SettlementsApplied(queue="q", message_ids=("late",), settlements=(Release(),)))
    record = writer.record()
    assert [(held.queue, held.message_id, held.since) for held in record.held] == [
        ("r", "early", 10.0),
        ("q", "early", 20.0),
        ("q", "later", 20.0),
        ("q", "also late", 30.0),
    ]
    assert [held.message_id for held in writer._held.oldest(1)] == ["early"]
    assert record.in_flight == 4


def test_a_record_names_the_workers_slots_memory_and_hanging_threads(tmp_path: Path, stop: StopSignal) -> None:
    clock = FakeClock()
    liveness = Liveness(clock)
    liveness.phase = Phase.SERVING
    path = tmp_path / "record.json"
    writer = RecordWriter(path, worker=WORKER, version="1", stop=stop, clock=clock, liveness=liveness)
    assert (writer.record().concurrency, writer.record().troubles) == (None, ())
    writer(WorkerStarted(queues=("q",), concurrency=7))
    liveness.io.give(5.0, "polling q")
    clock.advance(6.0)
    record = writer.record()
    assert record.concurrency == 7
    assert [trouble.partition(" while ")[0] for trouble in record.troubles] == [
        "the thread penstock-io has not moved for 6 s"
    ]
    assert record.memory_bytes is not None
    assert 10e6 < record.memory_bytes < 10e9
    path.write_text(json.dumps(asdict(record)))
    assert registry._read(path) == record


class LateClock(SystemClock):
    """A clock on which the first wait for a change ends ``late_seconds`` late."""

    def __init__(self, late_seconds: float) -> None:
        self._late_seconds = late_seconds
        self._shift_seconds = 0.0
        self.written = threading.Event()

    def monotonic(self) -> float:
        return self._shift_seconds  # stands still but for the wait

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if self._shift_seconds == 0.0:
            self._shift_seconds = seconds + self._late_seconds
            return False
        if seconds != GATHER_SECONDS:
            self.written.set()
            return event.wait(PATIENCE_SECONDS)
        return event.is_set()


def test_a_worker_whose_timers_run_late_records_its_lag(tmp_path: Path, stop: StopSignal) -> None:
    clock = LateClock(late_seconds=3.0)
    writer = RecordWriter(tmp_path / "record.json", worker=WORKER, version="1.2", stop=stop, clock=clock)
    writer.start()
    assert clock.written.wait(PATIENCE_SECONDS)
    writer.end()
    assert json.loads((tmp_path / "record.json").read_text())["lag_seconds"] == pytest.approx(3.0)


def test_records_of_the_previous_version_are_read(tmp_path: Path, writer: RecordWriter) -> None:
    new = ("concurrency", "held", "lag_seconds", "troubles", "memory_bytes", "batches")
    path = tmp_path / "record.json"
    path.write_text(json.dumps({name: value for name, value in asdict(writer.record()).items() if name not in new}))
    found = registry._read(path)
    assert found is not None
    assert (found.held, found.troubles, found.concurrency, found.lag_seconds) == ((), (), None, None)


def test_a_record_has_the_running_batches_with_their_progress(tmp_path: Path, writer: RecordWriter) -> None:
    writer(BatchClaimed(pipeline="clicks", attempt_id="a", objects=3, bytes=900, seconds=0.1))
    writer(BatchProgressed(pipeline="clicks", attempt_id="a", tasks_done=2, tasks=8))
    assert writer.wants(BatchProgressed)
    written = asdict(writer.record())
    assert written["batches"] == (
        {
            "pipeline": "clicks",
            "attempt_id": "a",
            "objects": 3,
            "bytes": 900,
            "tasks_done": 2,
            "tasks": 8,
            "is_written": False,
        },
    )
    written["batches"][0]["of_a_newer_version"] = 1
    path = tmp_path / "record.json"
    path.write_text(json.dumps(written))
    found = registry._read(path)
    assert found is not None
    assert [(batch.attempt_id, batch.tasks_done, batch.tasks) for batch in found.batches] == [("a", 2, 8)]


def test_settled_messages_are_counted_by_queue_and_released_ones_are_not(writer: RecordWriter) -> None:
    settlements: Sequence[Settlement] = (Ack(), DeadLetter(reason="bad"), Release(), Ack())
    for number, settlement in enumerate(settlements):
        queue = "q" if number < 3 else "r"
        writer(SettlementsApplied(queue=queue, message_ids=(f"m{number}",), settlements=(settlement,)))
    writer(LeaseLost(queue="q", message_id="m9", attempt=1))
    assert writer.record().settled == {"q": 2, "r": 1}


def test_a_queue_is_paused_while_its_breaker_is_open(writer: RecordWriter) -> None:
    opened = BreakerOpened(queue="q", handler="h", fingerprint="h|OSError|", failures=10, error="OSError: away")
    writer(opened)
    assert writer.record().paused == {"q": "OSError: away"}
    writer(BreakerClosed(queue="r", handler="i", open_seconds=1.0, probes=1))
    writer(BreakerClosed(queue="q", handler="h", open_seconds=1.0, probes=1))
    assert writer.record().paused == {}


def test_a_queue_is_unserved_until_its_ledger_and_stores_are_available(writer: RecordWriter) -> None:
    writer(LedgerUnavailable(error="refused", queues=("q", "r")))
    writer(StoreUnavailable(store="s3://lake", error="503", queues=("q",)))
    ledger, store = "the ledger is unavailable: refused", "the store s3://lake is unavailable: 503"
    assert writer.record().unserved == {"q": f"{ledger}; {store}", "r": ledger}
    writer(LedgerAvailable(outage_seconds=1.0, queues=("q", "r")))
    assert writer.record().unserved == {"q": store}
    writer(StoreAvailable(store="s3://lake", outage_seconds=1.0, queues=("q",)))
    writer(ConsumerHalted(queue="r", handler="h", error="UsageError: no"))
    assert writer.record().unserved == {"r": "it is halted until a restart: UsageError: no"}


def test_unknown_fields_of_a_newer_workers_record_are_ignored(tmp_path: Path, writer: RecordWriter) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps({**asdict(writer.record()), "new_field": "x"}))
    found = registry._read(path)
    assert found is not None
    assert found.worker == writer.record().worker


def test_the_state_follows_the_stop_signal(writer: RecordWriter, stop: StopSignal) -> None:
    assert writer.record().state == SERVING
    stop.pause()
    assert writer.record().state == DRAINING
    stop.request()
    assert writer.record().state == STOPPING


class GatedClock(SystemClock):
    """A clock whose waits for further changes end when a test sets ``gathered``."""

    def __init__(self) -> None:
        self.gathering = threading.Event()
        self.resting = threading.Semaphore(0)
        self.gathered = threading.Event()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if seconds != GATHER_SECONDS:
            self.resting.release()
            return event.wait(PATIENCE_SECONDS)
        self.gathering.set()
        while not (event.is_set() or self.gathered.is_set()):
            event.wait(0.01)
        return event.is_set()


def stopping_writer(tmp_path: Path, stop: StopSignal, clock: GatedClock) -> RecordWriter:
    writer = RecordWriter(tmp_path / "record.json", worker=WORKER, version="1.2", stop=stop, clock=clock)
    writer.start()
    assert clock.resting.acquire(timeout=PATIENCE_SECONDS)
    stop.request()
    writer(WorkerDraining(reason="SIGTERM", in_flight=0))
    return writer


def test_the_queues_of_a_worker_are_recorded_at_its_start(tmp_path: Path, stop: StopSignal) -> None:
    clock = GatedClock()
    writer = RecordWriter(tmp_path / "record.json", worker=WORKER, version="1.2", stop=stop, clock=clock)
    writer.start()
    writer(WorkerStarted(queues=("q", "r"), concurrency=1))
    assert json.loads((tmp_path / "record.json").read_text())["queues"] == ["q", "r"]
    writer.end()


def test_a_worker_that_ends_at_once_does_not_record_its_stop(tmp_path: Path, stop: StopSignal) -> None:
    clock = GatedClock()
    writer = stopping_writer(tmp_path, stop, clock)
    assert clock.gathering.wait(PATIENCE_SECONDS)
    writer.end()
    assert json.loads((tmp_path / "record.json").read_text())["state"] == SERVING


def test_a_worker_that_takes_time_to_stop_records_it(tmp_path: Path, stop: StopSignal) -> None:
    clock = GatedClock()
    writer = stopping_writer(tmp_path, stop, clock)
    clock.gathered.set()
    assert clock.resting.acquire(timeout=PATIENCE_SECONDS)
    assert json.loads((tmp_path / "record.json").read_text())["state"] == STOPPING
    writer.end()


class OneBeatClock(SystemClock):
    """A clock whose waits end at once until a record was written."""

    def __init__(self) -> None:
        self.seconds: list[float] = []  # the waits before the record
        self.over = threading.Event()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if len(self.seconds) < 2:
            self.seconds.append(seconds)
            return event.is_set()
        self.over.set()
        return event.wait(PATIENCE_SECONDS)


def test_an_unchanged_record_is_written_once_per_beat(tmp_path: Path, stop: StopSignal) -> None:
    clock = OneBeatClock()
    writer = RecordWriter(tmp_path / "record.json", worker=WORKER, version="1.2", stop=stop, clock=clock)
    writer.start()
    assert clock.over.wait(PATIENCE_SECONDS)
    writer.end()
    assert sum(clock.seconds) == pytest.approx(BEAT_SECONDS)


def register(state: Path, record: WorkerRecord) -> ProcessRegistry:
    registry = ProcessRegistry(state / PROCESSES_FOLDER)
    registry.record(record.worker).write_text(json.dumps(asdict(record)))
    return registry


def test_only_living_workers_are_listed_and_a_record_is_deleted_with_its_lock(
    tmp_path: Path, writer: RecordWriter
) -> None:
    record = writer.record()
    registry = register(tmp_path, record)
    workers = Workers(tmp_path)
    assert workers.records() == []
    with registry.register(WORKER):
        assert workers.records() == [record]
        assert workers.silent() == []
        with registry.register("an-ingest"):
            assert workers.silent() == ["an-ingest"]
    assert list((tmp_path / PROCESSES_FOLDER).iterdir()) == []


def test_listing_workers_creates_no_data_directory(tmp_path: Path) -> None:
    assert Workers(tmp_path / "state").records() == ()
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"worker": "x"}', '{"queues": 3}'])
def test_an_unreadable_record_is_not_listed(tmp_path: Path, text: str) -> None:
    registry = ProcessRegistry(tmp_path / PROCESSES_FOLDER)
    registry.record(WORKER).write_text(text)
    with registry.register(WORKER):
        assert Workers(tmp_path).records() == []
        assert Workers(tmp_path).silent() == [WORKER]


def test_a_process_whose_lock_is_free_is_never_signalled(
    tmp_path: Path, writer: RecordWriter, other_process: subprocess.Popen[bytes]
) -> None:
    record = replace(writer.record(), pid=other_process.pid)  # the pid belongs to another process by now
    registry = register(tmp_path, record)
    assert not Workers(tmp_path).signal(record, signal.SIGTERM)
    (tmp_path / PROCESSES_FOLDER / f"{WORKER}.lock").touch()  # a lock file without a lock: its owner was killed
    assert not Workers(tmp_path).signal(record, signal.SIGTERM)
    assert other_process.poll() is None
    with registry.register(WORKER):
        assert Workers(tmp_path).signal(record, signal.SIGTERM)
    assert other_process.wait(60) == -signal.SIGTERM


def test_a_process_that_has_ended_is_not_signalled(
    tmp_path: Path, writer: RecordWriter, other_process: subprocess.Popen[bytes]
) -> None:
    other_process.kill()
    other_process.wait(60)
    record = replace(writer.record(), pid=other_process.pid)
    with register(tmp_path, record).register(WORKER):
        assert not Workers(tmp_path).signal(record, signal.SIGTERM)


def test_processes_of_other_hosts_and_containers_are_not_local(writer: RecordWriter) -> None:
    record = writer.record()
    assert is_local(record)
    assert not is_local(replace(record, host="elsewhere"))
    assert not is_local(replace(record, namespace="pid:[1]"))
