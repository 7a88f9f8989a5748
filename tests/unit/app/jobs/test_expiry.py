"""Dead letters that are about to expire: reported, and archived."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from penstock.app.jobs.elected import TaskRun
from penstock.app.jobs.expiry import FILE_MESSAGES_MAX, WARNED_EVERY_SECONDS, ExpiryWatch, expiry_job, period_seconds
from penstock.app.replayer import ReplayedQueue
from penstock.brokers.memory.broker import MemoryBroker
from penstock.config import load_settings
from penstock.dead_letters.jsonl import read_line
from penstock.errors import TemporaryError
from penstock.events import Bus, DeadLettersArchived, DeadLettersExpiring, Event
from penstock.ledger import Ledger
from penstock.messaging.broker import BrokerCapabilities, QueueSettings
from penstock.messaging.message import Outgoing
from penstock.messaging.steps import no_probe
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal

DLQ, FINAL_DLQ = "orders-dlq", "orders-dead"
RETENTION_SECONDS = 1_000.0


class Files(LocalFiles):
    """A folder that is unavailable while it contains the file ``away``."""

    __slots__ = ()

    @contextmanager
    def open_output(self, path: str, *, durable: bool = True) -> Iterator[BinaryIO]:
        if (self.root / "away").exists():
            raise TemporaryError("the archive is away")
        with super().open_output(path, durable=durable) as file:
            yield file


class Broker(MemoryBroker):
    """A broker that fails to delete dead-lettered messages while ``dies`` is set."""

    dies = False

    def discard(self, queue: str, ids: Sequence[str]) -> int:
        if self.dies:
            raise TemporaryError("away")
        return super().discard(queue, ids)


class UnbrowsableBroker(Broker):
    """A broker on which an inspection counts as a receive, as on SQS."""

    @property
    def capabilities(self) -> BrokerCapabilities:
        return replace(super().capabilities, browsable=False)


def task_run() -> TaskRun:
    return TaskRun(StopSignal(), worker_stop=StopSignal(), clock=FakeClock())


class Scene:
    """A DLQ and a final DLQ, and the watch over both."""

    def __init__(self, archive: Path | None) -> None:
        self.clock = FakeClock()
        queues = [QueueSettings(name=name, retention_seconds=RETENTION_SECONDS) for name in (DLQ, FINAL_DLQ)]
        self.broker = Broker(clock=self.clock, queues=queues)
        self.events: list[Event] = []
        self.watch = ExpiryWatch(
            broker=self.broker,
            archive=None if archive is None else Files(archive),
            warn_share=0.5,
            bus=Bus(self.events.append),
            clock=self.clock,
        )

    def inspect(self) -> None:
        for queue in (DLQ, FINAL_DLQ):
            self.watch.inspect(queue, task_run())

    def send(self, count: int = 1, *, queue: str = DLQ) -> None:
        self.broker.send(queue, [Outgoing(body=b"%d" % number) for number in range(count)])

    def expiring(self) -> list[tuple[str, int, float]]:
        return [(e.queue, e.count, e.oldest_age_seconds) for e in self.events if isinstance(e, DeadLettersExpiring)]

    def archived(self) -> list[tuple[str, int]]:
        return [(event.queue, event.count) for event in self.events if isinstance(event, DeadLettersArchived)]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def archived_bodies(folder: Path, queue: str = DLQ) -> list[str]:
    lines = [line for path in sorted((folder / queue).rglob("*.jsonl")) for line in path.read_bytes().splitlines()]
    return [read_line(line, number=1, file="dead-letters").message.body.decode() for line in lines]


def test_dead_letters_past_the_warning_share_are_reported_once() -> None:
    scene = Scene(None)
    scene.send(2)
    scene.clock.advance(499)
    scene.inspect()
    assert scene.expiring() == []
    scene.clock.advance(2)
    scene.send(1, queue=FINAL_DLQ)
    scene.inspect()
    scene.inspect()
    assert scene.expiring() == [(DLQ, 2, 501.0)]
    (event,) = (event for event in scene.events if isinstance(event, DeadLettersExpiring))
    assert event.first_deleted_at == pytest.approx(scene.clock.now() + 499)
    assert not event.archived


def test_expiring_dead_letters_are_reported_again_after_a_day_and_after_the_queue_was_empty() -> None:
    scene = Scene(None)
    scene.broker = Broker(clock=scene.clock, queues=[QueueSettings(name=DLQ, retention_seconds=10 * 86_400.0)])
    watch = ExpiryWatch(
        broker=scene.broker, archive=None, warn_share=0.1, bus=Bus(scene.events.append), clock=scene.clock
    )
    scene.send()
    scene.clock.advance(86_400)
    watch.inspect(DLQ, task_run())
    scene.clock.advance(WARNED_EVERY_SECONDS - 1)
    watch.inspect(DLQ, task_run())
    assert len(scene.expiring()) == 1
    scene.clock.advance(1)
    watch.inspect(DLQ, task_run())
    assert len(scene.expiring()) == 2
    scene.broker.purge(DLQ)
    watch.inspect(DLQ, task_run())
    scene.send()
    scene.clock.advance(86_400)
    watch.inspect(DLQ, task_run())
    assert len(scene.expiring()) == 3


def test_dead_letters_about_to_expire_are_archived_and_deleted(scene: Scene, tmp_path: Path) -> None:
    scene.send(2)
    scene.clock.advance(600)
    scene.send(1)
    scene.clock.advance(351)
    scene.inspect()
    assert scene.archived() == [(DLQ, 2)]
    assert (archived_bodies(tmp_path), scene.broker.stats(DLQ).visible) == (["0", "1"], 1)
    assert scene.expiring() == []
    scene.inspect()
    assert scene.archived() == [(DLQ, 2)]


def test_no_dead_letter_is_deleted_if_its_file_cannot_be_written(scene: Scene, tmp_path: Path) -> None:
    scene.send()
    scene.clock.advance(960)
    (tmp_path / "away").touch()
    with pytest.raises(TemporaryError, match="the archive is away"):
        scene.inspect()
    assert (scene.broker.stats(DLQ).visible, scene.archived()) == (1, [])
    (tmp_path / "away").unlink()
    scene.inspect()
    assert (scene.broker.stats(DLQ).visible, scene.archived()) == (0, [(DLQ, 1)])


def test_a_pass_after_a_failed_deletion_writes_the_same_file_again(scene: Scene, tmp_path: Path) -> None:
    scene.send(3)
    scene.clock.advance(960)
    scene.broker.dies = True
    with pytest.raises(TemporaryError):
        scene.inspect()
    assert (archived_bodies(tmp_path), scene.broker.stats(DLQ).visible) == (["0", "1", "2"], 3)
    scene.broker.dies = False
    scene.inspect()
    assert (archived_bodies(tmp_path), scene.broker.stats(DLQ).visible) == (["0", "1", "2"], 0)


def test_many_dead_letters_make_several_files(scene: Scene, tmp_path: Path) -> None:
    scene.send(FILE_MESSAGES_MAX + 1)
    scene.clock.advance(960)
    scene.inspect()
    assert scene.archived() == [(DLQ, FILE_MESSAGES_MAX), (DLQ, 1)]
    assert len(set(archived_bodies(tmp_path))) == FILE_MESSAGES_MAX + 1


def test_the_period_is_a_share_of_the_shortest_retention_within_limits(scene: Scene) -> None:
    assert period_seconds(scene.broker, [DLQ, FINAL_DLQ]) == 60.0
    assert period_seconds(Broker(clock=scene.clock), [DLQ]) == 3_600.0


def test_the_period_is_longer_if_an_inspection_counts_as_a_receive() -> None:
    assert period_seconds(UnbrowsableBroker(clock=FakeClock()), [DLQ]) == 14 * 86_400.0 / 40


def test_an_archived_file_can_be_read_by_an_import(scene: Scene, tmp_path: Path) -> None:
    scene.broker.send(DLQ, [Outgoing(body=b"\xff", attributes={"raw": b"\x00", "text": "é"}, group="g")])
    scene.clock.advance(960)
    scene.inspect()
    (path,) = (tmp_path / DLQ).rglob("*.jsonl")
    kept = read_line(path.read_bytes(), number=1, file="dead-letters")
    assert (kept.message.body, kept.message.group) == (b"\xff", "g")
    assert dict(kept.message.attributes) == {"raw": b"\x00", "text": "é"}
    assert json.loads(path.read_bytes())["queue"] == DLQ


def context_of(scene: Scene, ledger: Ledger, *, archive: Path, worker: str) -> Any:
    return SimpleNamespace(
        settings=load_settings(dead_letters_archive=str(archive)),
        broker=scene.broker,
        bus=Bus(scene.events.append),
        clock=scene.clock,
        probe=no_probe,
        ledger=lambda: ledger,
        worker=worker,
        stop=StopSignal(),
        random=lambda: 0.5,
    )


@pytest.mark.parametrize(
    "apps",
    [
        pytest.param([("shop", "redis://a"), ("bank", "redis://a")], id="two apps"),
        pytest.param([("shop", "redis://a"), ("shop", "redis://b")], id="one app on two brokers"),
    ],
)
def test_apps_or_brokers_that_share_a_ledger_each_inspect_their_queue_of_the_same_name(
    tmp_path: Path, apps: Sequence[tuple[str, str]]
) -> None:
    """With one claim for both, only one would archive its dead letters; the broker would delete those of the other."""
    archive = tmp_path / "archive"
    archive.mkdir()
    with closing(Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")) as ledger:
        scenes = [Scene(archive) for _ in apps]
        for scene, (name, address) in zip(scenes, apps, strict=True):
            scene.send()
            scene.clock.advance(960)
            context = context_of(scene, ledger, archive=archive, worker=name)
            dlqs = [ReplayedQueue(queue=DLQ, final_dlq=FINAL_DLQ, sources=())]
            job = expiry_job(dlqs, context, app=name, address=address)
            assert job is not None
            job.check()
    assert [scene.archived() for scene in scenes] == [[(DLQ, 1)], [(DLQ, 1)]]


def test_the_period_follows_a_retention_that_becomes_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the period of the start, the broker would delete dead letters before they are archived."""
    archive, file = tmp_path / "archive", tmp_path / "ledger.db"
    archive.mkdir()
    with closing(Ledger.open(f"sqlite:///{file}")) as ledger:
        scene = Scene(archive)
        monkeypatch.setattr(scene.broker, "retention_seconds", lambda _: 14 * 86_400.0)
        dlqs = [ReplayedQueue(queue=DLQ, final_dlq=FINAL_DLQ, sources=())]
        job = expiry_job(dlqs, context_of(scene, ledger, archive=archive, worker="w1"), app="shop", address=None)
        assert job is not None
        job.check()
        monkeypatch.undo()
        scene.send()
        scene.clock.advance(960)
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("UPDATE works SET last_ended_at = last_ended_at - 120")
        job.check()
    assert scene.archived() == [(DLQ, 1)]
