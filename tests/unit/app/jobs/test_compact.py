"""The compaction of tables as a job."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.app.jobs import compact
from penstock.app.paths import TablePaths
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal


@pytest.mark.parametrize(("pauses", "expected"), [(False, None), (True, 0.0)])
def test_a_compaction_that_a_paused_worker_ended_early_is_unfinished(
    monkeypatch: pytest.MonkeyPatch, pauses: bool, expected: float | None
) -> None:
    """Otherwise its period would start at the pause, and no worker would merge the rest before the period ended."""
    worker_stop = StopSignal()

    def compact_tables(*_: object, stopped: Callable[[], bool], **__: object) -> None:
        assert not stopped()
        if pauses:
            worker_stop.pause()
            assert stopped()

    monkeypatch.setattr(compact, "compact_tables", compact_tables)
    context: Any = SimpleNamespace(clock=FakeClock(), stop=worker_stop, bus=None, probe=None)
    task = compact._task(cast(TablePaths, SimpleNamespace(pipeline="clicks")), context)
    assert task.run(StopSignal()) == expected
