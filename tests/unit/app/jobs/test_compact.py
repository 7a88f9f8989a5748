"""The compaction of tables as a job."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.app.jobs import compact
from penstock.app.jobs.elected import TaskRun
from penstock.app.paths import TablePaths
from penstock.testing import FakeClock
from penstock.worker.shutdown import StopSignal


def test_a_compaction_asks_its_run_between_two_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, worker_stop = FakeClock(), StopSignal()
    task_run = TaskRun(StopSignal(), worker_stop=worker_stop, clock=clock)

    def compact_tables(*_: object, stopped: Callable[[], bool], **__: object) -> None:
        begun_at = task_run.moved_at
        clock.advance(5)
        assert not stopped()
        assert task_run.moved_at == begun_at + 5
        worker_stop.pause()
        assert stopped()

    monkeypatch.setattr(compact, "compact_tables", compact_tables)
    context: Any = SimpleNamespace(clock=clock, stop=worker_stop, bus=None, probe=None)
    compact._task(cast(TablePaths, SimpleNamespace(pipeline="clicks")), context).run(task_run)
    assert task_run.ended_early
