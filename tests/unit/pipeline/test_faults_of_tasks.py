"""A passing fault of a task is left to Spark while it repeats the task, and all others are reported as rows."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock.errors import TableError, TemporaryError
from penstock.storage.local import LocalFiles

pytest.importorskip("pyspark")

ROWS = pa.record_batch({"id": pa.array([1])})


def reported(folder: Path, fault: Exception, *, attempts_max: int = 1) -> list[str | None]:
    """Return the faults in the rows that a task reports which fails after its first file."""
    from penstock.pipeline.spark.arrow_writer import WriteTask

    def batches() -> Iterator[pa.RecordBatch]:
        yield ROWS
        raise fault

    task = WriteTask.of(ROWS.schema, files=LocalFiles(folder), directory="r0", attempts_max=attempts_max)
    return [row["fault"] for batch in task.results(batches()) for row in batch.to_pylist()]


def attempt(number: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run this attempt of a task from now on; None: no task."""
    from penstock.pipeline.spark import arrow_writer

    context = None if number is None else SimpleNamespace(attemptNumber=lambda: number)
    monkeypatch.setattr(arrow_writer, "TaskContext", SimpleNamespace(get=lambda: context))


@pytest.mark.parametrize("number", [0, 2])
def test_a_passing_fault_is_raised_while_the_task_has_attempts_left(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(number, monkeypatch)
    with pytest.raises(TemporaryError, match="slow down"):
        reported(tmp_path, TemporaryError("S3 asks to slow down"), attempts_max=4)


@pytest.mark.parametrize(("number", "attempts_max"), [(0, 1), (3, 4), (7, 4), (None, 4)])
def test_the_last_attempt_reports_it(
    number: int | None, attempts_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(number, monkeypatch)
    assert reported(tmp_path, TemporaryError("slow"), attempts_max=attempts_max) == ["TemporaryError"]


def test_a_lasting_fault_is_reported_by_the_first_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt(0, monkeypatch)
    assert reported(tmp_path, TableError("Access Denied"), attempts_max=4) == ["TableError"]
