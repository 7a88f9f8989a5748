"""Garbage collection beside a worker: one worker at a time, and a failure is an event."""

from typing import cast

from penstock.app.jobs.gc import LEASE_SECONDS, ONE_AT_A_TIME, GarbageKeeper
from penstock.app.tables import Tables
from penstock.errors import TemporaryError
from penstock.events import Bus, Event, GarbageCollected, UpkeepFailed
from penstock.ledger import Ledger
from penstock.pipeline.maintenance.gc import CollectedGarbage
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal


class FakeTables:
    """Tables with some garbage."""

    def __init__(self) -> None:
        self.collected = 0
        self.error: Exception | None = None

    def collect_garbage(self, *, dry_run: bool) -> CollectedGarbage:
        assert not dry_run
        if self.error is not None:
            raise self.error
        self.collected += 1
        return CollectedGarbage(attempts=1, compactions=2, files=3, bytes=4, unknown=())


class Scene:
    """Keepers of one pipeline, in workers that share a ledger."""

    def __init__(self) -> None:
        self.ledger = Ledger.open("sqlite://")
        self.tables = FakeTables()
        self.heard: list[Event] = []
        self.stop = StopSignal()

    def keeper(self, worker: str = "w1") -> GarbageKeeper:
        return GarbageKeeper(
            lambda: {"clicks": cast(Tables, self.tables)},
            ledger=lambda: self.ledger,
            worker=worker,
            stop=self.stop,
            bus=Bus(self.heard.append),
            clock=FakeClock(),
            random=lambda: 0.5,
        )


def test_what_was_deleted_is_an_event_and_the_next_pass_is_free_to_begin() -> None:
    scene = Scene()
    scene.keeper().once()
    scene.keeper("w2").once()
    assert scene.tables.collected == 2
    assert scene.heard == [GarbageCollected(pipeline="clicks", attempts=1, compactions=2, files=3, bytes=4)] * 2


def test_while_another_worker_collects_nothing_is_done() -> None:
    scene = Scene()
    scene.ledger.begin_work(ONE_AT_A_TIME, "clicks", attempt_id="another", worker="w2", lease_seconds=LEASE_SECONDS)
    scene.keeper().once()
    assert (scene.tables.collected, scene.heard) == (0, [])


def test_a_failure_is_an_event_once_and_the_lease_is_given_back() -> None:
    scene = Scene()
    scene.tables.error = TemporaryError("the store is away")
    keeper = scene.keeper()
    keeper.once()
    keeper.once()
    assert [type(event) for event in scene.heard] == [UpkeepFailed]
    scene.tables.error = None
    scene.keeper("w2").once()
    assert scene.tables.collected == 1


def test_a_worker_that_stops_begins_no_pass() -> None:
    scene = Scene()
    scene.stop.request()
    scene.keeper().once()
    assert scene.tables.collected == 0
