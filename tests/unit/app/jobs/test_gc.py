"""The garbage collection of a pipeline, as a task of a job."""

from collections.abc import Callable
from typing import cast

import pytest

from penstock.app.jobs.gc import collect
from penstock.app.tables import Tables
from penstock.events import Bus, Event, GarbageCollected
from penstock.pipeline.maintenance.gc import CollectedGarbage


class FakeTables:
    """Tables with a fixed number of garbage files."""

    def __init__(self, files: int) -> None:
        self._files = files

    def collect_garbage(self, *, dry_run: bool, stopped: Callable[[], bool]) -> CollectedGarbage:
        assert not dry_run
        assert not stopped()
        return CollectedGarbage(attempts=1, compactions=2, files=self._files, bytes=4, unknown=())


@pytest.mark.parametrize("files", [0, 3])
def test_a_collection_that_deleted_files_emits_an_event(files: int) -> None:
    heard: list[Event] = []
    collect("clicks", cast(Tables, FakeTables(files)), Bus(heard.append), stopped=lambda: False)
    assert heard == (
        [GarbageCollected(pipeline="clicks", attempts=1, compactions=2, files=3, bytes=4)] if files else []
    )
