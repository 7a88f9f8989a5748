"""What a dead worker held is freed by any other, and a worker is known while it lives."""

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


def nobody(event: Event) -> None:
    raise AssertionError(event)


def no_ledger() -> Ledger:
    raise AssertionError("nobody needs a ledger")


def test_a_killed_workers_message_and_work_are_free_long_before_their_leases_end(tmp_path: Path) -> None:
    dead = SqliteBroker(tmp_path / "queue.db", holder="gone")
    dead.send("q", [Outgoing(body=b"{}")])
    assert dead.receive("q", messages_max=1, lease_seconds=600.0)
    dead.close()
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.begin_work("make", "key", attempt_id="a", worker="gone", lease_seconds=600.0)
    ProcessRegistry(tmp_path / PROCESSES_FOLDER)
    (tmp_path / PROCESSES_FOLDER / "gone.lock").touch()
    (tmp_path / "scratch" / "gone").mkdir(parents=True)
    broker = SqliteBroker(tmp_path / "queue.db", holder="me")
    made = presence(tmp_path, broker)
    with made.register(ledger=lambda: ledger, emit=nobody, random=lambda: 0.5):
        assert broker.receive("q", messages_max=1, lease_seconds=5.0, wait_seconds=DEADLINE_SECONDS)
    assert ledger.works(state=WorkState.OPEN) == []
    assert not (tmp_path / "scratch" / "gone").exists()
    broker.close()
    ledger.close()


def test_without_a_ledgers_file_none_is_made(tmp_path: Path) -> None:
    registry = ProcessRegistry(tmp_path / PROCESSES_FOLDER)
    (tmp_path / PROCESSES_FOLDER / "gone.lock").touch()
    swept = threading.Event()

    class Watched(SqliteBroker):
        def release_holder(self, holder: str) -> int:
            swept.set()
            return super().release_holder(holder)

    watched = Watched(tmp_path / "queue.db", holder="me")
    made = presence(tmp_path, watched)
    with made.register(ledger=no_ledger, emit=nobody, random=lambda: 0.5):
        assert swept.wait(DEADLINE_SECONDS)
    assert registry.living() == []
    assert not (tmp_path / "ledger.db").exists()
    watched.close()


def test_a_worker_is_known_exactly_while_it_lives(tmp_path: Path) -> None:
    broker = SqliteBroker(tmp_path / "queue.db", holder="me")
    made = presence(tmp_path, broker)
    assert len(made.listeners) == 1
    with made.register(ledger=no_ledger, emit=nobody, random=lambda: 0.5):
        assert [record.worker for record in Workers(tmp_path).records()] == ["me"]
    assert Workers(tmp_path).records() == []
    broker.close()


def test_any_broker_that_knows_who_holds_what_is_told_of_the_dead_of_this_host(tmp_path: Path) -> None:
    told: list[str] = []
    heard = threading.Event()

    class OnAnotherHost:
        capabilities = REDIS

        def release_holder(self, holder: str) -> int:
            told.append(holder)
            heard.set()
            return 1

    ProcessRegistry(tmp_path / PROCESSES_FOLDER)
    (tmp_path / PROCESSES_FOLDER / "gone.lock").touch()
    made = presence(tmp_path, cast(Broker, OnAnotherHost()))
    assert len(made.listeners) == 1
    with made.register(ledger=no_ledger, emit=nobody, random=lambda: 0.5):
        assert heard.wait(DEADLINE_SECONDS)
        assert [record.worker for record in Workers(tmp_path).records()] == ["me"]
    assert told == ["gone"]


def test_beside_a_broker_that_does_not_know_who_holds_what_the_dead_are_freed_as_well(tmp_path: Path) -> None:
    """Its messages come back by themselves; work in the ledger and files of this host do not."""
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.begin_work("make", "key", attempt_id="a", worker="gone", lease_seconds=600.0)
    registry = ProcessRegistry(tmp_path / PROCESSES_FOLDER)
    (tmp_path / PROCESSES_FOLDER / "gone.lock").touch()
    swept = threading.Event()

    class Watched(Ledger):
        def abandon_worker_works(self, worker: str) -> int:
            freed = super().abandon_worker_works(worker)
            swept.set()
            return freed

    made = presence(tmp_path, cast(Broker, SimpleNamespace(capabilities=REDIS)))
    assert len(made.listeners) == 1
    with made.register(ledger=lambda: Watched(ledger.database), emit=nobody, random=lambda: 0.5):
        assert swept.wait(DEADLINE_SECONDS)
        assert [record.worker for record in Workers(tmp_path).records()] == ["me"]
    assert registry.living() == []
    assert ledger.works(state=WorkState.OPEN) == []
    ledger.close()


def test_a_broker_that_is_away_leaves_the_dead_to_the_next_sweep(tmp_path: Path) -> None:
    tries: list[str] = []
    told: list[Event] = []
    again = threading.Event()

    class Away:
        capabilities = REDIS

        def release_holder(self, holder: str) -> int:
            tries.append(holder)
            if len(tries) == 1:
                raise TemporaryError("away")
            again.set()
            return 0

    ProcessRegistry(tmp_path / PROCESSES_FOLDER)
    (tmp_path / PROCESSES_FOLDER / "gone.lock").touch()
    made = presence(tmp_path, cast(Broker, Away()))
    with made.register(ledger=no_ledger, emit=told.append, random=lambda: -0.49):
        assert again.wait(DEADLINE_SECONDS)
    assert (tries, [event.error for event in told if isinstance(event, JobFailed)]) == (
        ["gone", "gone"],
        ["TemporaryError: away"],
    )


def test_a_queue_in_memory_leaves_no_trace(tmp_path: Path) -> None:
    state = tmp_path / "state"
    made = presence(tmp_path, MemoryBroker(), state=state)
    assert made.listeners == ()
    with made.register(ledger=no_ledger, emit=nobody, random=lambda: 0.5):
        assert not state.exists()


def test_a_state_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    broker = SqliteBroker(tmp_path / "queue.db", holder="me")
    made = presence(tmp_path, broker, state=tmp_path / "file")
    with (
        pytest.raises(ConfigurationError, match="file cannot be written"),
        made.register(ledger=no_ledger, emit=nobody, random=lambda: 0.5),
    ):
        pass
    broker.close()


def test_a_sweep_that_fails_is_told_and_tried_again() -> None:
    told: list[Event] = []
    again = threading.Event()
    tries = 0

    def sweep() -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RuntimeError("away")
        again.set()
        return 0

    house = Housekeeper(sweep, every_seconds=0.01, clock=SystemClock(), random=lambda: 0.5, emit=told.append)
    house.start()
    assert again.wait(DEADLINE_SECONDS)
    house.end()
    assert told == [JobFailed(job="housekeeping", error="RuntimeError: away")]


def test_a_function_that_changes_the_working_folder_takes_no_worker_out_of_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    broker = SqliteBroker(tmp_path / "queue.db", holder="me")
    made = presence(tmp_path, broker, state=Path("state"))
    with made.register(ledger=no_ledger, emit=nobody, random=lambda: 0.5):
        monkeypatch.chdir(elsewhere)
        assert ProcessRegistry(tmp_path / "state" / PROCESSES_FOLDER).living() == ["me"]
    assert list((tmp_path / "state" / PROCESSES_FOLDER).iterdir()) == []
    assert list(elsewhere.iterdir()) == []
    broker.close()
