"""Repeated readings of the status scan what grows with a pipeline rarely."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.app.scope import Scope
from penstock.config import Settings
from penstock.ledger import Ledger
from penstock.ledger.queries import LedgerAges, UnprocessedObjects
from penstock.ledger.records import ObjectState
from penstock.operations.status import status
from penstock.operations.status.status import (
    DETAILS_SECONDS,
    SCAN_REST_FACTOR,
    SCAN_SECONDS_MAX,
    DeadLetters,
    DeadObjects,
    StatusReader,
)
from penstock.testing import FakeClock


@dataclass(kw_only=True)
class Scene:
    reader: StatusReader
    clock: FakeClock = field(default_factory=FakeClock)
    scan_seconds: float = 0.0
    scanned_at: list[float] = field(default_factory=list)  # monotonic
    dead_objects: int = 0
    dead_letters: int = 0


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A ledger with one pipeline, whose scans take the given time and find all failed objects replaced."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = Ledger.open(url)
    ledger.ensure_pipeline("clicks")
    ledger.close()
    clock = FakeClock()
    settings = Settings(data_dir=str(tmp_path), ledger=url)
    scene = Scene(reader=StatusReader(Scope(settings=settings, served={}), clock=clock), clock=clock)

    def replaced_totals(_: Ledger, pipeline: str) -> tuple[int, int]:
        """Take time, as the sum of many batches does."""
        assert pipeline == "clicks"
        scene.scanned_at.append(clock.monotonic())
        clock.advance(scene.scan_seconds)
        return 0, 0

    waiting = LedgerAges.waiting

    def with_dead(ages: LedgerAges, pipeline: str, *, overdue_after_seconds: float) -> UnprocessedObjects:
        found = waiting(ages, pipeline, overdue_after_seconds=overdue_after_seconds)
        return replace(found, objects={**found.objects, ObjectState.DEAD: scene.dead_objects})

    def all_replaced(*_: object) -> DeadObjects:
        return DeadObjects(replaced=scene.dead_objects, carriers_of_replaced=set(), carriers_of_others=set())

    def dead_letters(*_: object) -> DeadLetters:
        return DeadLetters(all=scene.dead_letters, set_aside=0, replayed=0)

    monkeypatch.setattr(Ledger, "replaced_totals", replaced_totals)
    monkeypatch.setattr(LedgerAges, "waiting", with_dead)
    monkeypatch.setattr(status, "dead_objects", all_replaced)
    monkeypatch.setattr(status, "dead_letters", dead_letters)
    monkeypatch.setattr(status, "dead_letters_replaced", lambda *_: scene.dead_letters)
    return scene


def rests_of(scene: Scene, *, readings: int, every_seconds: float) -> list[float]:
    for _ in range(readings):
        assert scene.reader.read().pipelines[0].pipeline == "clicks"
        scene.clock.advance(every_seconds)
    return [later - earlier - scene.scan_seconds for earlier, later in pairwise(scene.scanned_at)]


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_scans_take_at_most_a_hundredth_of_the_time(scene: Scene, seconds: float) -> None:
    scene.scan_seconds = seconds
    rests = rests_of(scene, readings=150, every_seconds=2.0)
    rest_seconds = max(DETAILS_SECONDS, SCAN_REST_FACTOR * seconds)
    assert rests
    assert all(rest_seconds <= rest < rest_seconds + 4.0 for rest in rests)


def test_a_scan_that_waited_for_a_service_is_repeated_within_the_hour(scene: Scene) -> None:
    scene.scan_seconds = 600.0
    rests = rests_of(scene, readings=100, every_seconds=60.0)
    assert rests
    assert all(SCAN_SECONDS_MAX <= rest < SCAN_SECONDS_MAX + 120.0 for rest in rests)


def test_objects_and_dead_letters_that_fail_after_a_scan_are_not_taken_for_replaced_ones(scene: Scene) -> None:
    scene.dead_objects = scene.dead_letters = 3
    assert scene.reader.read().problem_texts == []
    scene.dead_objects = scene.dead_letters = 1  # two were purged
    assert scene.reader.read().problem_texts == []
    scene.dead_objects = scene.dead_letters = 3  # and two others failed
    found = scene.reader.read()
    assert len(scene.scanned_at) == 1
    assert (found.objects_replaced, found.dead_letters_replaced) == (1, 1)
    assert found.problem_texts == ["failed objects: 2", "dead letters: 2"]
