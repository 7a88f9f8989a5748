"""Objects that seem deleted or replaced, and exist after all: each notified and existing object is read, once."""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.services.aws_server import AwsServer

from penstock import App
from penstock.app.serving import serve
from penstock.brokers.memory.broker import MemoryBroker
from penstock.config import Settings
from penstock.events import Event, ObjectInterrupted, ObjectSkipped, StoreUnavailable
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectState
from penstock.messaging.message import Outgoing
from penstock.worker.shutdown import StopSignal

QUEUE, HANDLER, BUCKET = "arrivals", "load", "landing"
DEADLINE_SECONDS = 180.0


@dataclass
class Scene:
    """An object handler that records what it reads."""

    app: App
    ledger: Ledger
    broker: MemoryBroker
    source: str
    read: list[bytes] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    after_read: Callable[[], None] = lambda: None

    def enqueue(self) -> int:
        return int(self.app.announce(QUEUE, self.source))

    def work(self, until: Callable[[], bool] | None = None) -> None:
        """Run a worker until its queue is empty, or the condition is true."""
        idle = until or (lambda: not self.broker.stats(QUEUE).messages)
        stop = StopSignal()
        bound = threading.Timer(DEADLINE_SECONDS, stop.request)
        bound.start()
        try:
            serve(self.app, stop=stop, until=idle, resident=False)
        finally:
            bound.cancel()
        assert not stop.requested, f"the condition never became true: {self.states}"

    def events_of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def states(self) -> dict[str, int]:
        return {state.value: count for state, count in self.ledger.counts(HANDLER).items() if count}


@pytest.fixture(autouse=True)
def short_check_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.notifications.DELETED_AFTER_SECONDS", 0.2)


def make_scene(tmp_path: Path, source: str) -> Scene:
    broker, ledger = MemoryBroker(), Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    events: list[Event] = []
    settings = Settings(data_dir=str(tmp_path / "state"), objects_retry_base=0.05, objects_max_retry_wait=0.1)
    app = App(broker=broker, ledger=ledger, settings=settings, listeners=[events.append])
    scene = Scene(app, ledger, broker, source, events=events)

    def load(each: Any) -> None:
        scene.read.append(each.read())
        scene.after_read()

    app.object_handler(QUEUE, name=HANDLER, source=source, retry_base=0.05, max_retry_wait=0.1)(load)
    return scene


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    return inbox


@pytest.fixture
def scene(tmp_path: Path, folder: Path) -> Iterator[Scene]:
    scene = make_scene(tmp_path, str(folder))
    with closing(scene.ledger):
        yield scene


def test_a_file_moved_out_and_back_is_read_once(scene: Scene, folder: Path, tmp_path: Path) -> None:
    (folder / "stays").write_text("s")
    (folder / "a").write_text("hello")
    scene.enqueue()
    shutil.move(folder / "a", tmp_path / "a")
    scene.work()
    assert scene.states == {"processed": 1, "gone": 1}
    shutil.move(tmp_path / "a", folder / "a")
    for _ in range(2):
        scene.enqueue()
        scene.work()
    assert sorted(scene.read) == [b"hello", b"s"]
    assert scene.states == {"processed": 2}


def test_a_file_replaced_and_put_back_is_read(scene: Scene, folder: Path) -> None:
    (folder / "a").write_text("first")
    kept = (folder / "a").stat()
    scene.enqueue()
    (folder / "a").write_text("replaced")
    scene.work()
    assert scene.states == {"superseded": 1}
    (folder / "a").write_text("first")
    os.utime(folder / "a", ns=(kept.st_atime_ns, kept.st_mtime_ns))
    scene.enqueue()
    scene.work()
    assert scene.read == [b"first"]


@pytest.mark.parametrize("left_behind", [False, True], ids=["no folder", "an empty mount point"])
def test_while_the_source_is_unmounted_no_file_is_recorded_as_deleted(
    scene: Scene, folder: Path, tmp_path: Path, left_behind: bool
) -> None:
    for number in range(20):
        (folder / f"{number}").write_text(f"{number}")
    scene.enqueue()

    def unmount() -> None:
        if len(scene.read) == 1:
            folder.rename(tmp_path / "unmounted")
            if left_behind:
                folder.mkdir()

    scene.after_read = unmount

    def checks_failed() -> bool:  # if the folder is missing, the queue is paused until it exists
        return bool(scene.events_of(StoreUnavailable)) or len(scene.events_of(ObjectInterrupted)) >= 60

    scene.work(until=checks_failed)
    assert ObjectState.DELETED.value not in scene.states
    assert any("is its file system mounted?" in event.reason for event in scene.events_of(ObjectInterrupted))
    if left_behind:
        folder.rmdir()
    (tmp_path / "unmounted").rename(folder)
    scene.work()
    assert scene.states == {"processed": 20}
    assert sorted(scene.read) == sorted(f"{number}".encode() for number in range(20))


def test_a_worker_started_before_the_mount_records_no_file_as_deleted(
    scene: Scene, folder: Path, tmp_path: Path
) -> None:
    for number in range(3):
        (folder / f"{number}").write_text(f"{number}")
    scene.enqueue()
    moved = folder.rename(tmp_path / "unmounted")
    folder.mkdir()
    scene.work(until=lambda: len(scene.events_of(ObjectInterrupted)) >= 15)
    assert ObjectState.DELETED.value not in scene.states
    assert {event.reason.split("; ")[0] for event in scene.events_of(ObjectInterrupted)} == {
        f"the source folder {folder} is empty, and was empty when this process started"
    }
    folder.rmdir()
    moved.rename(folder)
    scene.work()
    assert scene.states == {"processed": 3}


@pytest.fixture
def bucket(tmp_path: Path, moto: AwsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Scene, Any]]:
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    s3 = moto.client("s3")
    s3.create_bucket(Bucket=BUCKET)
    scene = make_scene(tmp_path, f"s3://{BUCKET}/in/")
    with closing(scene.ledger):
        yield scene, s3


def notify(scene: Scene, etag: str, size: int, sequencer: str) -> None:
    described = {"key": "in/a", "size": size, "eTag": etag.strip('"'), "sequencer": sequencer}
    record = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": BUCKET}, "object": described},
    }
    scene.broker.send(QUEUE, [Outgoing(body=json.dumps({"Records": [record]}).encode())])


def test_an_object_deleted_and_put_again_with_the_same_bytes_is_read(bucket: tuple[Scene, Any]) -> None:
    scene, s3 = bucket
    etag = s3.put_object(Bucket=BUCKET, Key="in/a", Body=b"hello")["ETag"]
    notify(scene, etag, 5, "0061")
    s3.delete_object(Bucket=BUCKET, Key="in/a")
    scene.work()
    assert scene.states == {"gone": 1}
    s3.put_object(Bucket=BUCKET, Key="in/a", Body=b"hello")
    notify(scene, etag, 5, "0063")
    notify(scene, etag, 5, "0063")  # S3 notifies at least once
    scene.work()
    assert scene.read == [b"hello"]
    assert scene.events_of(ObjectSkipped)[-1].reason == "already_processed"


def test_an_object_replaced_and_put_back_without_versions_is_read(bucket: tuple[Scene, Any]) -> None:
    scene, s3 = bucket
    first = s3.put_object(Bucket=BUCKET, Key="in/a", Body=b"first")["ETag"]
    other = s3.put_object(Bucket=BUCKET, Key="in/a", Body=b"other!")["ETag"]
    notify(scene, other, 6, "0062")
    scene.work()
    s3.put_object(Bucket=BUCKET, Key="in/a", Body=b"first")
    notify(scene, first, 5, "0061")
    scene.work()
    assert scene.states == {"processed": 1, "superseded": 1}, "its event is older than that of the object that was read"
    notify(scene, first, 5, "0063")
    scene.work()
    assert scene.read == [b"other!", b"first"]
    assert scene.states == {"processed": 2}
