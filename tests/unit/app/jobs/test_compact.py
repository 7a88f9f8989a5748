"""The compaction of tables as a job."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.app.jobs import compact
from penstock.app.jobs.elected import TaskRun
from penstock.app.paths import TablePaths
from penstock.sinks.delta.declaration import DeltaSink
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
    compact._task(cast(TablePaths, SimpleNamespace(pipeline="clicks")), (), context).run(task_run)
    assert task_run.ended_early


def test_the_job_orders_rows_by_the_declared_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(compact, "compact_tables", lambda paths, **options: calls.append((paths, options["order_by"])))
    monkeypatch.setattr(compact, "declared_table_paths", lambda name, *_: SimpleNamespace(pipeline=name))
    monkeypatch.setattr(compact, "elected_job", lambda _name, tasks, *_, **__: tasks)
    monkeypatch.setattr(compact, "PipelineService", SimpleNamespace)
    declared = DeltaSink("tables/clicks", order_by=["user", "at"])
    pipeline = SimpleNamespace(name="clicks", declaration=SimpleNamespace(sink=declared))
    context: Any = SimpleNamespace(clock=FakeClock(), bus=None, probe=None, settings=None)
    tasks: Any = compact.compact_job([cast(Any, SimpleNamespace(pipeline=pipeline))], context, every_seconds=60)
    tasks[0].run(TaskRun(StopSignal(), worker_stop=StopSignal(), clock=FakeClock()))
    assert [(paths.pipeline, order_by) for paths, order_by in calls] == [("clicks", ("user", "at"))]
