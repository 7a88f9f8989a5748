"""The archiving of ledger rows as a job of workers."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.conformance.ledger.ledger_harness import PIPELINE, candidate, outcome
from tests.conformance.ledger.ledger_harness import LedgerHarness as Desk

from penstock import App
from penstock.app.jobs.archive import MORE_SECONDS, PipelineArchive, archive_location, archive_pass
from penstock.app.jobs.elected import TaskRun
from penstock.app.service_context import service_context
from penstock.app.serving import serve
from penstock.config import Settings, load_settings
from penstock.errors import ConfigurationError
from penstock.events import Bus, Event, ObjectsArchived
from penstock.ledger import Ledger
from penstock.messaging.clock import SystemClock
from penstock.messaging.tracing import NO_TRACING
from penstock.pipeline.maintenance import archive as archiving
from penstock.storage.local import LocalFiles
from penstock.worker.shutdown import StopSignal


@pytest.fixture
def desk() -> Iterator[Desk]:
    ledger = Ledger.open("sqlite://")
    ledger.ensure_pipeline(PIPELINE)
    yield Desk(ledger)
    ledger.close()


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def store(tmp_path: Path) -> PipelineArchive:
    return PipelineArchive(pipeline=PIPELINE, location=LocalFiles(tmp_path / "archive"), cleans_up=False)


def archive_once(
    desk: Desk, events: list[Event], store: PipelineArchive, stop: StopSignal | None = None
) -> float | None:
    app = App(settings=Settings(broker="memory://"))
    context = service_context(
        app,
        sessions=cast(Any, SimpleNamespace(session=None, check=None)),
        bus=Bus(events.append),
        clock=SystemClock(),
        stop=StopSignal(),
        tracing=NO_TRACING,
    )
    return archive_pass(store, replace(context, ledger=lambda: desk.ledger), older_than_seconds=0.0)(
        TaskRun(stop or StopSignal(), worker_stop=context.stop, clock=context.clock)
    )


def test_a_pass_archives_old_rows_and_emits_an_event(desk: Desk, events: list[Event], store: PipelineArchive) -> None:
    desk.process("a", "b")
    assert archive_once(desk, events, store) is None
    assert events == [ObjectsArchived(pipeline=PIPELINE, objects=2, files=1)]
    assert archive_once(desk, events, store) is None
    assert len(events) == 1


def test_a_pass_is_bounded_and_continues_later(
    desk: Desk, events: list[Event], store: PipelineArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving.Archivist.run, "__kwdefaults__", {"files_max": None, "objects_max": 1})
    for number in range(6):
        desk.process(f"{number}")
    assert archive_once(desk, events, store) == MORE_SECONDS
    assert archive_once(desk, events, store) is None
    assert [event.objects for event in events if isinstance(event, ObjectsArchived)] == [5, 1]


def test_a_pass_that_is_stopped_archives_nothing_more(desk: Desk, events: list[Event], store: PipelineArchive) -> None:
    stop = StopSignal()
    desk.process("a")
    stop.request()
    archive_once(desk, events, store, stop)
    assert events == []
    assert archive_once(desk, events, store) is None
    assert events == [ObjectsArchived(pipeline=PIPELINE, objects=1, files=1)]


def test_rows_are_archived_after_a_declared_cleanup(desk: Desk, events: list[Event], store: PipelineArchive) -> None:
    desk.process("a")
    waiting = PipelineArchive(pipeline=PIPELINE, location=store.location, cleans_up=True)
    unknown = PipelineArchive(pipeline=PIPELINE, location=store.location, cleans_up=None)
    assert waiting.up_to_seq(desk.ledger, older_than_seconds=0.0) == 0
    assert unknown.up_to_seq(desk.ledger, older_than_seconds=0.0) == 1
    desk.process("b")
    desk.ledger.advance_progress(PIPELINE, "cleanup", 1)
    assert waiting.up_to_seq(desk.ledger, older_than_seconds=0.0) == 1
    assert unknown.up_to_seq(desk.ledger, older_than_seconds=0.0) == 1
    assert store.up_to_seq(desk.ledger, older_than_seconds=0.0) == 2


def test_a_worker_archives_the_rows_of_its_object_handlers(tmp_path: Path) -> None:
    settings = Settings(
        broker=f"sqlite:///{tmp_path / 'queue.db'}",
        ledger=f"sqlite:///{tmp_path / 'ledger.db'}",
        data_dir=str(tmp_path / "state"),
        objects_archive_after=15 * 86_400.0,
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


def test_an_archive_age_below_the_minimum_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"objects\.archive_after"):
        load_settings(objects_archive_after="14d")


def test_archives_are_in_the_configured_or_the_data_directory(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path / "state"), objects_archive=str(tmp_path / "cold"))
    assert str(archive_location("clicks", settings, None)) == str(tmp_path / "cold" / "clicks")
    escaped = str(archive_location("file:///x", settings, None))
    assert escaped.startswith(f"{tmp_path}/cold/")
    assert "file:" not in escaped.removeprefix(str(tmp_path))
    assert str(archive_location("clicks", Settings(data_dir=str(tmp_path / "state")), None)).endswith(
        "state/archive/clicks"
    )
