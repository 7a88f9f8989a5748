"""Dead letters near the end of their retention: told of, and kept."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest

from penstock.app.jobs.dead_letters import FILE_LETTERS_MAX, TOLD_EVERY_SECONDS, ExpiryWatch
from penstock.brokers.memory.broker import MemoryBroker
from penstock.dead_letters.jsonl import read_line
from penstock.errors import TemporaryError
from penstock.events import Bus, DeadLettersAgeing, DeadLettersArchived, Event, UpkeepFailed
from penstock.messaging.broker import Capabilities, QueueSettings
from penstock.messaging.message import Outgoing
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock

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

    away = False

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, browsable=False)

    def retention_seconds(self, queue: str) -> float | None:
        if self.away:
            raise TemporaryError("away")
        return super().retention_seconds(queue)


class Scene:
    """The letters of both tiers, and who looks after them."""

    def __init__(self, archive: Path | None) -> None:
        self.clock = FakeClock()
        queues = [QueueSettings(name=name, retention_seconds=RETENTION_SECONDS) for name in (FIRST, SECOND)]
        self.broker = Broker(clock=self.clock, queues=queues)
        self.told: list[Event] = []
        self.duty = ExpiryWatch(
            [FIRST, SECOND],
            broker=self.broker,
            archive=None if archive is None else Files(archive),
            warn_share=0.5,
            bus=Bus(self.told.append),
            clock=self.clock,
            random=random.random,
        )

    def bury(self, count: int = 1, *, queue: str = FIRST) -> None:
        self.broker.send(queue, [Outgoing(body=b"%d" % number) for number in range(count)])

    def ageing(self) -> list[tuple[str, int, float]]:
        return [(e.queue, e.letters, e.oldest_age_seconds) for e in self.told if isinstance(e, DeadLettersAgeing)]

    def archived(self) -> list[tuple[str, int]]:
        return [(event.queue, event.letters) for event in self.told if isinstance(event, DeadLettersArchived)]

    def failures(self) -> list[str]:
        return [event.error for event in self.told if isinstance(event, UpkeepFailed)]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def lines(folder: Path, queue: str = FIRST) -> list[str]:
    found = [line for path in sorted((folder / queue).rglob("*.jsonl")) for line in path.read_bytes().splitlines()]
    return [read_line(line, number=1, file="letters").message.body.decode() for line in found]


def test_letters_that_wait_long_are_told_once_a_day_while_they_do() -> None:
    scene = Scene(None)
    scene.bury(2)
    scene.clock.advance(499)
    scene.duty.once()
    assert scene.ageing() == []
    scene.clock.advance(2)
    scene.bury(1, queue=SECOND)
    scene.duty.once()
    scene.duty.once()
    assert scene.ageing() == [(FIRST, 2, 501.0)]
    (event,) = (event for event in scene.told if isinstance(event, DeadLettersAgeing))
    assert event.first_deleted_at == pytest.approx(scene.clock.now() + 499)
    assert not event.archived


def test_it_is_told_again_after_a_day_and_anew_when_it_came_to_an_end() -> None:
    scene = Scene(None)
    scene.broker = Broker(clock=scene.clock, queues=[QueueSettings(name=FIRST, retention_seconds=10 * 86_400.0)])
    duty = ExpiryWatch(
        [FIRST],
        broker=scene.broker,
        archive=None,
        warn_share=0.1,
        bus=Bus(scene.told.append),
        clock=scene.clock,
        random=random.random,
    )
    scene.bury()
    scene.clock.advance(86_400)
    duty.once()
    scene.clock.advance(TOLD_EVERY_SECONDS - 1)
    duty.once()
    assert len(scene.ageing()) == 1
    scene.clock.advance(1)
    duty.once()
    assert len(scene.ageing()) == 2
    scene.broker.purge(FIRST)
    duty.once()
    scene.bury()
    scene.clock.advance(86_400)
    duty.once()
    assert len(scene.ageing()) == 3


def test_letters_near_their_end_are_in_a_file_before_they_leave(scene: Scene, tmp_path: Path) -> None:
    scene.bury(2)
    scene.clock.advance(600)
    scene.bury(1)
    scene.clock.advance(351)
    scene.duty.once()
    assert scene.archived() == [(FIRST, 2)]
    assert (lines(tmp_path), scene.broker.stats(FIRST).visible) == (["0", "1"], 1)
    assert scene.ageing() == []
    scene.duty.once()
    assert scene.archived() == [(FIRST, 2)]


def test_without_the_file_no_letter_leaves(scene: Scene, tmp_path: Path) -> None:
    scene.bury()
    scene.clock.advance(960)
    (tmp_path / "away").touch()
    scene.duty.once()
    assert (scene.broker.stats(FIRST).visible, scene.archived()) == (1, [])
    assert scene.failures() == ["orders-dlq: TemporaryError: the archive is away"]
    (tmp_path / "away").unlink()
    scene.duty.once()
    assert (scene.broker.stats(FIRST).visible, scene.archived()) == (0, [(FIRST, 1)])


def test_a_pass_that_died_before_it_deleted_writes_the_same_file_again(scene: Scene, tmp_path: Path) -> None:
    scene.bury(3)
    scene.clock.advance(960)
    scene.broker.dies = True
    scene.duty.once()
    assert (lines(tmp_path), scene.broker.stats(FIRST).visible) == (["0", "1", "2"], 3)
    scene.broker.dies = False
    scene.duty.once()
    assert (lines(tmp_path), scene.broker.stats(FIRST).visible) == (["0", "1", "2"], 0)


def test_many_letters_make_several_files(scene: Scene, tmp_path: Path) -> None:
    scene.bury(FILE_LETTERS_MAX + 1)
    scene.clock.advance(960)
    scene.duty.once()
    assert scene.archived() == [(FIRST, FILE_LETTERS_MAX), (FIRST, 1)]
    assert len(set(lines(tmp_path))) == FILE_LETTERS_MAX + 1


def test_the_rest_is_shorter_where_letters_stay_shorter(scene: Scene) -> None:
    assert scene.duty.once() == 60.0
    scene.broker = Broker(clock=scene.clock)
    duty = ExpiryWatch(
        [FIRST],
        broker=scene.broker,
        archive=None,
        warn_share=0.5,
        bus=Bus(scene.told.append),
        clock=scene.clock,
        random=random.random,
    )
    assert duty.once() == 3_600.0


def test_where_a_look_is_a_receive_there_are_few_and_sooner_when_one_failed(tmp_path: Path) -> None:
    clock = FakeClock()
    broker = Receiving(clock=clock)
    duty = ExpiryWatch(
        [FIRST],
        broker=broker,
        archive=Files(tmp_path),
        warn_share=0.5,
        bus=Bus(),
        clock=clock,
        random=random.random,
    )
    assert duty.once() == 14 * 86_400.0 / 40
    broker.away = True
    assert duty.once() == 3_600.0


def test_a_file_holds_what_an_import_takes(scene: Scene, tmp_path: Path) -> None:
    scene.broker.send(FIRST, [Outgoing(body=b"\xff", attributes={"raw": b"\x00", "text": "é"}, group="g")])
    scene.clock.advance(960)
    scene.duty.once()
    (path,) = (tmp_path / FIRST).rglob("*.jsonl")
    kept = read_line(path.read_bytes(), number=1, file="letters")
    assert (kept.message.body, kept.message.group) == (b"\xff", "g")
    assert dict(kept.message.attributes) == {"raw": b"\x00", "text": "é"}
    assert json.loads(path.read_bytes())["queue"] == FIRST
