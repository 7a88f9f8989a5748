"""Dead letters that are about to expire: reported, and archived."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

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

FIRST, SECOND = "orders-dlq", "orders-dead"
RETENTION_SECONDS = 1_000.0


class Files(LocalFiles):
    """A folder that may be away."""

    __slots__ = ()

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        if (self.root / "away").exists():
            raise TemporaryError("the archive is away")
        with super().open_output(path) as file:
            yield file


class Broker(MemoryBroker):
    """One whose process may die before letters are deleted."""

    dies = False

    def discard(self, queue: str, ids: Sequence[str]) -> int:
        if self.dies:
            raise TemporaryError("away")
        return super().discard(queue, ids)


class Receiving(Broker):
    """One where a look is a receive, as on SQS."""

    @property
    def capabilities(self) -> BrokerCapabilities:
        return replace(super().capabilities, browsable=False)


class Scene:
    """The letters of both tiers, and who looks after them."""

    def __init__(self, archive: Path | None) -> None:
        self.clock = FakeClock()
        queues = [QueueSettings(name=name, retention_seconds=RETENTION_SECONDS) for name in (FIRST, SECOND)]
        self.broker = Broker(clock=self.clock, queues=queues)
        self.told: list[Event] = []
        self.watch = ExpiryWatch(
            broker=self.broker,
            archive=None if archive is None else Files(archive),
            warn_share=0.5,
            bus=Bus(self.told.append),
            clock=self.clock,
        )

    def inspect(self) -> None:
        for queue in (FIRST, SECOND):
            self.watch.inspect(queue, StopSignal())

    def bury(self, count: int = 1, *, queue: str = FIRST) -> None:
        self.broker.send(queue, [Outgoing(body=b"%d" % number) for number in range(count)])

    def ageing(self) -> list[tuple[str, int, float]]:
        return [(e.queue, e.count, e.oldest_age_seconds) for e in self.told if isinstance(e, DeadLettersExpiring)]

    def archived(self) -> list[tuple[str, int]]:
        return [(event.queue, event.count) for event in self.told if isinstance(event, DeadLettersArchived)]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def lines(folder: Path, queue: str = FIRST) -> list[str]:
    found = [line for path in sorted((folder / queue).rglob("*.jsonl")) for line in path.read_bytes().splitlines()]
    return [read_line(line, number=1, file="letters").message.body.decode() for line in found]


def test_dead_letters_that_wait_long_are_told_once_a_day_while_they_do() -> None:
    scene = Scene(None)
    scene.bury(2)
    scene.clock.advance(499)
    scene.inspect()
    assert scene.ageing() == []
    scene.clock.advance(2)
    scene.bury(1, queue=SECOND)
    scene.inspect()
    scene.inspect()
    assert scene.ageing() == [(FIRST, 2, 501.0)]
    (event,) = (event for event in scene.told if isinstance(event, DeadLettersExpiring))
    assert event.first_deleted_at == pytest.approx(scene.clock.now() + 499)
    assert not event.archived


def test_it_is_told_again_after_a_day_and_anew_when_it_came_to_an_end() -> None:
    scene = Scene(None)
    scene.broker = Broker(clock=scene.clock, queues=[QueueSettings(name=FIRST, retention_seconds=10 * 86_400.0)])
    watch = ExpiryWatch(
        broker=scene.broker, archive=None, warn_share=0.1, bus=Bus(scene.told.append), clock=scene.clock
    )
    scene.bury()
    scene.clock.advance(86_400)
    watch.inspect(FIRST, StopSignal())
    scene.clock.advance(WARNED_EVERY_SECONDS - 1)
    watch.inspect(FIRST, StopSignal())
    assert len(scene.ageing()) == 1
    scene.clock.advance(1)
    watch.inspect(FIRST, StopSignal())
    assert len(scene.ageing()) == 2
    scene.broker.purge(FIRST)
    watch.inspect(FIRST, StopSignal())
    scene.bury()
    scene.clock.advance(86_400)
    watch.inspect(FIRST, StopSignal())
    assert len(scene.ageing()) == 3


def test_dead_letters_near_their_end_are_in_a_file_before_they_leave(scene: Scene, tmp_path: Path) -> None:
    scene.bury(2)
    scene.clock.advance(600)
    scene.bury(1)
    scene.clock.advance(351)
    scene.inspect()
    assert scene.archived() == [(FIRST, 2)]
    assert (lines(tmp_path), scene.broker.stats(FIRST).visible) == (["0", "1"], 1)
    assert scene.ageing() == []
    scene.inspect()
    assert scene.archived() == [(FIRST, 2)]


def test_without_the_file_no_dead_letter_leaves(scene: Scene, tmp_path: Path) -> None:
    scene.bury()
    scene.clock.advance(960)
    (tmp_path / "away").touch()
    with pytest.raises(TemporaryError, match="the archive is away"):
        scene.inspect()
    assert (scene.broker.stats(FIRST).visible, scene.archived()) == (1, [])
    (tmp_path / "away").unlink()
    scene.inspect()
    assert (scene.broker.stats(FIRST).visible, scene.archived()) == (0, [(FIRST, 1)])


def test_a_pass_that_died_before_it_deleted_writes_the_same_file_again(scene: Scene, tmp_path: Path) -> None:
    scene.bury(3)
    scene.clock.advance(960)
    scene.broker.dies = True
    with pytest.raises(TemporaryError):
        scene.inspect()
    assert (lines(tmp_path), scene.broker.stats(FIRST).visible) == (["0", "1", "2"], 3)
    scene.broker.dies = False
    scene.inspect()
    assert (lines(tmp_path), scene.broker.stats(FIRST).visible) == (["0", "1", "2"], 0)


def test_many_dead_letters_make_several_files(scene: Scene, tmp_path: Path) -> None:
    scene.bury(FILE_MESSAGES_MAX + 1)
    scene.clock.advance(960)
    scene.inspect()
    assert scene.archived() == [(FIRST, FILE_MESSAGES_MAX), (FIRST, 1)]
    assert len(set(lines(tmp_path))) == FILE_MESSAGES_MAX + 1


def test_the_period_is_a_share_of_the_shortest_retention_within_limits(scene: Scene) -> None:
    assert period_seconds(scene.broker, [FIRST, SECOND]) == 60.0
    assert period_seconds(Broker(clock=scene.clock), [FIRST]) == 3_600.0


def test_the_period_is_longer_if_an_inspection_counts_as_a_receive() -> None:
    assert period_seconds(Receiving(clock=FakeClock()), [FIRST]) == 14 * 86_400.0 / 40


def test_a_file_holds_what_an_import_takes(scene: Scene, tmp_path: Path) -> None:
    scene.broker.send(FIRST, [Outgoing(body=b"\xff", attributes={"raw": b"\x00", "text": "é"}, group="g")])
    scene.clock.advance(960)
    scene.inspect()
    (path,) = (tmp_path / FIRST).rglob("*.jsonl")
    kept = read_line(path.read_bytes(), number=1, file="letters")
    assert (kept.message.body, kept.message.group) == (b"\xff", "g")
    assert dict(kept.message.attributes) == {"raw": b"\x00", "text": "é"}
    assert json.loads(path.read_bytes())["queue"] == FIRST


@pytest.mark.parametrize(
    "apps",
    [
        pytest.param([("shop", "redis://a"), ("bank", "redis://a")], id="two apps"),
        pytest.param([("shop", "redis://a"), ("shop", "redis://b")], id="one app on two brokers"),
    ],
)
def test_those_that_share_a_ledger_each_inspect_their_queue_of_the_same_name(
    tmp_path: Path, apps: Sequence[tuple[str, str]]
) -> None:
    """With one claim for both, only one of them would archive its dead letters; those of the other would be deleted."""
    archive = tmp_path / "archive"
    archive.mkdir()
    with closing(Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")) as ledger:
        scenes = [Scene(archive) for _ in apps]
        for scene, (name, address) in zip(scenes, apps, strict=True):
            scene.bury()
            scene.clock.advance(960)
            context: Any = SimpleNamespace(
                settings=load_settings(dead_letters_archive=str(archive)),
                broker=scene.broker,
                bus=Bus(scene.told.append),
                clock=scene.clock,
                probe=no_probe,
                ledger=lambda: ledger,
                worker=name,
                stop=StopSignal(),
                random=lambda: 0.5,
            )
            dlqs = [ReplayedQueue(queue=FIRST, final_dlq=SECOND, sources=())]
            job = expiry_job(dlqs, context, app=name, address=address)
            assert job is not None
            job.check()
    assert [scene.archived() for scene in scenes] == [[(FIRST, 1)], [(FIRST, 1)]]
