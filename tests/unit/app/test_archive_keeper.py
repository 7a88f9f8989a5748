"""Archiving beside a worker: bounded, one at a time, and told."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.ledger.desk import PIPELINE, Desk, candidate, outcome

from penstock import App
from penstock.app.jobs.archive import ONE_AT_A_TIME, ArchiveKeeper, PipelineArchive, archive_place
from penstock.app.serving import serve
from penstock.config import Settings, load_settings
from penstock.errors import ConfigurationError
from penstock.events import Bus, Event, ObjectsArchived, UpkeepFailed
from penstock.ledger import Ledger
from penstock.messaging.clock import SystemClock
from penstock.messaging.steps import no_probe
from penstock.pipeline.maintenance import archive as archiving
from penstock.storage.local import LocalFiles
from penstock.worker.shutdown import StopSignal

DEADLINE_SECONDS = 60.0


@pytest.fixture
def desk() -> Iterator[Desk]:
    ledger = Ledger.open("sqlite://")
    ledger.ensure_pipeline(PIPELINE)
    yield Desk(ledger)
    ledger.close()


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def store(tmp_path: Path) -> PipelineArchive:
    return PipelineArchive(pipeline=PIPELINE, place=LocalFiles(tmp_path / "archive"), cleans_up=False)


def keeper(desk: Desk, told: list[Event], *stores: PipelineArchive, **fields: Any) -> ArchiveKeeper:
    given: dict[str, Any] = {
        "ledger": lambda: desk.ledger,
        "worker": "w-1",
        "older_than_seconds": 0.0,
        "stop": StopSignal(),
        "bus": Bus(told.append),
        "probe": no_probe,
        "clock": SystemClock(),
        "random": lambda: 0.5,
    }
    return ArchiveKeeper(stores, **(given | fields))


def test_a_pass_archives_what_is_old_and_tells_of_it(desk: Desk, told: list[Event], store: PipelineArchive) -> None:
    desk.process("a", "b")
    one = keeper(desk, told, store)
    assert one.once() is False
    assert told == [ObjectsArchived(pipeline=PIPELINE, objects=2, files=1)]
    assert one.once() is False
    assert len(told) == 1


def test_a_pass_is_bounded_and_says_that_there_is_more(
    desk: Desk, told: list[Event], store: PipelineArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving.Archivist.run, "__kwdefaults__", {"files_max": None, "objects_max": 1})
    for number in range(6):
        desk.process(f"{number}")
    one = keeper(desk, told, store)
    assert one.once() is True
    assert one.once() is False
    assert [event.objects for event in told if isinstance(event, ObjectsArchived)] == [5, 1]


def test_while_another_worker_is_at_it_nothing_is_done(desk: Desk, told: list[Event], store: PipelineArchive) -> None:
    desk.process("a")
    desk.begin(PIPELINE, handler=ONE_AT_A_TIME, worker="w-2", attempt="other")
    assert keeper(desk, told, store).once() is False
    assert told == []
    assert desk.ledger.end_work("other", outcome="given_back", reason="done")
    keeper(desk, told, store).once()
    keeper(desk, told, store).once()
    assert len(told) == 1, "and it is given back each time"


def test_a_failure_is_told_once_and_does_not_stop_the_others(
    desk: Desk, told: list[Event], store: PipelineArchive, tmp_path: Path
) -> None:
    desk.process("a")
    (tmp_path / "file").touch()
    broken = PipelineArchive(pipeline="other", place=LocalFiles(tmp_path / "file" / "below"), cleans_up=False)
    desk.ledger.ensure_pipeline("other")
    other = Desk(desk.ledger, numbers=desk.numbers)
    claim = other.claim([candidate("of another")], pipeline="other")
    desk.ledger.commit(outcome(claim, pipeline="other"))
    one = keeper(desk, told, broken, store)
    one.once()
    one.once()
    failures = [event for event in told if isinstance(event, UpkeepFailed)]
    assert [event.handler for event in failures] == ["archive"]
    assert "other: " in failures[0].error
    assert any(isinstance(event, ObjectsArchived) for event in told)


def test_rows_wait_for_a_declared_cleanup(desk: Desk, told: list[Event], store: PipelineArchive) -> None:
    desk.process("a")
    waiting = PipelineArchive(pipeline=PIPELINE, place=store.place, cleans_up=True)
    unknown = PipelineArchive(pipeline=PIPELINE, place=store.place, cleans_up=None)
    assert waiting.up_to_seq(desk.ledger, older_than_seconds=0.0) == 0
    assert unknown.up_to_seq(desk.ledger, older_than_seconds=0.0) == 1
    desk.process("b")
    desk.ledger.advance_progress(PIPELINE, "cleanup", 1)
    assert waiting.up_to_seq(desk.ledger, older_than_seconds=0.0) == 1
    assert unknown.up_to_seq(desk.ledger, older_than_seconds=0.0) == 1
    assert store.up_to_seq(desk.ledger, older_than_seconds=0.0) == 2


def test_it_runs_beside_a_block_and_ends_with_it(desk: Desk, store: PipelineArchive) -> None:
    desk.process("a")
    archived = threading.Event()
    bus = Bus(lambda event: archived.set() if isinstance(event, ObjectsArchived) else None)
    with keeper(desk, [], store, bus=bus).beside():
        assert archived.wait(DEADLINE_SECONDS)
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-archive"]


def test_a_worker_archives_what_its_object_handlers_did(tmp_path: Path) -> None:
    settings = Settings(
        broker=f"sqlite:///{tmp_path / 'queue.db'}",
        ledger=f"sqlite:///{tmp_path / 'ledger.db'}",
        state=str(tmp_path / "state"),
        archive_after_days=15,
    )
    app = App(settings=settings)

    @app.object_handler("files", source=str(tmp_path))
    def read(obj: Any) -> None:
        obj.read()

    desk = Desk(app.ledger)
    app.ledger.ensure_pipeline("read")
    desk.ledger.commit(outcome(desk.claim([candidate("of another")], pipeline="read"), pipeline="read"))
    with app.ledger.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE batches SET committed_at = committed_at - 2000000")
    archived = threading.Event()
    stop = StopSignal()

    def hear(event: Event) -> None:
        if isinstance(event, ObjectsArchived):
            archived.set()

    serve(app, stop=stop, listeners=(hear,), until=archived.is_set)
    assert archived.is_set()
    assert app.ledger.archives.count("read") == 1
    assert len(list((tmp_path / "state" / "archive" / "read").iterdir())) == 1
    app.close()


def test_an_age_below_the_least_one_is_no_setting() -> None:
    with pytest.raises(ConfigurationError, match="archive_after_days"):
        load_settings(archive_after_days=14)


def test_where_the_files_lie(tmp_path: Path) -> None:
    settings = Settings(state=str(tmp_path / "state"), archive=str(tmp_path / "cold"))
    assert str(archive_place("clicks", settings, None)) == str(tmp_path / "cold" / "clicks")
    strange = str(archive_place("file:///x", settings, None))
    assert strange.startswith(f"{tmp_path}/cold/")
    assert "file:" not in strange.removeprefix(str(tmp_path))
    assert str(archive_place("clicks", Settings(state=str(tmp_path / "state")), None)).endswith("state/archive/clicks")
