"""The rule of a run for objects that changed, by the columns that its transform returns. Without Spark."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import UsageError
from penstock.ledger.records import OnChange
from penstock.objects.reference import ObjectRef
from penstock.pipeline.spark import run as module
from penstock.pipeline.spark.declaration import Declaration
from penstock.pipeline.spark.run import SparkRun
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import ReadPlan, SavedPlan
from penstock.storage.local import LocalFiles

ID, OBJECT = pa.field("id", pa.int64()), pa.field("_object", pa.string())


class Runs:
    """Runs whose transform returns certain columns. ``read`` has the plan of each frame that was made."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[ReadPlan] = []
        self._folder = folder
        self._monkeypatch = monkeypatch

    def columns(self, *columns: pa.Field, on_change: OnChange | None = None, current_only: bool = True) -> list[str]:
        """Plan a run, and return the names of the columns that it will write."""

        def read(_spark: object, plan: ReadPlan) -> object:
            self.read.append(plan)
            return object()

        self._monkeypatch.setattr(module, "read", read)
        self._monkeypatch.setattr(SparkRun, "_transformed", lambda _, frame: frame)
        self._monkeypatch.setattr(module, "_columns", lambda *_: pa.schema(columns))
        run = self._run(on_change, current_only=current_only)
        run._plan.save()
        return list(run._planned()[1].names)

    @property
    def saved(self) -> SavedPlan:
        """The plan that executors read."""
        return SavedPlan.load(self.read[-1].work)

    def _run(self, on_change: OnChange | None, *, current_only: bool) -> SparkRun:
        declaration = Declaration(
            pipeline="p",
            source="/in",
            table=LocalFiles(self._folder / "t"),
            quarantine=LocalFiles(self._folder / "q"),
            work=LocalFiles(self._folder / "w"),
            read=ReadOptions(schema_ddl="id long"),
            on_change=on_change,
            transform=lambda frame: frame,
        )
        context: Any = SimpleNamespace(
            declaration=declaration, spark=None, runtime=SimpleNamespace(tasks_at_once=lambda: 2), clock=None
        )
        objects = [ObjectRef(bucket="b", key="k", size_bytes=1, version_id="1")]
        return SparkRun(context, "A", 0, objects, current_only=current_only)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(tmp_path, monkeypatch)


def test_a_run_whose_rows_name_their_objects_reads_only_current_versions(runs: Runs) -> None:
    assert runs.columns(ID, OBJECT) == ["id", "_object"]
    assert len(runs.read) == 1
    assert runs.saved.current_only


def test_a_run_whose_transform_drops_the_address_reads_every_version(runs: Runs) -> None:
    assert runs.columns(ID) == ["id"]
    assert runs.read[1] == replace(runs.read[0], current_only=False)
    assert not runs.saved.current_only


def test_a_run_that_refuses_changed_objects_needs_no_address(runs: Runs) -> None:
    assert runs.columns(ID, on_change=OnChange.REFUSE) == ["id"]
    assert runs.saved.current_only


def test_a_run_that_has_to_replace_rows_needs_their_address(runs: Runs) -> None:
    with pytest.raises(UsageError, match=r"drops the column _object.*let it return this column"):
        runs.columns(ID, on_change=OnChange.REPLACE)


def test_an_address_that_is_no_text_counts_as_none(runs: Runs) -> None:
    number = pa.field("_object", pa.int64())
    assert runs.columns(ID, number) == ["id", "_object"]
    assert not runs.saved.current_only
    with pytest.raises(UsageError, match=r"changes the type of the column _object.* choose on_change='add'"):
        runs.columns(ID, number, on_change=OnChange.REPLACE)


def test_a_run_that_adds_every_version_is_planned_once(runs: Runs) -> None:
    assert runs.columns(ID, on_change=OnChange.ADD, current_only=False) == ["id"]
    assert len(runs.read) == 1
