"""Any worker frees the messages and claims of a dead worker; a worker is registered while it lives."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.app.housekeeping import Housekeeper, Presence
from penstock.app.processes import PROCESSES_FOLDER, ProcessRegistry
from penstock.app.registry import Workers
from penstock.brokers.capabilities import REDIS
from penstock.brokers.memory.broker import MemoryBroker
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.config import Settings
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import Event, JobFailed
from penstock.ledger import Ledger
from penstock.ledger.records import WorkState
from penstock.messaging.broker import Broker
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.worker.shutdown import StopSignal

DEADLINE_SECONDS = 60.0


def presence(tmp_path: Path, broker: Broker, *, state: Path | None = None) -> Presence:
    settings = Settings(data_dir=str(state or tmp_path), ledger=f"sqlite:///{tmp_path}/ledger.db", worker_lease=600.0)
    return Presence(settings=settings, broker=broker, worker="me", stop=StopSignal(), clock=SystemClock())


def fail(event: Event) -> None:
    raise AssertionError(event)


def no_ledger() -> Ledger:
    raise AssertionError("the ledger was opened")


def test_a_killed_workers_message_and_claim_are_freed_long_before_their_leases_end(tmp_path: Path) -> None:
    dead = SqliteBroker(tmp_path / "queue.db", holder="dead")
    dead.send("q", [Outgoing(body=b"{}")])
    assert dead.receive("q", messages_max=1, lease_seconds=600.0)
    dead.close()
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.begin_work("make", "key", attempt_id="a", worker="dead", lease_seconds=600.0)
    ProcessRegistry(tmp_path / PROCESSES_FOLDER)
    (tmp_path / PROCESSES_FOLDER / "dead.lock").touch()
    (tmp_path / "scratch" / "dead").mkdir(parents=True)
    broker = SqliteBroker(tmp_path / "queue.db", holder="me")
    worker_presence = presence(tmp_path, broker)
    with worker_presence.register(ledger=lambda: ledger, emit=fail, random=lambda: 0.5):
        assert broker.receive("q", messages_max=1, lease_seconds=5.0, wait_seconds=DEADLINE_SECONDS)
    assert ledger.works(state=WorkState.OPEN) == []
    assert not (tmp_path / "scratch" / "dead").exists()
    broker.close()
    ledger.close()


def test_a_sweep_creates_no_ledger_file(tmp_path: Path) -> None:
    registry = ProcessRegistry(tmp_path / PROCESSES_FOLDER)
    (tmp_path / PROCESSES_FOLDER / "dead.lock").touch()
    swept = threading.Event()

    class RecordingBroker(SqliteBroker):
        def release_holder(self, holder: str) -> int:
            swept.set()
            return super().release_holder(holder)

    broker = RecordingBroker(tmp_path / "queue.db", holder="me")
    worker_presence = presence(tmp_path, broker)
    with worker_presence.register(ledger=no_ledger, emit=fail, random=lambda: 0.5):
        assert swept.wait(DEADLINE_SECONDS)
    assert registry.living() == []
    assert not (tmp_path / "ledger.db").exists()
    broker.close()


def test_a_worker_is_registered_exactly_while_it_lives(tmp_path: Path) -> None:
    broker = SqliteBroker(tmp_path / "queue.db", holder="me")
    worker_presence = presence(tmp_path, broker)
    assert len(worker_presence.listeners) == 1
    with worker_presence.register(ledger=no_ledger, emit=fail, random=lambda: 0.5):
        assert [record.worker for record in Workers(tmp_path).records()] == ["me"]
    assert Workers(tmp_path).records() == []
    broker.close()


def test_a_broker_on_another_host_releases_the_messages_of_dead_workers_of_this_host(tmp_path: Path) -> None:
    holders: list[str] = []
    released = threading.Event()

    class OnAnotherHost:
        capabilities = REDIS

        def release_holder(self, holder: str) -> int:
            holders.append(holder)
            released.set()
            return 1

    ProcessRegistry(tmp_path / PROCESSES_FOLDER)
    (tmp_path / PROCESSES_FOLDER / "dead.lock").touch()
    worker_presence = presence(tmp_path, cast(Broker, OnAnotherHost()))
    assert len(worker_presence.listeners) == 1
    with worker_presence.register(ledger=no_ledger, emit=fail, random=lambda: 0.5):
        assert released.wait(DEADLINE_SECONDS)
        assert [record.worker for record in Workers(tmp_path).records()] == ["me"]
    assert holders == ["dead"]


def test_claims_of_dead_workers_are_freed_if_the_broker_does_not_record_holders(tmp_path: Path) -> None:
    """The broker makes messages visible again automatically; claims in the ledger and files of this host would stay."""
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.begin_work("make", "key", attempt_id="a", worker="dead", lease_seconds=600.0)
    registry = ProcessRegistry(tmp_path / PROCESSES_FOLDER)
    (tmp_path / PROCESSES_FOLDER / "dead.lock").touch()
    swept = threading.Event()

    class RecordingLedger(Ledger):
        def abandon_worker_works(self, worker: str) -> int:
            freed = super().abandon_worker_works(worker)
            swept.set()
            return freed

    worker_presence = presence(tmp_path, cast(Broker, SimpleNamespace(capabilities=REDIS)))
    assert len(worker_presence.listeners) == 1
    with worker_presence.register(ledger=lambda: RecordingLedger(ledger.database), emit=fail, random=lambda: 0.5):
        assert swept.wait(DEADLINE_SECONDS)
        assert [record.worker for record in Workers(tmp_path).records()] == ["me"]
    assert registry.living() == []
    assert ledger.works(state=WorkState.OPEN) == []
    ledger.close()


def test_a_sweep_during_an_outage_of_the_broker_is_repeated(tmp_path: Path) -> None:
    attempts: list[str] = []
    events: list[Event] = []
    again = threading.Event()

    class Away:
        capabilities = REDIS

        def release_holder(self, holder: str) -> int:
            attempts.append(holder)
            if len(attempts) == 1:
                raise TemporaryError("away")
            again.set()
            return 0

    ProcessRegistry(tmp_path / PROCESSES_FOLDER)
    (tmp_path / PROCESSES_FOLDER / "dead.lock").touch()
    worker_presence = presence(tmp_path, cast(Broker, Away()))
    with worker_presence.register(ledger=no_ledger, emit=events.append, random=lambda: -0.49):
        assert again.wait(DEADLINE_SECONDS)
    assert (attempts, [event.error for event in events if isinstance(event, JobFailed)]) == (
        ["dead", "dead"],
        ["TemporaryError: away"],
    )


def test_a_memory_broker_creates_no_data_directory(tmp_path: Path) -> None:
    state = tmp_path / "state"
    worker_presence = presence(tmp_path, MemoryBroker(), state=state)
    assert worker_presence.listeners == ()
    with worker_presence.register(ledger=no_ledger, emit=fail, random=lambda: 0.5):
        assert not state.exists()


def test_a_data_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    broker = SqliteBroker(tmp_path / "queue.db", holder="me")
    worker_presence = presence(tmp_path, broker, state=tmp_path / "file")
    with (
        pytest.raises(ConfigurationError, match="file cannot be written"),
        worker_presence.register(ledger=no_ledger, emit=fail, random=lambda: 0.5),
    ):
        pass
    broker.close()


def test_a_failed_sweep_is_reported_and_retried() -> None:
    events: list[Event] = []
    again = threading.Event()
    attempts = 0

    def sweep() -> int:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise RuntimeError("away")
        again.set()
        return 0

    housekeeper = Housekeeper(sweep, every_seconds=0.01, clock=SystemClock(), random=lambda: 0.5, emit=events.append)
    housekeeper.start()
    assert again.wait(DEADLINE_SECONDS)
    housekeeper.end()
    assert events == [JobFailed(job="housekeeping", error="RuntimeError: away")]


def test_a_worker_stays_registered_if_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    broker = SqliteBroker(tmp_path / "queue.db", holder="me")
    worker_presence = presence(tmp_path, broker, state=Path("state"))
    with worker_presence.register(ledger=no_ledger, emit=fail, random=lambda: 0.5):
        monkeypatch.chdir(elsewhere)
        assert ProcessRegistry(tmp_path / "state" / PROCESSES_FOLDER).living() == ["me"]
    assert list((tmp_path / "state" / PROCESSES_FOLDER).iterdir()) == []
    assert list(elsewhere.iterdir()) == []
    broker.close()
